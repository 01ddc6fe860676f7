"""Fault drills on the real command, with real processes: what is stored is never lost, and nothing is done twice.

A run of a drill leaves a file `seed-<seed>.<pid>` when it begins and waits until a file `go-<seed>` is there, so a test
knows which process holds which run, and decides when it may go on. Where there is a file `child`, it starts a child and
leaves `child-<seed>.<pid>`; where there is a file `hold`, it stays in C code for good, where no signal handler runs.
"""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from assay.command.cli import _noted_signals
from assay.core import store as store_module
from assay.core.run import canonical
from assay.core.store import Store

WAIT = """
import os, subprocess, time
from collections import deque
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

FOLDER = Path({folder!r})

def wait(seed):
    (FOLDER / f"seed-{{seed}}.{{os.getpid()}}").touch()
    if (FOLDER / "child").exists():
        child = subprocess.Popen(["sleep", "600"])
        (FOLDER / f"child-{{seed}}.{{child.pid}}").touch()
    if (FOLDER / "hold").exists():
        deque(repeat(None), maxlen=0)
    while not (FOLDER / f"go-{{seed}}").exists():
        time.sleep(0.02)
"""
STUDY = """
from assay.core.study import Outcome, Study
from assay.studies import studies

@studies.register("drill")
@dataclass(frozen=True, kw_only=True)
class Drill(Study):
    question = "Which process holds which run?"
    seeds: tuple[int, ...] = (0,)
    def plan(self):
        return [self.cell(seed=seed) for seed in self.seeds]
    def execute(self, runs, ctx):
        for run in runs:
            wait(run.seed)
            yield Outcome(run, {{"square": run.seed**2}})
    def report(self, records, out):
        out.table("squares", [{{"square": record.metrics["square"]}} for record in records])
"""
ENCODER = """
from assay.studies.expressivity import register, Config, nn

@register("Drill")
class Drill(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.net = nn.Linear(cfg.D_in, cfg.D_z)
        wait(cfg.seed)
    def forward(self, x):
        return self.net(x).relu()[:, -1]
"""
SMALL = ["--batch_eval", "128", "--retr_steps", "5", "--retr_train_steps", "2", "--jac_points", "2", "--device", "cpu"]


Cli = Callable[..., tuple[int, str, str]]
BOTH = pytest.mark.parametrize("kind", ["drill", pytest.param("expressivity", marks=pytest.mark.slow)])
"""Most of a sweep's time is importing torch in each process: the study that does without is in the default suite."""
TOY = Path(__file__).parent / "toy.py"
LONG = 240
"""Seconds for what takes a few on an idle machine: a limit that only a fault reaches."""


