"""Progress: a bar on a terminal; elsewhere a line per stored run, and one of a run that has been silent for long."""

import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from assay.command.cli import main
from assay.core.drive import Event
from assay.core.run import Record, Run
from assay.core.study import Progress
from assay.report import progress, time_left

TOY = Path(__file__).parent / "toy.py"
SLOW = Run("toy", {"x": 1}, 0, {})
PLAN = [SLOW, *(Run("toy", {"x": x}, 0, {}) for x in range(2, 13))]


def test_a_run_off_a_terminal_soon_says_how_far_it_is_and_again_after_each_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = 0.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock))
    monkeypatch.setattr(time_left, "time", SimpleNamespace(monotonic=lambda: clock))

    def lines_at(seconds: float, event: Event) -> list[str]:
        nonlocal clock
        clock = seconds
        watch(event)
        return capsys.readouterr().err.splitlines()

    def at_work(done: int, **metrics: float) -> Event:
        return Event("progress", SLOW, progress=Progress(SLOW, done, 4000, metrics))

    with progress.shown({SLOW.id: "toy x=1"}, PLAN) as watch:
        assert lines_at(2.9, at_work(1)) == []
        assert lines_at(3.0, at_work(2)) == ["[ 0/12     3 s] 0.05 % of toy x=1"]
        assert lines_at(12.9, at_work(900, loss=0.41)) == [], "a line has just been there"
        told = "28 % of toy x=1 (about 40 s left)  loss 0.41"  # at 1100 of 4000 steps in 15 s
        assert lines_at(18.0, at_work(1100)) == [f"[ 0/12    18 s] {told}"], "the last numbers stay"
        assert lines_at(29.0, at_work(2000)) == []
        stored = Event("stored", SLOW, record=Record(SLOW, "done", {"loss": 0.25}))
        assert lines_at(29.5, stored) == ["[ 1/12    30 s] done toy x=1  loss 0.25"]
        assert lines_at(44.0, at_work(3000)) == [], "a stored run breaks the silence too"
        assert lines_at(50.0, at_work(4000, loss=0.5)) == ["[ 1/12    50 s] 100 % of toy x=1  loss 0.5"]
    with progress.shown({SLOW.id: "toy x=1"}, PLAN, quiet=True) as watch:
        assert lines_at(100.0, at_work(10)) == []


LONG = "toy " + " ".join(f"part.option_{n}={n}" for n in range(30))


def finished() -> Event:
    return Event("stored", SLOW, record=Record(SLOW, "done", {"loss": 0.25}))


@pytest.mark.parametrize(("terminal", "widest"), [(True, 59), (False, 600)], ids=["on a terminal", "in a file"])
def test_lines_are_cut_to_the_width_of_a_terminal_and_whole_in_a_file(
    terminal: bool, widest: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard output goes to a file, as in `assay card my_mixer.py > card.txt`."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with progress.shown({SLOW.id: LONG}, PLAN) as watch:
        watch(finished())
    (line,) = capsys.readouterr().err.splitlines()
    assert len(line) <= widest and (LONG in line) is not terminal


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> str:
    """What a terminal is sent while something acts."""
    reading, writing = os.openpty()
    chunks: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # as reading ends once nobody has the terminal open for writing
            while chunk := os.read(reading, 65536):
                chunks.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(writing, "w", buffering=1) as terminal, monkeypatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.setattr(sys, "stdout", terminal)
        patch.setattr(sys, "stderr", terminal)
        act()
    reader.join()
    os.close(reading)
    return b"".join(chunks).decode()


@pytest.mark.skipif(os.name != "posix", reason="a pseudo-terminal is needed")
def test_a_bar_with_the_time_left_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["toy", "--plugin", str(TOY), "--executor", "serial", "--out", str(tmp_path)]
    text = on_a_terminal(monkeypatch, lambda: main(words))
    assert "6/6" in text and "left" in text and "\x1b[" in text


@pytest.mark.skipif(os.name != "posix", reason="a pseudo-terminal is needed")
@pytest.mark.parametrize(("part", "said"), [("round 1 of 5", "left ? of round 1 of 5"), ("", "left ?")])
def test_a_bar_says_what_the_time_left_is_of(part: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")

    def act() -> None:
        with progress.shown({SLOW.id: LONG}, PLAN, part=part) as watch:
            watch(Event("progress", SLOW, progress=Progress(SLOW, 1, 3000)))

    shown = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in on_a_terminal(monkeypatch, act).splitlines()]
    assert any(f" {said} toy " in line for line in shown), shown
    assert max(map(len, shown)) <= 100


def test_a_long_name_is_cut_in_its_middle_so_that_count_and_time_stay() -> None:
    name = "icl selective_copying my_mixer swiglu task.input_seq_len=32 optimizer.lr=0.03 seed=1  accuracy 0.26"
    assert progress.cut(name, 200) == name and progress.cut(name, 0) == ""
    for room in (1, 2, 3, 40, len(name) - 1):
        assert len(progress.cut(name, room)) == room
    assert progress.cut(name, 40) == f"{name[:13]}…{name[-26:]}"
