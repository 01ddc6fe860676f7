"""The drills: each disturbs a sweep in one way, lets it finish, and compares it with an undisturbed one."""

import random
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import Bench, Cannot, Drill, Watch, contents, expect, expect_same, held_files, parent, records, wait_for
from damage import ARTIFACTS, RECORDS
from groups import killed_for_memory, memory_group
from killing import STORES, interrupted, killed
from sweeps import Sweep


def three_drivers(place: Bench, rng: random.Random, sweep: Sweep) -> Drill:
    wanted, out = sweep.undisturbed.contents, place.root / "shared"
    with Watch(out).looking() as watch:
        drivers = []
        for _ in range(3):
            drivers.append(place.start(*sweep.words, "--workers", "1", "--out", out))
            time.sleep(rng.uniform(0, 0.1 * sweep.undisturbed.working))
        for driver in drivers:
            ended = place.finish(driver).expect(0)
            expect("nothing to run" not in ended.err, "a driver began when all was done: nothing was disturbed")
    expect_same(contents(out), wanted)
    watch.expect_once()
    return Drill({"drivers, three at a time on one store": 3}, len(wanted))


def lock_deleted(place: Bench, rng: random.Random, sweep: Sweep) -> Drill:
    """Delete the lock file while it is held: runs may be computed twice, but records must be whole and equal."""
    wanted, out, deleted = sweep.undisturbed.contents, place.root / "shared", 0
    drivers = [place.start(*sweep.words, "--workers", "1", "--out", out) for _ in range(2)]
    while any(driver.poll() is None for driver in drivers):
        for path in (out / ".store").glob("*/.locks"):
            with suppress(FileNotFoundError):
                deleted += path.stat().st_ino in held_files()
                path.unlink()
        time.sleep(rng.uniform(0, 0.1 * sweep.undisturbed.working))
    for driver in drivers:
        place.finish(driver).expect(0)
    expect(deleted, "no lock was held when it was to be deleted")
    expect_same(contents(out), wanted)
    return Drill({"lock files deleted while held, under two drivers": deleted}, len(wanted))


def damaged_by_hand(place: Bench, rng: random.Random, sweeps: Sequence[Sweep]) -> Drill:
    """Damage records: reading verbs must not crash or rename anything, and a resume computes only those."""
    out, victims = _one_store(place.root / "damaged", sweeps), {sweep.name: 0 for sweep in sweeps}
    kinds = rng.sample(sorted(RECORDS), len(RECORDS))
    for number, sweep in enumerate(sweeps):
        having = sweep.artifacts
        chosen = rng.sample(having, min(len(having), len(ARTIFACTS)))
        others = rng.sample(sorted(sweep.undisturbed.contents.keys() - set(chosen)), len(kinds[number :: len(sweeps)]))
        pairs = [*zip(chosen, ARTIFACTS.values(), strict=False)]
        pairs += zip(others, (RECORDS[kind] for kind in kinds[number :: len(sweeps)]), strict=True)
        for victim, damage in pairs:
            damage(out / ".store" / victim)
        victims[sweep.name] = len(pairs)
    before = sorted(str(path) for path in out.rglob("record*"))
    place.run("show", "--out", out).expect(0)
    place.run("report", "--out", out).expect(0)
    after = sorted(str(path) for path in out.rglob("record*"))
    expect(before == [name for name in after if "report" not in Path(name).name], "a reading verb renamed a record")
    for sweep in sweeps:
        ended = place.run(*sweep.words, "--out", out).expect(0)
        count = len(sweep.undisturbed.contents)
        said = f"{count - victims[sweep.name]} stored, {victims[sweep.name]} to run"
        expect(said in ended.err, f"{sweep.name}: '{said}' was not said: {ended.err[:200]}")
    expect_same(contents(out), _all(sweeps))
    kinds_of = {"kinds of damage to records": len(RECORDS), "kinds of damage to artifacts": len(ARTIFACTS)}
    return Drill(kinds_of | {"runs damaged and computed again, no others": sum(victims.values())}, len(_all(sweeps)))


