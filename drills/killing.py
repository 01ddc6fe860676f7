"""Drills that end processes at random moments: SIGKILL to drivers and workers, Ctrl-C, SIGTERM."""

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from bench import Bench, Contents, Drill, Watch, checkpoints_in, contents, expect, expect_same, kill
from sweeps import Sweep

KILLS = 3
"""Fewest drivers, and workers, that are killed per study."""
SIGNALS = 4
"""Signals per study: twenty for five studies."""
TURNS = 12
"""Most starts of a sweep in one store: more would mean that it makes no progress."""
STORES = 5
"""Most stores per study, when sweeps finish before they were disturbed often enough."""


def killed(place: Bench, rng: random.Random, sweep: Sweep) -> Drill:
    """Kill the driver of a sweep again and again, and before it one of its workers."""
    wanted, done, stores = sweep.undisturbed.contents, {"drivers": 0, "workers": 0, "checkpoints": 0}, 0

    def enough() -> bool:
        # The undisturbed sweep may have lived to its one checkpoint, and no killed one will: the table then says 0.
        tried = done["drivers"] >= TURNS or stores >= STORES
        resumed = done["checkpoints"] > 0 or not sweep.undisturbed.checkpoints or tried
        return min(done["drivers"], done["workers"]) >= KILLS and resumed

    while not enough():
        stores += 1
        expect(stores <= STORES, f"only {done} were hit in {STORES} sweeps")
        out = place.root / f"disturbed-{stores}"
        with Watch(out).looking() as watch:
            for _ in range(TURNS):
                if enough() or len(intact(out, wanted)) == len(wanted):
                    break
                _kill_once(place, rng, sweep, out, done)
            last = place.run(*sweep.words, "--out", out).expect(0, 1)
            if last.code == 1:  # a job that lost its worker three times is a failed record, tried again on request
                place.run(*sweep.words, "--out", out).expect(0)
        expect_same(contents(out), wanted)
        watch.expect_once()
    return Drill(
        {
            "drivers killed": done["drivers"],
            "workers killed": done["workers"],
            "checkpoints left behind and resumed from": done["checkpoints"],
        },
        stores * len(wanted),
    )


def _kill_once(place: Bench, rng: random.Random, sweep: Sweep, out: Path, done: dict[str, int]) -> None:
    """Start a sweep; kill its driver at a random moment of its work, and one of its workers at a moment before. Stored
    runs must stay as they are, and not be computed again."""
    wanted = sweep.undisturbed.contents
    stored = len(intact(out, wanted))
    driver = place.start(*sweep.words, "--out", out)
    while not place.workers() and _lives(driver, time.monotonic() + 0.05):
        pass
    begin = time.monotonic()
    moment = rng.uniform(0, sweep.undisturbed.working * (1 - stored / len(wanted)))
    if _lives(driver, begin + rng.uniform(0, moment)) and (workers := place.workers()):
        done["workers"] += kill(rng.choice(workers))
    if _lives(driver, begin + moment):
        kill(driver.pid)
    ended = place.finish(driver)
    if ended.code == -signal.SIGKILL:
        done["drivers"] += 1
    else:
        ended.expect(0, 1)
    place.expect_no_process_left()
    intact(out, wanted)
    done["checkpoints"] += len(checkpoints_in(out))
    if " planned, " in ended.err:
        expect(f" {stored} stored" in ended.err, f"{stored} runs were stored: {ended.err[:200]}")


def interrupted(place: Bench, rng: random.Random, sweep: Sweep) -> Drill:
    """Send Ctrl-C and SIGTERM, in turns, at random moments from the first import to the last table. A terminal and many
    schedulers send them to every process of the command, others to the driver alone."""
    wanted, stores, turns, sent = sweep.undisturbed.contents, 0, 0, {signal.SIGINT: 0, signal.SIGTERM: 0}
    while sum(sent.values()) < SIGNALS:
        stores += 1
        expect(stores <= STORES, f"only {sum(sent.values())} signals reached a driver in {STORES} sweeps")
        out = place.root / f"interrupted-{stores}"
        with Watch(out).looking() as watch:
            for _ in range(TURNS):
                missing = 1 - len(intact(out, wanted)) / len(wanted)
                if not missing or sum(sent.values()) >= SIGNALS:
                    break
                number, turns = (signal.SIGINT, signal.SIGTERM)[turns % 2], turns + 1
                # Earlier in later sweeps: a machine that is free now may be faster than when the sweep was timed.
                sent[number] += _signal_once(place, rng, sweep, out, number, missing / stores)
            place.run(*sweep.words, "--out", out).expect(0)
        expect_same(contents(out), wanted)
        watch.expect_once()
    return Drill({"times Ctrl-C": sent[signal.SIGINT], "times SIGTERM": sent[signal.SIGTERM]}, stores * len(wanted))


def _signal_once(
    place: Bench, rng: random.Random, sweep: Sweep, out: Path, number: signal.Signals, missing: float
) -> bool:
    """Send one signal, and return whether it met a living driver."""
    took = sweep.undisturbed.starting + missing * sweep.undisturbed.working
    driver = place.start(*sweep.words, "--out", out)
    met = _lives(driver, time.monotonic() + rng.uniform(0, took))
    if met:
        rng.choice([os.killpg, os.kill])(driver.pid, number)
        place.finish(driver, 300).expect_heeded(number)
    else:
        place.finish(driver).expect(0)
    place.expect_no_process_left()
    intact(out, sweep.undisturbed.contents)
    return met


def _lives(driver: subprocess.Popen[str], until: float) -> bool:
    """Wait until that time, and return whether the driver still lives."""
    with suppress(subprocess.TimeoutExpired):
        driver.wait(max(0.0, until - time.monotonic()))
    return driver.returncode is None


def intact(out: Path, wanted: Contents) -> Contents:
    """Check that each stored run equals the undisturbed one, and return them, without the failed ones."""
    found = {name: kept for name, kept in contents(out).items() if kept[0] != "failed"}
    expect_same(found, {name: wanted[name] for name in found if name in wanted})
    return found
