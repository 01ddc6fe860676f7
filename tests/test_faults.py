"""Fault drills on the real command, with real processes: what is stored is never lost, and nothing is done twice.

The encoder of a drill leaves a file `seed-<seed>.<pid>` when it is built and waits until a file `go-<seed>` is there,
so a test knows which process holds which run, and decides when it may go on. Where there is a file `hold`, it starts a
child, leaves `child-<seed>.<pid>`, and stays in C code for good, where no signal handler runs.
"""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from assay.core import store as store_module
from assay.core.run import canonical
from assay.core.store import Store

DRILL = """
import os, subprocess, time
from collections import deque
from itertools import repeat
from pathlib import Path
from assay.studies.expressivity import register, Config, nn

FOLDER = Path({folder!r})

@register("Drill")
class Drill(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.net = nn.Linear(cfg.D_in, cfg.D_z)
        (FOLDER / f"seed-{{cfg.seed}}.{{os.getpid()}}").touch()
        if (FOLDER / "hold").exists():
            child = subprocess.Popen(["sleep", "600"])
            (FOLDER / f"child-{{cfg.seed}}.{{child.pid}}").touch()
            deque(repeat(None), maxlen=0)
        while not (FOLDER / f"go-{{cfg.seed}}").exists():
            time.sleep(0.02)
    def forward(self, x):
        return self.net(x).relu()[:, -1]
"""
SMALL = ["--batch_eval", "128", "--retr_steps", "5", "--retr_train_steps", "2", "--jac_points", "2", "--device", "cpu"]


class Sweep:
    """`assay expressivity` over the drill's encoder, as a process of its own."""

    def __init__(self, folder: Path, *, seeds: int) -> None:
        self.folder, self.seeds, self.out = folder, range(seeds), folder / "out"
        (folder / "drill.py").write_text(DRILL.format(folder=str(folder)))

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "assay", "expressivity", "--models", "Drill"]
        seeds = [str(seed) for seed in self.seeds]
        options = ["--plugin", str(self.folder / "drill.py"), "--seeds", *seeds, "--out", str(self.out), *SMALL, *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        # Tests started in the background of a shell have Ctrl-C ignored, and so would their children.
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        return subprocess.Popen([*command, *options], start_new_session=True, preexec_fn=heed, **pipes)  # type: ignore[call-overload]

    def go(self, *seeds: int) -> None:
        for seed in seeds:
            (self.folder / f"go-{seed}").touch()

    def starts(self) -> Counter[int]:
        """seed -> how often its encoder was built for a run; the check of its shape builds no second one."""
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
        return {r.run.seed for r in Store(self.out).records() if r.run.options["model"]["name"] == "Drill"}


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
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


def test_serial_local_and_ray_give_byte_identical_metrics(
    tmp_path: Path, cli: Callable[..., tuple[int, str, str]]
) -> None:
    found = {}
    for executor in ("serial", "local", "ray"):
        words = ["--models", "SelfAttn", "GRU", "--seeds", "0", "1", *SMALL, "--executor", executor, "--workers", "2"]
        code, _, err = cli("expressivity", *words, "--out", tmp_path / executor)
        assert code == 0, err
        found[executor] = metrics_of(tmp_path / executor)
    assert len(found["serial"]) == 8
    assert found["serial"] == found["local"] == found["ray"]


def test_a_killed_worker_costs_its_job_alone_which_is_retried(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, seeds=2)
    driver = sweep.start("--workers", "2")
    victim, other = sweep.holder(0), sweep.holder(1)
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: sweep.starts()[0] == 2)
    assert alive(other)
    sweep.go(0, 1)
    _, err = driver.communicate(timeout=120)
    assert driver.returncode == 0, err
    assert sweep.stored() == {0, 1} and sweep.starts() == {0: 2, 1: 1}


def test_a_killed_driver_resumes_with_exactly_the_unfinished_runs(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, seeds=4)
    sweep.go(0, 1)
    driver = sweep.start("--workers", "2")
    wait_for(lambda: sweep.stored() == {0, 1})
    holders = [sweep.holder(2), sweep.holder(3)]
    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate()
    wait_for(lambda: not any(map(alive, holders)))
    before = metrics_of(sweep.out)
    sweep.go(2, 3)
    again = sweep.start("--workers", "2")
    _, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert "12 planned, 2 stored, 10 to run" in err
    assert sweep.starts() == {0: 1, 1: 1, 2: 2, 3: 2}
    assert before.items() <= metrics_of(sweep.out).items()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_driver_takes_its_workers_and_their_children_along_even_held_in_c(
    tmp_path: Path, number: signal.Signals
) -> None:
    sweep = Sweep(tmp_path, seeds=2)
    (tmp_path / "hold").touch()
    driver = sweep.start("--workers", "2")
    left = [sweep.holder(0), sweep.holder(1), sweep.child(0), sweep.child(1)]
    assert all(map(alive, left))
    os.kill(driver.pid, number)
    driver.communicate(timeout=60)
    wait_for(lambda: not any(map(alive, left)))


