"""The drills: each disturbs a sweep in one way, lets it finish, and compares it with an undisturbed one."""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench import Bench, Cannot, Contents, Watch, contents, expect, expect_same, kill, records, wait_for
from damage import ARTIFACTS, RECORDS
from groups import memory_group

from assay.core.plugin import registries

SMALL = (
    *("expressivity", "--models", "SelfAttn", "GRU", "StaticMLP", "--seeds", "0..3", "--fast", "--device", "cpu"),
    *("--batch_eval", "128", "--retr_steps", "20", "--retr_train_steps", "10", "--jac_points", "2"),
)
"""A sweep of 20 short runs, for drills that are not about a particular study."""
WITH_FILES = (
    *("modular", "sweep", "--P", "13", "--dimensions", "1..24", "--seeds", "0..1", "--epochs", "30", "--batch", "32"),
    *("--device", "cpu"),
)
"""48 runs that leave artifacts."""


@dataclass(frozen=True)
class Drill:
    """A drill's result: what was done, and over how many runs."""

    done: str
    runs: int


def undisturbed(place: Bench, *words: str) -> Contents:
    place.run(*words, "--out", place.root / "undisturbed").expect(0)
    return contents(place.root / "undisturbed")


KILLS = 3
"""Fewest drivers, and workers, that are killed per demo."""
TURNS = 10
"""Most starts of a demo in one store: more would mean that it makes no progress."""
STORES = 4


@dataclass
class Kills:
    """Processes that were alive when they were killed."""

    workers: int = 0
    drivers: int = 0

    @property
    def enough(self) -> bool:
        return min(self.workers, self.drivers) >= KILLS


def killed_at_random(name: str) -> Callable[[Bench, random.Random], Drill]:
    """Kill the driver of a study's demo again and again, and before it one of its workers."""

    def drill(place: Bench, rng: random.Random) -> Drill:
        command = [*name.split(), "--preset", "demo", "--device", "cpu"]
        begin = time.monotonic()
        wanted = undisturbed(place, *command)
        took = time.monotonic() - begin
        begin = time.monotonic()
        place.run(*command, "--out", place.root / "undisturbed").expect(0, said="nothing to run")
        idle = time.monotonic() - begin
        kills, stores = Kills(), 0
        while not kills.enough:
            stores += 1
            expect(
                stores <= STORES, f"only {kills.drivers} drivers and {kills.workers} workers were there to be killed"
            )
            out = place.root / f"disturbed-{stores}"
            with Watch(out).looking() as watch:
                for _ in range(TURNS):
                    missing = 1 - len(intact(out, wanted)) / len(wanted)
                    if kills.enough or not missing:
                        break
                    kill_once(place, command, out, wanted, kills, rng.uniform(0, idle + (took - idle) * missing), rng)
                last = place.run(*command, "--out", out).expect(0, 1)
                if last.code == 1:  # a job that lost its worker three times is a failed record, tried again on request
                    place.run(*command, "--out", out).expect(0)
            expect_same(contents(out), wanted)
            watch.expect_once()
            place.run(*command, "--out", out).expect(0, said="nothing to run")
        done = f"{kills.drivers} drivers and {kills.workers} workers killed at random moments"
        return Drill(f"{done}; {stores} stores" if stores > 1 else done, stores * len(wanted))

    return drill


def kill_once(
    place: Bench, command: list[str], out: Path, wanted: Contents, kills: Kills, seconds: float, rng: random.Random
) -> None:
    """Start a demo; kill its driver after so many seconds, and one of its workers at some moment before. Stored runs
    must stay as they are, and not be computed again."""
    stored = len(intact(out, wanted))
    start = time.monotonic()
    driver = place.start(*command, "--out", out)
    if _wait(driver, start + rng.uniform(0, seconds)):
        workers = place.workers()
        while not workers and _wait(driver, min(time.monotonic() + 0.1, start + seconds)):
            if time.monotonic() >= start + seconds:  # no worker yet: the driver was still importing
                break
            workers = place.workers()
        kills.workers += bool(workers) and kill(rng.choice(workers))
    if _wait(driver, start + seconds):
        kill(driver.pid)
    ended = place.finish(driver)
    if ended.code == -signal.SIGKILL:
        kills.drivers += 1
    else:
        ended.expect(0, 1)
    place.expect_no_process_left()
    intact(out, wanted)
    if " planned, " in ended.err:
        expect(f" {stored} stored" in ended.err, f"{stored} runs were stored: {ended.err[:200]}")


def _wait(driver: subprocess.Popen[str], until: float) -> bool:
    """Wait until that time, and return whether the driver still lives."""
    with suppress(subprocess.TimeoutExpired):
        driver.wait(max(0.0, until - time.monotonic()))
    return driver.returncode is None