def _one_store(out: Path, sweeps: Sequence[Sweep]) -> Path:
    """Copy the undisturbed stores of several studies into one."""
    for sweep in sweeps:
        expect(sweep.undisturbed.contents, f"{sweep.name} stored nothing")
        shutil.copytree(sweep.out / ".store", out / ".store", symlinks=True, dirs_exist_ok=True)
    return out


def _all(sweeps: Sequence[Sweep]) -> dict[str, Any]:
    return {name: kept for sweep in sweeps for name, kept in sweep.undisturbed.contents.items()}


@contextmanager
def small_disk(folder: Path, size: int):
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        raise Cannot("a tmpfs may not be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", folder], check=True)


def full_disk(place: Bench, rng: random.Random, sweep: Sweep) -> Drill:
    """Fill a small disk with half of a sweep, make it larger and resume; then fill it again under --force."""
    wanted, out = sweep.undisturbed.contents, place.root / "full"
    with small_disk(out, sweep.size // 2), Watch(out).looking() as watch:
        place.run(*sweep.words, "--out", out).expect(2, said="cannot write")
        kept = len(records(out))
        remount(out, f"size={2**26}")
        place.run(*sweep.words, "--out", out).expect(0, said=f"{kept} stored")
        expect_same(contents(out), wanted)
        with suppress(OSError):
            (out / "ballast").write_bytes(bytes(2**27))
        place.run(*sweep.words, "--force", "--out", out).expect(2, said="what was stored is kept")
        expect_same(contents(out), wanted)
        found = Drill({"runs stored when the disk was full, the others after it was enlarged": kept}, len(wanted))
    watch.expect_once()
    return found


def read_only_store(place: Bench, rng: random.Random, sweeps: Sequence[Sweep]) -> Drill:
    """Every verb on a read-only store with damaged records: those that read work, the others refuse in one line."""
    out, verbs = place.root / "frozen", 0
    with small_disk(out, 2**26):
        _one_store(out, sweeps)
        for sweep in sweeps:
            (out / ".store" / rng.choice(sorted(sweep.undisturbed.contents)) / "record.json").write_text("{")
        some = next(name for name, folder in records(out).items() if (folder / "record.json").stat().st_size > 1)
        remount(out, "ro")
        place.run("show", "--out", out).expect(0)
        place.run("show", some.partition("/")[2], "--out", out).expect(0)
        place.run("report", "--out", out).expect(2, said="read-only")
        for sweep in sweeps:
            place.run(*sweep.words, "--dry-run", "--out", out).expect(0)
            place.run(*sweep.words, "--out", out).expect(2, said="read-only")
        verbs = 3 + 2 * len(sweeps)
        remount(out, "rw")
        for sweep in sweeps:
            place.run(*sweep.words, "--out", out).expect(
                0, said=f"{len(sweep.undisturbed.contents) - 1} stored, 1 to run"
            )
        expect_same(contents(out), _all(sweeps))
    return Drill({"commands on a read-only store with a damaged record of each study": verbs}, len(_all(sweeps)))


HUNGRY = """
import threading, time
from pathlib import Path

def eat():
    time.sleep({delay})
    try:
        Path({trap!r}).unlink()
    except FileNotFoundError:  # another worker is at it
        return
    eaten = []
    while True:
        eaten.append(b"x" * 2**27)

if b"assay.core.worker" in Path("/proc/self/cmdline").read_bytes():
    threading.Thread(target=eat, daemon=True).start()
"""


def out_of_memory(place: Bench, rng: random.Random, sweep: Sweep) -> Drill:
    """Let one worker take memory in the middle of its work, in a control group of 3 GB, until the kernel kills it."""
    wanted, stores, count = sweep.undisturbed.contents, 0, 0
    trap, plugin = place.root / "hungry", place.root / "hungry.py"
    while not count:  # a worker may end its work before it has taken enough
        stores += 1
        expect(stores <= STORES, f"the kernel killed nobody in {STORES} sweeps")
        out = place.root / f"out-{stores}"
        delay = rng.uniform(0, 0.3 * sweep.undisturbed.working / stores)
        plugin.write_text(HUNGRY.format(trap=str(trap), delay=delay))
        trap.touch()
        with memory_group(3 * 2**30) as group, Watch(out).looking() as watch:
            into = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
            place.run(*sweep.words, "--plugin", plugin, "--out", out, wrap=into).expect(0)
            count = killed_for_memory(group)
        expect_same(contents(out), wanted)
        watch.expect_once()
    return Drill({"workers killed by the kernel for the memory they took": count}, stores * len(wanted))


def ray_node_lost(place: Bench, rng: random.Random, sweeps: Sequence[Sweep]) -> Drill:
    """Kill one of two cluster nodes on this machine while it works on a task, in a sweep of each study."""
    try:
        from ray.cluster_utils import Cluster
    except ModuleNotFoundError:
        raise Cannot("Ray is not installed") from None
    # A lost node should be noticed in seconds; a node that a busy machine keeps waiting is not lost.
    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 10}
    head = {"num_cpus": 0, "_system_config": quick}
    cluster = _patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
    try:
        nodes = [_patiently(lambda: cluster.add_node(num_cpus=1)), _patiently(lambda: cluster.add_node(num_cpus=1))]
        for sweep in sweeps:
            lost, attempt = None, 0
            while lost is None:  # a node may end its work before it is killed
                attempt += 1
                expect(
                    attempt <= STORES, f"no node worked when it was to be killed, in {STORES} sweeps of {sweep.name}"
                )
                out, delay = place.root / f"{sweep.out.name}-{attempt}", rng.uniform(0, 0.3 * sweep.undisturbed.working)
                with Watch(out).looking() as watch:
                    at = ("--executor", "ray", "--ray-address", cluster.address, "--out", out)
                    driver = place.start(*sweep.words, *at)
                    wait_for(lambda: all(map(_works, nodes)) or driver.poll() is not None, "both nodes to work", 600)  # noqa: B023 - called here
                    time.sleep(delay / attempt**2)
                    busy = [node for node in nodes if _works(node)]
                    if busy and driver.poll() is None:
                        lost = rng.choice(busy)
                        cluster.remove_node(lost, allow_graceful=False)
                    place.finish(driver, 600).expect(0)
                expect_same(contents(out), sweep.undisturbed.contents)
                watch.expect_once()
            nodes[nodes.index(lost)] = _patiently(lambda: cluster.add_node(num_cpus=1))
    finally:
        cluster.shutdown()
    return Drill({"times one of two nodes killed while it computed": len(sweeps)}, len(_all(sweeps)))


