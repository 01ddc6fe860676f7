"""A reader that leaves (`| head -3`): tables may be lost, but what a command computes is computed, stored and told."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pytest

from assay.command import cli
from assay.command.cli import main
from assay.core.store import Store

TOY = Path(__file__).parent / "toy.py"


@pytest.fixture
def closed() -> Callable[[], TextIO]:
    """A stream whose reader has left."""

    def open_closed() -> TextIO:
        reading, writing = os.pipe()
        os.close(reading)
        return os.fdopen(writing, "w", buffering=1)

    return open_closed


def sweep(out: Path, *words: str) -> list[str]:
    return ["toy", "--plugin", str(TOY), "--executor", "serial", "--seeds", "0", "--out", str(out), *words]


def stored(out: Path) -> list[tuple[int, str]]:
    return sorted((record.run.options["x"], record.status) for record in Store(out).records())


@pytest.fixture
def two_commands(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line that stands for two, one after the other."""
    both = classmethod(lambda cls, words: [[*words, "--xs", "1"], [*words, "--xs", "2"]])
    monkeypatch.setattr(toy, "commands", both)


def test_a_sweep_goes_on_without_a_reader_and_says_so(
    two_commands: None, tmp_path: Path, closed: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stdout", closed())
    assert main(sweep(tmp_path)) == 141
    assert stored(tmp_path) == [(1, "done"), (2, "done")]
    assert "nobody read the tables to their end. Every run is stored" in capsys.readouterr().err


def test_a_failed_run_is_named_although_nobody_reads_the_tables(
    tmp_path: Path, closed: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "x=2").write_text("raise always")
    monkeypatch.setattr(sys, "stdout", closed())
    assert main(sweep(tmp_path, "--trap", str(tmp_path))) == 141
    assert stored(tmp_path) == [(1, "done"), (2, "failed"), (3, "done")]
    assert "ValueError: trapped at 2" in capsys.readouterr().err


def test_a_sweep_goes_on_when_nobody_reads_its_progress(
    two_commands: None, tmp_path: Path, closed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x=1").write_text("print always")
    monkeypatch.setattr(sys, "stdout", closed())
    monkeypatch.setattr(sys, "stderr", closed())
    assert main(sweep(tmp_path, "--trap", str(tmp_path))) == 141
    assert stored(tmp_path) == [(1, "done"), (2, "done")]


def test_a_worker_whose_plugin_prints_to_nobody_goes_on(tmp_path: Path) -> None:
    (tmp_path / "x=1").write_text("print always")
    local = ["--executor", "local", "--workers", "1", "--device", "cpu"]
    words = sweep(tmp_path, "--trap", str(tmp_path), "--xs", "1", *local)
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run([sys.executable, "-m", "assay", *words], stdout=writing, stderr=writing, check=False)
    os.close(writing)
    assert ran.returncode == 141 and stored(tmp_path) == [(1, "done")]


def test_a_listing_without_a_reader_stays_quiet(
    tmp_path: Path, closed: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert main(sweep(tmp_path)) == 0
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdout", closed())
    assert main(["show", "--out", str(tmp_path)]) == 0
    assert main(sweep(tmp_path, "--dry-run")) == 0
    assert capsys.readouterr().err == ""


def test_a_broken_pipe_elsewhere_is_not_taken_for_a_reader_that_left(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def report(self: Any, records: Any, out: Any) -> None:
        raise BrokenPipeError("of something else")

    monkeypatch.setattr(toy, "report", report)
    assert main(sweep(tmp_path)) == 1
    assert "could not be reported: BrokenPipeError: of something else" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_to_a_full_disk_is_one_message() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "assay", "list"]
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ran.returncode == 2 and ran.stderr == "assay: cannot write to <stdout>: No space left on device.\n"


def test_an_interruption_that_a_library_turns_into_another_error_is_an_interruption(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def report(self: Any, records: Any, out: Any) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        except KeyboardInterrupt:
            raise RecursionError("made of it by a library") from None

    monkeypatch.setattr(toy, "report", report)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(sweep(tmp_path)) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert "assay: interrupted; every finished run is stored" in capsys.readouterr().err


def test_a_signal_that_comes_while_handlers_are_set_up_ends_the_command_as_any_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def interrupted(received: list[int]) -> Iterator[None]:
        received.append(signal.SIGTERM)
        raise KeyboardInterrupt
        yield

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(cli, "_noted_signals", interrupted)
    try:
        assert main(["list"]) == 143
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "terminated; every finished run is stored" in capsys.readouterr().err


def test_an_interrupt_while_a_class_is_made_leaves_the_exit_code_as_promised(tmp_path: Path) -> None:
    """Dataclasses exec text; after an interrupt there `python -m` ends by SIGINT, though it was caught."""
    (tmp_path / "mine.py").write_text(
        "exec('import os, signal; os.kill(os.getpid(), signal.SIGTERM); import time; time.sleep(9)')"
    )
    words = [sys.executable, "-m", "assay", "--plugin", str(tmp_path / "mine.py"), "list"]
    ended = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended.returncode == 143, ended.stderr
    assert "assay: terminated" in ended.stderr