class Sweep:
    """A study that waits, or `assay expressivity` over an encoder that waits, as a process of its own."""

    def __init__(self, folder: Path, *, seeds: int, kind: str = "drill") -> None:
        self.folder, self.seeds, self.kind, self.out = folder, range(seeds), kind, folder / "out"
        (folder / "drill.py").write_text((WAIT + (STUDY if kind == "drill" else ENCODER)).format(folder=str(folder)))

    def words(self, *more: str) -> list[str]:
        study = [self.kind, "--device", "cpu"] if self.kind == "drill" else [self.kind, "--models", "Drill", *SMALL]
        seeds = [str(seed) for seed in self.seeds]
        return [*study, "--plugin", str(self.folder / "drill.py"), "--seeds", *seeds, "--out", str(self.out), *more]

    def start(self, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "assay", *self.words(*more)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        # Tests started in the background of a shell have Ctrl-C ignored, and so would their children.
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        return subprocess.Popen(command, start_new_session=True, preexec_fn=heed, **pipes)  # type: ignore[call-overload]

    def go(self, *seeds: int) -> None:
        for seed in seeds:
            (self.folder / f"go-{seed}").touch()

    def starts(self) -> Counter[int]:
        """seed -> how often its run was begun; the check of an encoder's shape builds no second encoder."""
        return Counter(int(path.name.split("-")[1].split(".")[0]) for path in self.folder.glob("seed-*"))

    def holder(self, seed: int) -> int:
        """The process that holds a run."""
        return self._process(f"seed-{seed}.*")

    def child(self, seed: int) -> int:
        """The process that a run has started."""
        return self._process(f"child-{seed}.*")

    def _process(self, name: str) -> int:
        wait_for(lambda: list(self.folder.glob(name)))
        (path,) = self.folder.glob(name)
        return int(path.suffix[1:])

    def stored(self) -> set[int]:
        records = Store(self.out).records()
        return {r.run.seed for r in records if self.kind == "drill" or r.run.options["model"]["name"] == "Drill"}


def wait_for(condition: Callable[[], object], seconds: float = LONG) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def metrics_of(out: Path) -> dict[str, str]:
    return {record.run.id: canonical(dict(record.metrics)) for record in Store(out).records()}


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("other", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_every_executor_gives_the_bytes_of_serial(tmp_path: Path, cli: Cli, other: str) -> None:
    """Ray gives those of a study without torch in tests/contracts, on a cluster that is started once."""
    found = {}
    for executor in ("serial", other):
        words = ["--models", "SelfAttn", "GRU", "--seeds", "0", *SMALL, "--executor", executor, "--workers", "2"]
        code, _, err = cli("expressivity", *words, "--out", tmp_path / executor)
        assert code == 0, err
        found[executor] = metrics_of(tmp_path / executor)
    assert len(found["serial"]) == 4
    assert found["serial"] == found[other]


@BOTH
def test_a_killed_worker_costs_its_job_alone_which_is_retried(tmp_path: Path, kind: str) -> None:
    sweep = Sweep(tmp_path, seeds=2, kind=kind)
    driver = sweep.start("--workers", "2")
    victim, other = sweep.holder(0), sweep.holder(1)
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: sweep.starts()[0] == 2)
    assert alive(other)
    sweep.go(0, 1)
    _, err = driver.communicate(timeout=LONG)
    assert driver.returncode == 0, err
    assert sweep.stored() == {0, 1} and sweep.starts() == {0: 2, 1: 1}


@BOTH
def test_a_killed_driver_resumes_with_exactly_the_unfinished_runs(tmp_path: Path, cli: Cli, kind: str) -> None:
    sweep = Sweep(tmp_path, seeds=4, kind=kind)
    sweep.go(0, 1)
    driver = sweep.start("--workers", "2")
    wait_for(lambda: sweep.stored() == {0, 1})
    holders = [sweep.holder(2), sweep.holder(3)]
    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate()
    wait_for(lambda: not any(map(alive, holders)))
    before = metrics_of(sweep.out)
    sweep.go(2, 3)
    code, _, err = cli(*sweep.words("--workers", "2"))
    assert code == 0, err
    assert ("4 planned, 2 stored, 2 to run" if kind == "drill" else "12 planned, 2 stored, 10 to run") in err
    assert sweep.starts() == {0: 1, 1: 1, 2: 2, 3: 2}
    assert before.items() <= metrics_of(sweep.out).items()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_driver_takes_its_workers_and_their_children_along_even_held_in_c(
    tmp_path: Path, number: signal.Signals
) -> None:
    sweep = Sweep(tmp_path, seeds=2)
    (tmp_path / "child").touch()
    (tmp_path / "hold").touch()
    driver = sweep.start("--workers", "2")
    left = [sweep.holder(0), sweep.holder(1), sweep.child(0), sweep.child(1)]
    assert all(map(alive, left))
    os.kill(driver.pid, number)
    driver.communicate(timeout=LONG)
    wait_for(lambda: not any(map(alive, left)))


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the system shows no environments")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_3_6_what_a_run_has_started_ends_with_a_serial_driver_too(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """Also what went into a session of its own."""
    sweep = Sweep(tmp_path, seeds=1)
    (tmp_path / "child").touch()
    text = (tmp_path / "drill.py").read_text()
    (tmp_path / "drill.py").write_text(text.replace('"600"]', '"600"], start_new_session=True'))
    driver = sweep.start("--executor", "serial")
    child = sweep.child(0)
    assert sweep.holder(0) == driver.pid and alive(child)
    os.kill(driver.pid, number)
    driver.communicate(timeout=LONG)
    assert driver.returncode == code
    wait_for(lambda: not alive(child))


def test_3_6_a_hang_up_that_is_ignored_stays_so() -> None:
    """As by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with _noted_signals([]):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@BOTH
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "hung up")],
)
def test_ctrl_c_and_sigterm_leave_a_clean_store_and_say_how_to_go_on(
    tmp_path: Path, cli: Cli, kind: str, number: signal.Signals, code: int, said: str
) -> None:
    sweep = Sweep(tmp_path, seeds=3, kind=kind)
    sweep.go(0)
    driver = sweep.start("--workers", "1")
    held = sweep.holder(1)
    os.killpg(driver.pid, number)
    _, err = driver.communicate(timeout=LONG)
    assert driver.returncode == code and f"{said}; every finished run is stored. Repeat the command" in err
    assert "Traceback" not in err and "Error" not in err
    assert re.search(r"No checkpoint yet, these start over: .*seed=1", err), err
    assert sweep.stored() == {0} and not alive(held)
    assert not [path for path in sweep.out.rglob("*") if path.name.startswith(".record")]
    sweep.go(1, 2)
    assert "1 stored" in cli(*sweep.words("--workers", "2"))[2] and sweep.starts() == {0: 1, 1: 2, 2: 1}