@pytest.mark.parametrize(
    ("number", "code", "said"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_ctrl_c_and_sigterm_leave_a_clean_store_and_say_how_to_go_on(
    tmp_path: Path, number: signal.Signals, code: int, said: str
) -> None:
    sweep = Sweep(tmp_path, seeds=3)
    sweep.go(0)
    driver = sweep.start("--workers", "1")
    held = sweep.holder(1)
    os.killpg(driver.pid, number)
    _, err = driver.communicate(timeout=60)
    assert driver.returncode == code and f"{said}; every finished run is stored. Repeat the command" in err
    assert "Traceback" not in err and "Error" not in err
    assert sweep.stored() == {0} and not alive(held)
    assert not [path for path in sweep.out.rglob("*") if path.name.startswith(".record")]
    sweep.go(1, 2)
    again = sweep.start("--workers", "2")
    assert "1 stored" in again.communicate(timeout=120)[1] and sweep.starts() == {0: 1, 1: 2, 2: 1}


@pytest.mark.slow
def test_sigterm_ends_a_sweep_on_ray_too(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, seeds=2)
    sweep.go(0)
    driver = sweep.start("--executor", "ray", "--workers", "1")
    held = sweep.holder(1)
    os.kill(driver.pid, signal.SIGTERM)
    _, err = driver.communicate(timeout=120)
    assert driver.returncode == 143 and "terminated; every finished run is stored" in err and "Traceback" not in err
    wait_for(lambda: not alive(held))


@pytest.fixture
def two_node_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A head that runs nothing and two worker nodes of one CPU each, on this machine."""
    from ray.cluster_utils import Cluster

    # A lost node should be noticed in seconds, not in the half minute that suits a real network.
    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": quick})
    nodes = [cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)]
    cluster.wait_for_nodes()
    yield cluster, nodes
    cluster.shutdown()


def test_a_sweep_on_ray_survives_the_loss_of_the_node_that_holds_a_job(tmp_path: Path, two_node_cluster) -> None:
    cluster, nodes = two_node_cluster
    sweep = Sweep(tmp_path, seeds=2)
    driver = sweep.start("--executor", "ray", "--ray-address", cluster.address)
    held = sweep.holder(0)
    node = next(node for node in nodes if raylet(node) in ancestors(held))
    cluster.remove_node(node, allow_graceful=False)
    wait_for(lambda: not alive(held), 20)
    sweep.go(0, 1)
    _, err = driver.communicate(timeout=120)
    assert driver.returncode == 0, err
    assert sweep.stored() == {0, 1} and sweep.starts()[0] >= 2


def raylet(node: object) -> int:
    return node.all_processes["raylet"][0].process.pid  # type: ignore[attr-defined]


def ancestors(pid: int) -> set[int]:
    found = set()
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.add(pid)
    return found


def test_a_truncated_record_is_set_aside_and_computed_again(
    tmp_path: Path, cli: Callable[..., tuple[int, str, str]]
) -> None:
    words = ["expressivity", "--models", "StaticMLP", "--seeds", "0", *SMALL, "--executor", "serial", "--out", tmp_path]
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
    cli: Callable[..., tuple[int, str, str]],
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

    words = ["expressivity", "--models", "StaticMLP", "--seeds", "0", "1", *SMALL, "--out", tmp_path, "--workers", "2"]
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_files", fail_at_the_third)
        code, out, err = cli(*words)
    message = err.strip().splitlines()[-1]
    assert code == 2 and out == "" and said in message and "--out" in message and "Traceback" not in err
    kept = metrics_of(tmp_path)
    assert len(kept) == 2
    code, _, err = cli(*words)
    assert code == 0 and "6 planned, 2 stored, 4 to run" in err and kept.items() <= metrics_of(tmp_path).items()


def test_a_store_of_a_newer_version_is_refused_untouched(
    tmp_path: Path, cli: Callable[..., tuple[int, str, str]]
) -> None:
    words = ["expressivity", "--models", "StaticMLP", "--seeds", "0", *SMALL, "--executor", "serial", "--out", tmp_path]
    cli(*words)
    path = next(tmp_path.rglob("record.json"))
    newer = json.dumps(json.loads(path.read_text()) | {"format": 99})
    path.write_text(newer)
    code, _, err = cli(*words)
    assert code == 2 and "newer assay" in err and path.read_text() == newer


def test_an_error_after_the_last_run_is_said_and_the_exit_code_is_1(
    tmp_path: Path, cli: Callable[..., tuple[int, str, str]]
) -> None:
    (tmp_path / "x=2").write_text("twice always")
    toy = Path(__file__).parent / "toy.py"
    words = ["toy", "--plugin", toy, "--trap", tmp_path, "--seeds", "0", "--executor", "serial", "--out", tmp_path]
    code, out, err = cli(*words)
    assert code == 1 and "warning: toy raised an error after its last run" in err and "gave an outcome twice" in err
    assert [record.status for record in Store(tmp_path).records()] == ["done"] * 3 and "square" in out
