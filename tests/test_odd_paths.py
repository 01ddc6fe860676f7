"""A word that no path can be is refused in one line by every command that takes a path: no traceback."""

from collections.abc import Callable
from pathlib import Path

import pytest

import assay
from assay.core.errors import UserError

TOY = Path(__file__).parent / "toy.py"
WORDS = {
    "too long": "x" * 300,
    "too long a path": "/".join(["folder"] * 1000),
    "in a file": "a.txt/inside",
    "a NUL": "a\0b",
    "a surrogate": "\ud800",
}
RUN = ["toy", "--plugin", str(TOY), "--seeds", "0", "--executor", "serial"]
LM = ["--methods", "dense", "--sparsity-levels", "0", "--context-lengths", "16", "--dry-run"]
COMMANDS: dict[str, list[str]] = {
    "run --out": [*RUN, "--out"],
    "run --plugin": ["toy", "--plugin"],
    "show": ["show", "--out"],
    "show an id": ["show", "ab", "--out"],
    "report": ["report", "--out"],
    "rm": ["rm", "--status", "failed", "--out"],
    "check": ["check"],
    "check a file": ["check", "{}.py"],
    "reproduce --file": ["reproduce", "--list", "--file"],
    "icl eval --model": ["icl", "eval", "--dry-run", "--model", "{}.py:answer"],
    "icl eval --model, a module": ["icl", "eval", "--dry-run", "--model", "{}:answer"],
    "modular similarity": ["modular", "similarity"],
    "modular similarity, a file": ["modular", "similarity", "{}.safetensors"],
    "modular similarity, a manifest": ["modular", "similarity", "{}.json"],
    "modular frequencies": ["modular", "frequencies"],
    "modular sweep --save": ["modular", "sweep", "--dry-run", "--save", "{}.safetensors"],
    "perplexity --model": ["perplexity", "--datasets", "pydoc", *LM, "--model"],
    "perplexity --model, a folder": ["perplexity", "--datasets", "pydoc", *LM, "--model", "./{}"],
    "perplexity --datasets": ["perplexity", "--model", "smollm2-135m", *LM, "--datasets"],
    "perplexity --config": ["perplexity", "--dry-run", "--config"],
    "sae --data_dir": ["sae", "--dry-run", "--data_dir"],
    "sae --config": ["sae", "theorem", "--dry-run", "--config"],
    "sae figures": ["sae", "figures", "--figure", "2", "--results_dir"],
    "sae figures of checkpoints": ["sae", "figures", "--figure", "5", "--results_dir"],
    "sae activations, the model": ["sae", "--dry-run", 'data:activations:model="{}"'],
    "sae activations, the text": ["sae", "--dry-run", 'data:activations:text="{}"'],
}
ACTIVATIONS = {"sae activations, the model", "sae activations, the text"}
MAY_PASS = {"perplexity --model", "sae --data_dir", *ACTIVATIONS}
"""A plan asks no hub for a name, and no folder for data that comes with assay."""


# A name on the hub is printed with the plan; pytest's stream, unlike the command's own, cannot take half a pair.
PAIRS = [(c, kind) for c in COMMANDS for kind in WORDS if (c, kind) != ("perplexity --model", "a surrogate")]


@pytest.mark.parametrize(("command", "kind"), PAIRS)
def test_a_word_that_no_path_can_be_is_one_line(
    cli: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, command: str, kind: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Path("a.txt").write_text("words")
    before = sorted(Path().iterdir())
    words = COMMANDS[command]
    filled = [word.replace("{}", WORDS[kind]) for word in words]
    code, _, err = cli(*(filled if filled != words else [*words, WORDS[kind]]))
    assert code in ((0, 2) if command in MAY_PASS else (2,)) and "Traceback" not in err, err[-600:]
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize("kind", WORDS)
def test_the_same_from_python(kind: str) -> None:
    Path("a.txt").write_text("words")
    with pytest.raises(UserError, match="no results folder"):
        assay.load(WORDS[kind])
