"""What `assay perplexity` refuses, asks and is given: flags, texts and contexts."""

import json
import os
import shutil

import pytest
from perplexity_commands import PLACE, words

from assay.api import configure
from assay.attention.base import Budget
from assay.core.errors import UserError
from assay.studies.perplexity import generate_summary_table
from assay.studies.perplexity.perplexity import Perplexity


def test_the_copy_probe_is_a_dataset(tiny, cli, tmp_path):
    given = [
        "perplexity",
        "--model",
        tiny,
        "--datasets",
        "copy",
        "--methods",
        "dense",
        "window",
        "--context-lengths",
        "64",
    ]
    assert (
        cli(*given, "--no-context-sweep", "--no-sparsity-sweep", "--budgets", "16", *PLACE, "--out", tmp_path)[0] == 0
    )
    document = json.loads((tmp_path / "perplexity" / "perplexity_latest.json").read_text())
    cell = document["results"]["copy"]["window"]["budget_sweep"]["16"]
    assert list(cell["cross_entropy_by_distance"]) == ["16", "32"] and cell["num_tokens"] == 2 * 8 * 15
    assert cell["word_perplexity"] is None


def test_the_defaults_of_the_prefix_protocol_run_under_it():
    assert {method.name for method in Perplexity(protocol="prefix").chosen()} == {
        "dense", "h2o", "streaming_llm", "window",
    }  # fmt: skip
    assert "cab_v4" in {method.name for method in Perplexity().chosen()}


def test_flags_beside_the_demo_are_heard():
    demo = configure(Perplexity, "demo", {})
    assert demo.points() == [(80, Budget(slots=20))]
    sparser = configure(Perplexity, "demo", {"sparsity_levels": (0.5,)})
    assert sparser.points() == [(80, Budget(sparsity=0.5)), (80, Budget(slots=20))]


def test_a_context_that_is_not_measured_is_not_the_longest():
    given = {"context_lengths": (512, 768, 4096), "fixed_context_length": 512, "context_sweep": False}
    assert Perplexity(**given, max_length=512).longest == 512


