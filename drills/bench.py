"""The tools of every drill: the real command as processes, a watch on the store, and the comparison at the end.

Nothing here imports assay: a store is read as the files it is, and processes are found through /proc, so that a fault
of the code under test cannot hide itself.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOKEN = "ASSAY_DRILL"
"""An environment variable that every process of a drill inherits, to find those left behind at the end."""

Contents = dict[str, tuple[str, str, tuple[tuple[str, str], ...]]]


class Cannot(Exception):
    """This machine does not allow the drill."""


class Missed(AssertionError):
    """A promise that a drill saw broken."""


def expect(kept: object, what: str) -> None:
    if not kept:
        raise Missed(what)


@dataclass(frozen=True)
class Ended:
    """A finished command."""

    code: int
    out: str
    err: str

    def expect(self, *codes: int, said: str = "") -> "Ended":
        """Expect one of these exit codes, no traceback, and the words `said` among the messages."""
        tail = " | ".join(self.err.strip().splitlines()[-3:])
        expect(self.code in codes, f"exit code {self.code}, not {' or '.join(map(str, codes))}: {tail}")
        expect("Traceback" not in self.out + self.err, f"a traceback: {tail}")
        expect(said in self.err, f"'{said}' was not said: {tail}")
        return self

    def expect_heeded(self, number: int) -> "Ended":
        """Expect the exit of a study's command that was sent SIGINT or SIGTERM: as it promises from its plan to its
        last message; while Python starts or exits, also as the signal does by default."""
        ours, pythons, word = {
            signal.SIGINT: (130, -signal.SIGINT, "interrupted"),
            signal.SIGTERM: (143, -signal.SIGTERM, "terminated"),
        }[signal.Signals(number)]
        if " planned, " not in self.err:
            expect(self.code in (ours, pythons, 1), f"signal {number} before the plan: exit code {self.code}")
            return self
        if " files in " in self.err:
            expect(self.code in (0, ours, pythons), f"signal {number} after the last words: exit code {self.code}")
            return self
        return self.expect(ours, said=f"assay: {word}")


@dataclass(frozen=True)
class Drill:
    """A drill's result: how often what was done, and over how many runs."""

    done: dict[str, int]
    runs: int


@dataclass
class Bench:
    """A folder and the processes of one drill."""

    root: Path
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self, *words: str | Path, wrap: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start `assay WORDS` in a session of its own."""
        command = [*wrap, sys.executable, "-m", "assay", *map(str, words)]
        logs = {"stdout": self._log("out"), "stderr": self._log("err")}
        environment = os.environ | {TOKEN: self.token, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, start_new_session=True, env=environment, text=True, **logs)
        process.logs = logs  # type: ignore[attr-defined]
        return process

    def finish(self, process: subprocess.Popen[str], seconds: float = 900) -> Ended:
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise Missed(f"a command hung for {seconds:.0f} s: {' '.join(map(str, process.args))[-100:]}") from None
        texts = {name: Path(log.name).read_text(errors="replace") for name, log in process.logs.items()}  # type: ignore[attr-defined]
        for log in process.logs.values():  # type: ignore[attr-defined]
            log.close()
        return Ended(code, texts["stdout"], texts["stderr"])

    def run(self, *words: str | Path, wrap: Sequence[str] = ()) -> Ended:
        return self.finish(self.start(*words, wrap=wrap))

    def processes(self, *, but: Sequence[int] = ()) -> list[int]:
        """The living processes that inherited this drill's token."""
        mark = f"{TOKEN}={self.token}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                alive = (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
                if alive and mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except (OSError, IndexError):  # it ended meanwhile
                continue
        return [pid for pid in found if pid not in but]

    def workers(self) -> list[int]:
        """The living worker processes of the `local` executor."""
        return [pid for pid in self.processes() if "assay.core.worker" in commandline(pid)]

    def expect_no_process_left(self, seconds: float = 10) -> None:
        end = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(0.1)
        named = [" ".join(commandline(pid))[-60:] for pid in left]
        for pid in left:
            kill(pid)
        expect(not left, f"{len(left)} processes left: {named}")

    def _log(self, name: str) -> Any:
        return tempfile.NamedTemporaryFile("w", dir=self.root, prefix=f"{name}-", delete=False)


@contextmanager
def bench() -> Iterator[Bench]:
    root = Path(tempfile.mkdtemp(prefix="assay-drill-"))
    made = Bench(root)
    try:
        yield made
    finally:
        for pid in made.processes():
            kill(pid)
        shutil.rmtree(root, ignore_errors=True)


def commandline(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def held_files() -> set[int]:
    """The inodes of files on which some process holds a lock."""
    return {int(line.split()[-3].rpartition(":")[2]) for line in Path("/proc/locks").read_text().splitlines()}


def wait_for(condition: Callable[[], object], what: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        expect(time.monotonic() < end, f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.05)


def records(out: Path) -> dict[str, Path]:
    """study/id -> its folder, for every run that has a record."""
    found = (out / ".store").glob("*/*/record.json")
    return {f"{path.parent.parent.name}/{path.parent.name}": path.parent for path in found}


def checkpoints_in(out: Path) -> list[Path]:
    return list((out / ".store").glob("*/*/checkpoint"))


def contents(out: Path) -> Contents:
    """Read what must not depend on a disturbance: status, metrics and the bytes of every artifact, by run."""
    found: Contents = {}
    for name, folder in records(out).items():
        data = json.loads((folder / "record.json").read_text())
        metrics = json.dumps(data["metrics"], sort_keys=True)
        sums = tuple(
            (artifact, hashlib.sha256((folder / artifact).read_bytes()).hexdigest()) for artifact in data["artifacts"]
        )
        found[name] = (data["status"], metrics, sums)
    return found


def expect_same(found: Contents, wanted: Contents) -> None:
    missing, more = wanted.keys() - found.keys(), found.keys() - wanted.keys()
    expect(not missing and not more, f"{len(missing)} records missing, {len(more)} too many")
    other = [name for name in wanted if found[name] != wanted[name]]
    expect(not other, f"{len(other)} records differ from the undisturbed run's: {other[:3]}")


@dataclass
class Watch:
    """Polls a store: a record that is written a second time was computed twice."""

    out: Path
    seen: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    _last: dict[str, tuple[int, int]] = field(default_factory=dict)

    def look(self) -> None:
        for name, folder in records(self.out).items():
            try:
                stat = (folder / "record.json").stat()
                version = stat.st_ino, stat.st_mtime_ns
                if self._last.get(name) == version:
                    continue
                data = json.loads((folder / "record.json").read_text())
            except (OSError, ValueError):  # being replaced
                continue
            self._last[name] = version
            if data["status"] != "failed":  # a failed run is to be tried again
                self.seen.setdefault(name, set()).add(version)

    @contextmanager
    def looking(self) -> Iterator["Watch"]:
        over = threading.Event()

        def go_on() -> None:
            while not over.wait(0.05):
                self.look()

        thread = threading.Thread(target=go_on, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join()
            self.look()

    @property
    def twice(self) -> list[str]:
        return [name for name, versions in self.seen.items() if len(versions) > 1]

    def expect_once(self) -> None:
        expect(not self.twice, f"{len(self.twice)} runs were computed twice: {self.twice[:3]}")