def _patiently(start: Callable[[], Any]) -> Any:
    """Start a node, or a cluster. Ray gives up on one that is not there within 30 seconds, as on a busy machine."""
    for _ in range(9):
        with suppress(Exception):
            return start()
    return start()


def _works(node: Any) -> bool:
    """Return whether a worker process of this node is in the middle of a task, as Ray names its processes."""
    raylet = node.all_processes["raylet"][0].process.pid
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            name = (folder / "cmdline").read_bytes()
            if name.startswith(b"ray::") and not name.startswith(b"ray::IDLE") and parent(int(folder.name)) == raylet:
                return True
    return False


@dataclass(frozen=True)
class Case:
    """A way to disturb sweeps: one study at a time, or all of them in one store or cluster."""

    drill: Callable[..., Drill]
    together: bool = False
    in_main_thread: bool = False
    """Ray sets signal handlers so that its processes end with ours, which only the main thread may do."""


CASES: dict[str, Case] = {
    "killed processes": Case(killed),
    "Ctrl-C and SIGTERM": Case(interrupted),
    "three drivers": Case(three_drivers),
    "lock deleted": Case(lock_deleted),
    "damaged records": Case(damaged_by_hand, together=True),
    "full disk": Case(full_disk),
    "read-only store": Case(read_only_store, together=True),
    "out of memory": Case(out_of_memory),
    "Ray node lost": Case(ray_node_lost, together=True, in_main_thread=True),
}