def intact(out: Path, wanted: Contents) -> Contents:
    """Check that each stored run equals the undisturbed one, and return them, without the failed ones."""
    found = {name: kept for name, kept in contents(out).items() if kept[0] != "failed"}
    expect_same(found, {name: wanted[name] for name in found if name in wanted})
    return found


def three_drivers(place: Bench, rng: random.Random) -> Drill:
    wanted, out = undisturbed(place, *SMALL), place.root / "shared"
    with Watch(out).looking() as watch:
        drivers = []
        for _ in range(3):
            drivers.append(place.start(*SMALL, "--workers", "1", "--out", out))
            time.sleep(rng.uniform(0, 2))
        for driver in drivers:
            place.finish(driver).expect(0)
    expect_same(contents(out), wanted)
    watch.expect_once()
    return Drill("three drivers started on one store", len(wanted))


def lock_deleted(place: Bench, rng: random.Random) -> Drill:
    """Delete a lock: runs may be computed twice, but records must be whole and equal."""
    wanted, out = undisturbed(place, *SMALL), place.root / "shared"
    first = place.start(*SMALL, "--workers", "1", "--out", out)
    wait_for(lambda: list((out / ".store").rglob("*lock*")), "a lock")
    second = place.start(*SMALL, "--workers", "1", "--out", out)
    deleted = 0
    while first.poll() is None or second.poll() is None:
        for path in (out / ".store").rglob("*lock*"):
            path.unlink(missing_ok=True)
            deleted += 1
        time.sleep(rng.uniform(0.05, 0.5))
    for driver in (first, second):
        place.finish(driver).expect(0)
    expect_same(contents(out), wanted)
    return Drill(f"{deleted} lock files deleted under two drivers", len(wanted))


def damaged_by_hand(place: Bench, rng: random.Random) -> Drill:
    """Damage records: reading verbs must not crash or rename anything, and a resume computes only those."""
    wanted, out = undisturbed(place, *WITH_FILES), place.root / "damaged"
    shutil.copytree(place.root / "undisturbed", out, symlinks=True)
    damages = RECORDS | ARTIFACTS
    victims = rng.sample(sorted(records(out)), len(damages))
    for victim, damage in zip(victims, damages.values(), strict=True):
        damage(records(out)[victim])
    before = sorted(str(path) for path in out.rglob("record*"))
    place.run("show", "--out", out).expect(0)
    place.run("report", "--out", out).expect(0)
    after = sorted(str(path) for path in out.rglob("record*"))
    expect(before == after, "a reading verb renamed or removed a record")
    ended = place.run(*WITH_FILES, "--out", out).expect(0)
    expect(
        f"{len(wanted) - len(damages)} stored, {len(damages)} to run" in ended.err, f"wrong resume: {ended.err[:200]}"
    )
    expect_same(contents(out), wanted)
    return Drill(f"{len(RECORDS)} kinds of damaged records, {len(ARTIFACTS)} of artifacts", len(wanted))


def interrupted(place: Bench, rng: random.Random) -> Drill:
    """Send Ctrl-C and SIGTERM at twenty random moments, from the first import to the last table."""
    begin = time.monotonic()
    wanted = undisturbed(place, *SMALL)
    took, out = time.monotonic() - begin, place.root / "interrupted"
    codes: dict[int, int] = {}
    with Watch(out).looking() as watch:
        for turn in range(20):
            number = (signal.SIGINT, signal.SIGTERM)[turn % 2]
            driver = place.start(*SMALL, "--out", out)
            time.sleep(rng.uniform(0, 0.5 * took))
            os.killpg(driver.pid, number) if driver.poll() is None else None
            ended = place.finish(driver, 60).expect_heeded(number)
            codes[ended.code] = codes.get(ended.code, 0) + 1
            place.expect_no_process_left()
        place.run(*SMALL, "--out", out).expect(0)
    expect_same(contents(out), wanted)
    watch.expect_once()
    seen = ", ".join(f"{count} x {code}" for code, count in sorted(codes.items()))
    return Drill(f"Ctrl-C and SIGTERM at 20 random moments (exit codes {seen})", len(wanted))


@contextmanager
def small_disk(folder: Path, size: str):
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


def full_disk(place: Bench, rng: random.Random) -> Drill:
    wanted, out = undisturbed(place, *WITH_FILES), place.root / "full"
    with small_disk(out, "250k"), Watch(out).looking() as watch:
        place.run(*WITH_FILES, "--out", out).expect(2, said="cannot write")
        kept = len(records(out))
        remount(out, "size=64m")
        place.run(*WITH_FILES, "--out", out).expect(0, said=f"{kept} stored")
        expect_same(contents(out), wanted)
        with suppress(OSError):
            (out / "ballast").write_bytes(bytes(2**27))
        place.run(*WITH_FILES, "--force", "--out", out).expect(2, said="what was stored is kept")
        expect_same(contents(out), wanted)
        found = Drill(f"the disk full after {kept} runs, then made larger; full again under --force", len(wanted))
    watch.expect_once()
    return found


