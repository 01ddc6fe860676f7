"""A model folder may carry Python code, and nothing here ever runs it: not by a question, not by `yes |`."""

import io
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.core.errors import UserError
from assay.data import language_model

LOADERS = (
    language_model.load_model,
    language_model.outline,
    language_model.load_tokenizer,
    language_model.load_config,
)
SOURCE = Path(__file__).parents[2] / "src" / "assay"


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A folder whose code would leave the file `ran`; a person, or a pipe, that says yes to everything."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 100))
    monkeypatch.setattr("builtins.input", lambda *_: "y")

    def write(model_type: str) -> Path:
        folder = tmp_path / "hostile"
        folder.mkdir()
        own = {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M", "AutoTokenizer": ["own.T", None]}
        sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
        sizes |= {"num_attention_heads": 1, "num_key_value_heads": 1}
        (folder / "config.json").write_text(json.dumps({"model_type": model_type, "auto_map": own} | sizes))
        tokenizer = {"tokenizer_class": "T", "auto_map": {"AutoTokenizer": own["AutoTokenizer"]}}
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
        (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
        (folder / "model.safetensors").write_bytes(b"")
        return folder

    return write


@pytest.mark.parametrize("load", LOADERS, ids=lambda load: load.__name__)
def test_a_model_that_needs_its_own_code_is_refused_in_one_line(
    load: Callable[..., object], hostile: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"comes with Python code of its own, which assay never runs") as refused:
        load(str(hostile("unheard_of")))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "ran").exists()


def test_a_known_architecture_is_taken_from_the_library_whatever_code_lies_beside_it(
    hostile: Callable[..., Path], tmp_path: Path
) -> None:
    folder = str(hostile("llama"))
    assert type(language_model.outline(folder)).__module__.startswith("transformers.models.llama")
    with pytest.raises(UserError, match="cannot load the model"):  # the tokenizer's class is known nowhere
        language_model.load_tokenizer(folder)
    assert not (tmp_path / "ran").exists()


def test_the_command_refuses_it_before_anything_is_computed(
    cli: Callable[..., tuple[int, str, str]], hostile: Callable[..., Path], tmp_path: Path
) -> None:
    words = ("--datasets", "pydoc", "--context-lengths", "64", "--cpu-only", "--yes", "--out", tmp_path / "out")
    code, _, err = cli("perplexity", "--model", hostile("unheard_of"), *words)
    assert code == 2 and "which assay never runs" in err.splitlines()[-1]
    assert not (tmp_path / "ran").exists() and not (tmp_path / "out" / ".store").exists()


def test_every_loading_says_that_no_code_is_trusted() -> None:
    """Left unsaid, transformers asks: a new place that forgets it is found here."""
    calls = [
        (path.name, call)
        for path in SOURCE.rglob("*.py")
        for call in re.findall(r"Auto\w+\.from_\w+\((?:[^()]|\([^()]*\))*\)", path.read_text())
    ]
    assert len(calls) >= 6
    said = ("NO_CODE", "trust_remote_code=False", "**where")
    assert [call for call in calls if not any(word in call[1] for word in said)] == []


def test_data_sets_are_loaded_by_a_library_that_runs_no_scripts() -> None:
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
    (wanted,) = (word for word in project["optional-dependencies"]["lm"] if word.startswith("datasets"))
    assert int(wanted.partition(">=")[2]) >= 4
