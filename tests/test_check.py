"""`assay check`: every plug-in of a file, by its file alone; and nothing is printed that a person cannot use."""

from pathlib import Path

import pytest

from assay.contracts import base

FILE = """
from dataclasses import dataclass
from torch import nn
from assay.encoders import encoders
from assay.encoders.base import Encoder
from assay.state_mixers import state_mixers
from assay.state_mixers.base import StateMixer

class Last(nn.Module):
    def __init__(self, d_in, d_code):
        super().__init__()
        self.code = nn.Linear(d_in, d_code)

    def forward(self, x):
        return self.code(x)[:, -1]

@encoders.register("last")
@dataclass(frozen=True, kw_only=True)
class LastToken(Encoder):
    aliases = ("LastToken",)
    def build(self, length, d_in, d_code):
        return Last(d_in, d_code)

@state_mixers.register("backwards")
@dataclass(frozen=True, kw_only=True)
class Backwards(StateMixer):
    turn: bool = True
    def build(self, d_model):
        return Turned() if self.turn else nn.Identity()

class Turned(nn.Module):
    def forward(self, x):
        return x.flip(1)
"""


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def test_a_file_alone_has_each_of_its_plug_ins_checked(cli, plugins: Path) -> None:
    code, out, _ = cli("check", plugins)
    assert code == 1 and "encoders: LastToken\n" in out and "state_mixers: backwards\n" in out
    assert "positions mix" in out and out.count("FAIL") == 1


@pytest.mark.parametrize("word", ["last", "LastToken", "backwards:turn=false"])
def test_a_file_and_a_word_are_one_plug_in(cli, plugins: Path, word: str) -> None:
    code, out, _ = cli("check", plugins, word)
    assert code == 0 and "FAIL" not in out and len([line for line in out.splitlines() if line[0] != " "]) == 1


def test_a_kind_and_a_name_are_checked_as_ever(cli, plugins: Path) -> None:
    assert cli("check", "encoders", "last", "--plugin", plugins)[0] == 0
    assert cli("check", "--plugin", plugins, "state_mixers", "backwards")[0] == 1


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("x = 1", [], "has no plug-in"),
        (FILE, ["lst"], "has no plug-in 'lst'. Did you mean 'last'? It has last, LastToken, backwards."),
        (FILE, ["last:heads=2"], "has no option 'heads'"),
        ("import absent_library", [], "line 1: ModuleNotFoundError"),
    ],
)
def test_a_file_that_cannot_be_checked_is_one_line(cli, tmp_path: Path, text: str, words: list[str], said: str) -> None:
    path = tmp_path / "other.py"
    path.write_text(text)
    code, out, err = cli("check", path, *words)
    assert code == 2 and said in err and out == "" and len(err.splitlines()) == 1


def test_a_file_of_studies_alone_says_that_they_promise_nothing(cli) -> None:
    code, _, err = cli("check", Path(__file__).parent / "toy.py")
    assert code == 2 and "studies: toy is left out" in err and "nothing to check" in err


def test_the_help_lists_the_kinds(cli) -> None:
    _, out, _ = cli("check", "--help")
    assert all(kind in out for kind in ("attention", "encoders", "mixers", "sparse_coders", "tasks", "vectors"))
    assert "studies" not in out and "executors" not in out


def test_promises_are_tried_with_the_numerics_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN off among them: torch prints a C++ stack trace the first time that it lacks bf16."""
    import torch

    from assay.encoders import encoders

    seen = []

    def promise(plugin) -> None:
        """It looks around."""
        seen.append(torch._C._get_mkldnn_enabled())

    before = torch._C._get_mkldnn_enabled()
    monkeypatch.setattr(base, "promises", lambda folder: [promise])
    base.check("encoders", encoders.parse("gru"))
    assert seen == [False] and torch._C._get_mkldnn_enabled() is before