def read_only_store(place: Bench, rng: random.Random) -> Drill:
    wanted, out = undisturbed(place, *WITH_FILES), place.root / "frozen"
    with small_disk(out, "64m"):
        shutil.copytree(place.root / "undisturbed" / ".store", out / ".store")
        one = records(out)[sorted(records(out))[0]]
        (one / "record.json").write_text("{")
        remount(out, "ro")
        place.run("show", "--out", out).expect(0)
        place.run("show", sorted(records(out))[1].partition("/")[2], "--out", out).expect(0)
        place.run(*WITH_FILES, "--dry-run", "--out", out).expect(0, said="")
        place.run("report", "--out", out).expect(2, said="read-only")
        place.run(*WITH_FILES, "--out", out).expect(2, said="read-only")
        remount(out, "rw")
        place.run(*WITH_FILES, "--out", out).expect(0)
        expect_same(contents(out), wanted)
    return Drill("every verb on a read-only store with a damaged record", len(wanted))


HUNGRY = """
from pathlib import Path
from assay.studies.expressivity import Config, nn, register

@register("Hungry")
class Hungry(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.net = nn.Linear(cfg.D_in, cfg.D_z)
        eaten = []
        while cfg.seed == 1 and Path({trap!r}).exists() and len(eaten) < 400:
            eaten.append(bytearray(b"x" * 2**24))
    def forward(self, x):
        return self.net(x).relu()[:, -1]
"""


def out_of_memory(place: Bench, rng: random.Random) -> Drill:
    """Let the kernel kill a worker for its memory, in a control group of 3 GB."""
    trap, plugin = place.root / "hungry", place.root / "hungry.py"
    plugin.write_text(HUNGRY.format(trap=str(trap)))
    models = ["--models", "Hungry", "StaticMLP", "--plugin", str(plugin)]
    command = [
        "expressivity",
        *models,
        "--seeds",
        "0..3",
        "--fast",
        "--device",
        "cpu",
        *SMALL[SMALL.index("--batch_eval") :],
    ]
    wanted, out = undisturbed(place, *command), place.root / "out"
    trap.touch()
    with memory_group(3 * 2**30) as group:
        into = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
        place.run(*command, "--out", out, wrap=into).expect(1, said="signal 9")
        failed = [name for name, (status, *_) in contents(out).items() if status == "failed"]
        expect(len(failed) == 1 and len(contents(out)) == len(wanted), f"{len(failed)} runs failed, not the one")
        trap.unlink()
        place.run(*command, "--out", out, wrap=into).expect(0, said=f"{len(wanted) - 1} stored, 1 to run")
    expect_same(contents(out), wanted)
    return Drill("one run over a memory limit of 3 GB: the kernel killed its workers", len(wanted))


def ray_node_lost(place: Bench, rng: random.Random) -> Drill:
    """Kill one of two cluster nodes on this machine in the middle of a sweep."""
    try:
        from ray.cluster_utils import Cluster
    except ModuleNotFoundError:
        raise Cannot("Ray is not installed") from None
    wanted, out = undisturbed(place, *SMALL), place.root / "cluster"
    # A lost node should be noticed in seconds, not in the half minute that suits a real network.
    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": quick})
    try:
        nodes = [cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)]
        cluster.wait_for_nodes()
        with Watch(out).looking() as watch:
            driver = place.start(*SMALL, "--executor", "ray", "--ray-address", cluster.address, "--out", out)
            wait_for(lambda: len(records(out)) >= 3, "the first records")
            cluster.remove_node(rng.choice(nodes), allow_graceful=False)
            place.finish(driver, 300).expect(0)
    finally:
        cluster.shutdown()
    expect_same(contents(out), wanted)
    watch.expect_once()
    return Drill("one of two nodes killed in the middle of a sweep", len(wanted))


def demos() -> list[str]:
    """Every study that has a demo, as the command spells it."""
    studies = registries()["studies"]
    return [name.replace(".", " ") for name in studies.names() if "demo" in studies[name].presets]


DRILLS: dict[str, Callable[[Bench, random.Random], Drill]] = {
    **{f"kill {name}": killed_at_random(name) for name in demos()},
    "three drivers": three_drivers,
    "lock deleted": lock_deleted,
    "damaged records": damaged_by_hand,
    "signals": interrupted,
    "full disk": full_disk,
    "read-only store": read_only_store,
    "out of memory": out_of_memory,
    "ray node lost": ray_node_lost,
}