def test_mistakes_are_one_line(tiny, text, cli, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(tiny, bare, ignore=shutil.ignore_patterns("*.safetensors"))
    for more, said in (
        (["--max-length", "32"], "a context of 64 is over --max-length 32"),
        (["--datasets", "no-such"], "no dataset 'no-such'"),
        (["--model", "./no-such"], "cannot load the model './no-such': there is no such folder"),
        (["--sparsity-levels", "1.5"], "at least 0 and below 1"),
        (["--model", tmp_path / "nowhere"], "cannot load the model"),
        (["--context-lengths", "512"], "has 512 tokens"),
        (["--context-lengths", "1024"], "has 512 positions (max_position_embeddings), fewer than a context of 1024"),
        (["--context-lengths", "48", "64"], "48 does not divide the longest, 64"),
        (["--dtype", "float8"], "--dtype float8: choose auto, float16"),
        (["--model", bare], "the folder has no file of weights"),
        (["--protocol", "prefix"], "cab_v4:block_size=8 selects anew for each query"),
        (["--protocol", "prefix", "--positions", "cache"], "--positions cache is defined for the online protocol"),
        (["--no-context-sweep", "--no-sparsity-sweep"], "nothing to measure"),
    ):
        code, _, err = cli(*words(tiny, text, tmp_path / "out"), *more)
        assert code == 2 and said in err and "Traceback" not in err, (more, err)


def test_a_hub_that_does_not_answer_is_one_line_that_names_offline(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody is there
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    tries = []

    def fetch(study, runs):
        tries.append(os.environ["HF_HUB_OFFLINE"])
        raise UserError("cannot load the model. Without the hub: --quick-test --offline.")

    monkeypatch.setattr(Perplexity, "_fetch", fetch)
    code, _, err = cli("perplexity", "--quick-test", "--quiet", "--out", tmp_path)
    assert code == 2 and tries == ["1"], "the hub's libraries do not ask again"
    assert "http://127.0.0.1:9 did not answer within 5 s" in err and "--offline" in err and len(err.splitlines()) == 1


@pytest.mark.usefixtures("undrawn")
def test_refusals_read_as_refused_while_they_come_and_afterwards(tiny, text, cli, tmp_path):
    word = "streaming_llm:num_sink_tokens=20"
    given = words(tiny, text, tmp_path, "--max-samples", "2", "--context-lengths", "64", methods=[word])
    given.remove("--quiet")
    _, _, err = cli(*given)
    lines = [line for line in err.splitlines() if "streaming_llm" in line]
    refused = [line for line in lines if "fewer than its 20 sinks" in line]
    assert len(refused) == 2 and all("] refused perplexity" in line for line in refused)
    assert [line for line in lines if "] done perplexity" in line and "cross_entropy" in line]
    assert cli("show", "--out", tmp_path)[1].count("refused") == 2
    document = json.loads((tmp_path / "perplexity" / "perplexity_latest.json").read_text())
    cell = document["results"]["articles.txt"][word]["sparsity_sweep"]["0.8"]
    assert cell["perplexity"] is None and "fewer than its 20 sinks" in cell["error"] and not cell["failed"]
    assert "| - | streaming_llm | - |" in generate_summary_table(document)


def test_one_context_is_no_sweep(tiny, text, cli, tmp_path):
    """It is where sparsities and budgets are measured, and nothing else is run."""
    alone = Perplexity(context_lengths=(512,), sparsity_levels=(0.0, 0.5))
    assert alone.points() == [(512, Budget(sparsity=0.0)), (512, Budget(sparsity=0.5))]
    assert alone.sweeps().context_lengths == ()
    slots = Perplexity(context_lengths=(512,), sparsity_sweep=False, budgets=(64,))
    assert slots.points() == [(512, Budget(slots=64))]
    only = Perplexity(context_lengths=(512,), sparsity_sweep=False, fixed_sparsity=0.7)
    assert only.points() == [(512, Budget(sparsity=0.7))], "unless it is all there is to measure"
    assert len(Perplexity(context_lengths=(256, 512)).points()) == 3


@pytest.mark.usefixtures("undrawn")
def test_each_text_has_its_own_number_of_documents(tiny, text, cli, tmp_path):
    other = tmp_path / "other.txt"
    shutil.copy(text, other)
    base = ["perplexity", "--model", tiny, "--datasets", text, other, "--methods", "dense", "--context-lengths", "64"]
    assert cli(*base, "--max-samples", "3", f"{other}=5", *PLACE, "--out", tmp_path)[0] == 0
    found = json.loads((tmp_path / "perplexity" / "perplexity_latest.json").read_text())["results"]
    used = {name: found[name]["dense"]["sparsity_sweep"]["0.0"]["num_samples"] for name in found}
    assert used == {"articles.txt": 3, "other.txt": 5}
    for more, said in (
        (["0"], "a number of at least 1"),
        (["some"], "a number of at least 1"),
        (["othr.txt=3"], "'othr.txt' is none of the texts"),
        (["3", "4"], "a number for all texts twice"),
    ):
        code, _, err = cli(*base, "--max-samples", *more, *PLACE, "--out", tmp_path)
        assert code == 2 and said in err, err


@pytest.mark.usefixtures("undrawn")
def test_a_terminal_is_asked_before_a_long_run_unless_told_yes(tiny, text, cli, tmp_path, monkeypatch):
    given = words(tiny, text, tmp_path, "--max-samples", "1", "--no-context-sweep", methods=["dense"])
    given.remove("--quiet")
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda: "n")
    code, _, err = cli(*given)
    assert code == 2 and "Continue? [y/N]" in err and "nothing was started" in err
    code, _, err = cli(*given, "--yes")
    assert code == 0 and "Continue" not in err


@pytest.mark.usefixtures("undrawn")
def test_a_text_of_the_data_folder_has_one_name_on_every_machine(tiny, text, cli_json, cli, tmp_path, monkeypatch):
    """It is planned where it is absent too, since a claim finds its records there; it is not run."""
    folder = tmp_path / "data" / "wikitext-103"
    folder.mkdir(parents=True)
    shutil.copy(text, folder / "test.txt")
    base = ["perplexity", "--model", tiny, "--datasets", "wikitext-103/test.txt", "--methods", "dense"]
    base += ["--context-lengths", "64", "--max-samples", "2", *PLACE, "--out", tmp_path / "out"]
    monkeypatch.chdir(tmp_path / "data" / "wikitext-103")
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    code, _, err = cli(*base)
    assert code == 2 and "the text 'wikitext-103/test.txt'" in err and "Set ASSAY_DATA" in err
    assert len(cli_json(*base, "--dry-run")["rows"]) == 2
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "data"))
    assert cli(*base)[0] == 0
    document = json.loads((tmp_path / "out" / "perplexity" / "perplexity_latest.json").read_text())
    assert list(document["results"]) == ["wikitext-103/test.txt"]


def test_only_what_the_model_s_window_can_change_has_another_id(tiny, tmp_path):
    """Sinks with positions inside the cache, on a model that has a sliding window, or may have one."""
    slides = tmp_path / "slides"
    shutil.copytree(tiny, slides)
    config = json.loads((slides / "config.json").read_text())
    (slides / "config.json").write_text(json.dumps(config | {"sliding_window": 40}))

    def marked(model, **more):
        study = configure(Perplexity, "demo", {"model": str(model), **more})
        lanes = {method.name: study.lane(method, Budget(slots=20)) for method in study.chosen()}
        return {name for name, lane in lanes.items() if "model_window" in lane}

    in_cache = {"positions": "cache", "methods": ("dense", "h2o", "streaming_llm", "window")}
    assert marked(slides, **in_cache) == marked("gpt2", **in_cache) == {"streaming_llm"}
    assert marked(tiny, **in_cache) == marked("smollm2-135m", **in_cache) == marked(slides) == set()
