"""A word that no path can be is refused in one line by every command that takes a path: no traceback."""

from collections.abc import Callable
from pathlib import Path

import pytest

import assay
from assay.core.errors import UserError
from assay.core.files import check_writable

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


UNWRITABLE = {
    "a study": ["toy", "--plugin", str(TOY), "--executor", "serial", "--out", "{}"],
    "a plan": ["toy", "--plugin", str(TOY), "--dry-run", "--out", "{}"],
    "sae theorem": ["sae", "theorem", "--output", "{}/figure.pdf"],
    "sae ablation": ["sae", "ablation", "--dataset", "digits", "--output_dir", "{}"],
    "sae figures": ["sae", "figures", "--output_dir", "{}"],
    "modular sweep": ["modular", "sweep", "--seeds", "0", "--save", "{}/sweep.pkl"],
    "modular similarity": ["modular", "similarity", "sweep.pkl", "--out", "{}"],
    "perplexity": ["perplexity", "--quick-test", "--offline", "--output-dir", "{}"],
    "card": ["card", "gru", "--out", "{}"],
    "card --ship": ["card", "gru", "--ship", "{}"],
    "card submit": ["card", "submit", "my_mixer.py", "{}"],
    "card submit --out": ["card", "submit", "my_mixer.py", "folder", "--out", "{}"],
    "reproduce": ["reproduce", "sae-theorem", "--out", "{}"],
    "findings --page": ["findings", "--page", "{}/page.md"],
    "findings --ship": ["findings", "--ship", "{}"],
    "report": ["report", "--out", "{}"],
    "report --site": ["report", "--site", "{}"],
}
MIXER = """
from dataclasses import dataclass
from assay.mixers import mixers
from assay.mixers.gru import GRU

@mixers.register("my_mixer")
@dataclass(frozen=True, kw_only=True)
class Mine(GRU):
    "Mine."
"""


@pytest.mark.parametrize("command", UNWRITABLE)
def test_2_5_what_cannot_be_written_is_noticed_before_anything_is_computed(
    cli: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("the work begins")

    for place in ("core.drive.Drive.__call__", "contracts.base.check", "pages._stored", "command.findings.judged"):
        monkeypatch.setattr(f"assay.{place}", started)
    Path("file").write_text("no folder")
    Path("my_mixer.py").write_text(MIXER)
    before = sorted(Path().iterdir())
    code, _, err = cli(*(word.replace("{}", "file/inside") for word in UNWRITABLE[command]))
    assert code == 2 and "file/inside" in err and err.count("\n") == 1, err
    assert sorted(Path().iterdir()) == before


def test_2_5_a_folder_is_tried_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())
    for place in (Path("/proc/assay"), Path("/dev/null/folder")):
        with pytest.raises(UserError, match="cannot write"):
            check_writable(place)
