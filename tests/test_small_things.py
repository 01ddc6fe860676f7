"""What a newcomer meets in the first hour: wrong files, empty folders, narrow terminals, puzzling help."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assay.command.reproduce import known_claims
from assay.core import shipped
from assay.core.errors import UserError
from assay.core.run import Record
from assay.core.store import Store
from assay.core.study import Outcome
from assay.data.text import load_corpus
from assay.studies.perplexity.spec.experiment import BenchmarkConfig

Cli = Callable[..., tuple[int, str, str]]


def test_a_broken_config_names_line_and_column(cli: Cli, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: x\nmodel: {name: a}\nmethods: [dense\nbudgets: 3\n")
    for command in (["perplexity"], ["sae", "ablation"]):
        code, _, err = cli(*command, "--config", broken)
        assert code == 2 and "broken.yaml, line 4, column 8: neither YAML nor JSON: expected" in err, err
        assert "unicode string" not in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"nmae": "x"}', "mine.json has no option 'nmae'. Did you mean 'name'?"),
        ('{"experiments": [{}, {"nmae": "x"}]}', "mine.json, experiment 2 has no option 'nmae'."),
        ('{"model": {"nmae": "x"}}', "mine.json, option 'model' has no option 'nmae'."),
        ('{"experiments": [], "num_gpu": 2}', "mine.json has no option 'num_gpu'. Did you mean 'num_gpus'?"),
    ],
)
def test_an_unknown_key_names_its_place_in_the_file(text: str, said: str) -> None:
    with pytest.raises(UserError) as raised:
        BenchmarkConfig.from_text(text, what="mine.json")
    assert str(raised.value).startswith(said)


def test_an_empty_text_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(UserError, match=r"empty\.txt' is empty"):
        load_corpus(str(tmp_path / "empty.txt"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"no file that ends in \.txt"):
        load_corpus(str(tmp_path / "folder"))


@pytest.mark.parametrize("verb", ["show", "report"])
def test_a_folder_without_a_store_is_an_error(verb: str, cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli(verb, "--out", tmp_path)
    assert code == 2 and not out and "has no stored runs" in err
    assert not list(tmp_path.iterdir()), "nothing is written into a folder that was named by mistake"


@pytest.mark.parametrize("words", [["list", "encoders"], [], ["modular"]])
def test_lists_obey_columns_and_are_whole_in_a_pipe(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.command.cli import main

    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(words) == 0
    whole = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "60")
    assert main(words) == 0
    narrow = capsys.readouterr().out
    lines = [line for line in narrow.splitlines() if not line.startswith("usage")]
    assert max(map(len, lines)) <= 60 < max(map(len, whole.splitlines()))
    assert narrow.split() == whole.split()


def test_help_and_a_name_is_the_help_of_that_name(cli: Cli) -> None:
    assert cli("help", "icl") == cli("icl", "--help")
    assert cli("help", "show") == cli("show", "--help")
    assert cli("help") == cli("--help")


def test_help_keeps_options_of_the_study_apart_from_those_of_the_runner(cli: Cli) -> None:
    _, out, _ = cli("icl", "--help")
    study, runner = out.index("--eval_size"), out.index("how it is run (options of every study):")
    assert study < out.index("model options:") < runner < out.index("--grid") < out.index("--executor")
    assert runner < out.index("--workers")


def test_a_switch_that_is_on_says_what_its_flag_does(cli: Cli) -> None:
    _, out, _ = cli("perplexity", "--help")
    _, _, switch = out.partition("--no_context_sweep ")
    assert "(on by default; this turns it off)" in " ".join(switch.split()[:40])
    assert "default: True" not in out


@pytest.mark.parametrize("words", [["expressivity", "--models"], ["sae", "--coders"], ["perplexity", "--methods"]])
def test_a_flag_that_names_no_plug_in_is_an_error(words: list[str], cli: Cli) -> None:
    code, _, err = cli(*words)
    assert code == 2 and f"{words[1]} names none" in err


def test_the_list_of_claims_says_how_long_each_takes(cli: Cli) -> None:
    code, out, _ = cli("reproduce")
    took = shipped.durations()
    assert code == 0 and out.count("  takes: ") == len(known_claims())
    assert took and all(entry["seconds"] > 0 and entry["runs"] > 0 for entry in took.values())


def test_a_number_that_is_not_finite_is_named(toy: Any, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x=2").write_text("nan")
    code, _, err = cli("toy", "--xs", "2", "--seeds", "0", "--trap", tmp_path, "--out", tmp_path / "out")
    assert code == 1 and "diverged: toy" in err and "not finite: the metric square" in err


def test_a_study_may_name_what_was_not_finite(toy: Any, tmp_path: Path) -> None:
    (run, *_) = toy().plan()
    stored: Record = Store(tmp_path).commit(Outcome(run, {"a": {"b": float("inf")}}, diverged="the loss at step 3"))
    assert stored.status == "diverged" and stored.error == "not finite: the loss at step 3 and the metric a.b"
    assert json.loads((Store(tmp_path).folder(run) / "record.json").read_text())["metrics"] == {"a": {"b": None}}


def test_bars_of_other_libraries_stay_out_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The conversion of a GGUF file draws bars to standard error, whatever the library's own switch says."""
    from assay.data import smollm2

    def loud(*_: Any, **__: Any) -> Any:
        print("Converting and de-quantizing GGUF tensors...: 100%|##########| 272/272", file=sys.stderr)
        raise OSError("no such file")

    reader = SimpleNamespace(from_pretrained=loud)
    names = {"AutoModelForCausalLM": reader, "AutoTokenizer": reader, "LlamaConfig": None, "LlamaForCausalLM": None}
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(**names))
    for name in ("gguf", "accelerate"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    with pytest.raises(OSError, match="no such file"):
        smollm2.convert(tmp_path / "model.gguf", tmp_path / "cache" / "hf")
    assert "100%" not in capsys.readouterr().err