@pytest.mark.slow
def test_sigterm_ends_a_sweep_on_ray_too(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, seeds=2)
    sweep.go(0)
    driver = sweep.start("--executor", "ray", "--workers", "1")
    held = sweep.holder(1)
    os.kill(driver.pid, signal.SIGTERM)
    _, err = driver.communicate(timeout=LONG)
    assert driver.returncode == 143 and "terminated; every finished run is stored" in err and "Traceback" not in err
    wait_for(lambda: not alive(held))


@pytest.fixture
def two_node_cluster() -> Iterator[object]:
    """A head and a node that can be lost, of one CPU each, on this machine."""
    from ray.cluster_utils import Cluster

    # A lost node should be noticed in seconds, not in the half minute that suits a real network.
    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    # Processes that nobody looks at: each takes a second to start.
    without = {"include_dashboard": False, "include_log_monitor": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": quick, **without})
    node = cluster.add_node(num_cpus=1, **without)
    cluster.wait_for_nodes()
    yield cluster, node
    cluster.shutdown()


def test_a_sweep_on_ray_survives_the_loss_of_the_node_that_holds_a_job(tmp_path: Path, two_node_cluster) -> None:
    cluster, node = two_node_cluster
    sweep = Sweep(tmp_path, seeds=2)
    driver = sweep.start("--executor", "ray", "--ray-address", cluster.address)
    lost = next(seed for seed in sweep.seeds if raylet(node) in ancestors(sweep.holder(seed)))
    held = sweep.holder(lost)
    cluster.remove_node(node, allow_graceful=False)
    wait_for(lambda: not alive(held))
    sweep.go(0, 1)
    _, err = driver.communicate(timeout=LONG)
    assert driver.returncode == 0, err
    assert sweep.stored() == {0, 1} and sweep.starts()[lost] >= 2


def raylet(node: object) -> int:
    return node.all_processes["raylet"][0].process.pid  # type: ignore[attr-defined]


def ancestors(pid: int) -> set[int]:
    found = set()
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.add(pid)
    return found


def test_3_5_and_3_7_a_damaged_run_is_named_left_out_and_computed_again(tmp_path: Path, cli: Cli) -> None:
    """One flipped bit, a folder for a file, a pipe, a file or a link for the folder of a run: each costs one run."""
    words = ["toy", "--plugin", TOY, "--seeds", "0", "1", "--executor", "serial", "--out", tmp_path]
    assert cli(*words)[0] == 0
    before = metrics_of(tmp_path)
    folders = sorted(path.parent for path in tmp_path.rglob("record.json"))
    flipped, holed, pipe, file, link, _ = folders
    (flipped / "note.txt").write_bytes(bytes([(flipped / "note.txt").read_bytes()[0] ^ 1]))
    (holed / "note.txt").unlink()
    (holed / "note.txt").mkdir()
    for folder, make in (
        (pipe, os.mkfifo),
        (file, Path.touch),
        (link, lambda path: path.symlink_to(tmp_path / "home")),
    ):
        shutil.rmtree(folder)
        make(folder)
    (tmp_path / "home").mkdir()
    code, _, err = cli("report", "--plugin", TOY, "--out", tmp_path)
    assert code == 0 and flipped.name in err and holed.name in err
    code, _, err = cli(*words)
    assert code == 0 and "6 planned, 1 stored, 5 to run" in err and "Traceback" not in err, err
    assert all(f"{folder.name} is no folder; set aside" in err for folder in (pipe, file, link))
    assert metrics_of(tmp_path) == before and not list((tmp_path / "home").iterdir())
    code, _, err = cli(*words)
    assert code == 0 and "nothing to run" in err and "warning" not in err


def test_a_truncated_record_is_set_aside_and_computed_again(tmp_path: Path, cli: Cli) -> None:
    words = ["toy", "--plugin", TOY, "--seeds", "0", "--executor", "serial", "--out", tmp_path]
    cli(*words)
    before = metrics_of(tmp_path)
    victim = next(tmp_path.rglob("record.json"))
    victim.write_text(victim.read_text()[:100])
    code, _, err = cli(*words)
    assert code == 0 and "set aside as record.json.unreadable" in err and "3 planned, 2 stored, 1 to run" in err
    assert metrics_of(tmp_path) == before and len(list(tmp_path.rglob("record.json.unreadable"))) == 1


@pytest.mark.parametrize(("number", "said"), [(errno.ENOSPC, "Free some space"), (errno.EROFS, "read-only")])
def test_a_full_or_read_only_disk_is_one_message_and_nothing_is_lost(
    tmp_path: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    said: str,
) -> None:
    write, written = store_module.write_files, []

    def fail_at_the_third(files: Mapping[Path, bytes]) -> None:
        if len(written) == 2:
            raise OSError(number, os.strerror(number))
        written.append(files)
        write(files)

    words = ["toy", "--plugin", TOY, "--seeds", "0", "1", "--out", tmp_path, "--workers", "2"]
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_files", fail_at_the_third)
        code, out, err = cli(*words)
    message = err.strip().splitlines()[-1]
    assert code == 2 and out == "" and said in message and "--out" in message and "Traceback" not in err
    kept = metrics_of(tmp_path)
    assert len(kept) == 2
    code, _, err = cli(*words)
    assert code == 0 and "6 planned, 2 stored, 4 to run" in err and kept.items() <= metrics_of(tmp_path).items()


def test_a_store_of_a_newer_version_is_refused_untouched(tmp_path: Path, cli: Cli) -> None:
    words = ["toy", "--plugin", TOY, "--seeds", "0", "--executor", "serial", "--out", tmp_path]
    cli(*words)
    path = next(tmp_path.rglob("record.json"))
    newer = json.dumps(json.loads(path.read_text()) | {"format": 99})
    path.write_text(newer)
    code, _, err = cli(*words)
    assert code == 2 and "newer assay" in err and path.read_text() == newer


def test_an_error_after_the_last_run_is_said_and_the_exit_code_is_1(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "x=2").write_text("twice always")
    words = ["toy", "--plugin", TOY, "--trap", tmp_path, "--seeds", "0", "--executor", "serial", "--out", tmp_path]
    code, out, err = cli(*words)
    assert code == 1 and "warning: toy raised an error after its last run" in err and "gave an outcome twice" in err
    assert [record.status for record in Store(tmp_path).records()] == ["done"] * 3 and "square" in out
