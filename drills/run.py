"""`make drill` breaks assay in every way we know, on the real command, and checks the store afterwards.

    python drills/run.py [--only CASE ...] [--studies NAME ...] [--seed N] [--into docs/reliability.md]

Every drill ends with the same questions: does each record equal the one of an undisturbed run, byte for byte; was
anything computed a second time without need; is any process left? Takes 45 minutes on two busy cores.
"""

import argparse
import os
import platform
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench import Cannot, Drill, Missed, bench
from cases import CASES, Case
from sweeps import Sweep, sweeps

MARK = "<!-- make drill -->"


@dataclass(frozen=True)
class Attempt:
    """One case on one study, or on all of them together."""

    case: str
    studies: str
    drill: Drill | None
    fault: str
    """Why there is no drill: what was broken, or what this machine does not allow."""
    held: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES), help="some cases alone")
    parser.add_argument("--studies", nargs="+", help="some studies alone, such as icl 'modular sweep'")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--at-once", type=int, default=2, help="drills that run at the same time")
    parser.add_argument("--into", type=Path, help="put the table, or the rows of --only, between this document's marks")
    args = parser.parse_args()
    if args.into and args.studies:
        parser.error("a row stands for all studies: leave out --studies or --into")
    # Started in a shell's background, Ctrl-C is ignored, and would be in every child: a handler is not inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="assay-drill-") as folder:
        known = sweeps(Path(folder))
        if unknown := set(args.studies or ()) - known.keys():
            parser.error(f"no demo of {', '.join(sorted(unknown))}; known: {', '.join(known)}")
        chosen = [known[name] for name in args.studies or known]
        with ThreadPoolExecutor(args.at_once) as pool:
            calls = [(name, of) for name in args.only for of in groups(CASES[name], chosen)]
            apart = [pool.submit(attempt, *call, args.seed) for call in calls if not CASES[call[0]].in_main_thread]
            attempts = [attempt(*call, args.seed) for call in calls if CASES[call[0]].in_main_thread]
            attempts += [one.result() for one in apart]
    text = table(attempts, time.monotonic() - begin)
    print(text)
    if args.into:
        before, old, after = args.into.read_text().split(MARK)
        new = text if set(args.only) == set(CASES) else replaced(old, text)
        args.into.write_text(f"{before}{MARK}\n{new}\n{MARK}{after}")
    return 0 if all(one.held for one in attempts) else 1


def groups(case: Case, chosen: Sequence[Sweep]) -> list[list[Sweep]]:
    return [list(chosen)] if case.together else [[sweep] for sweep in chosen]


def attempt(name: str, of: Sequence[Sweep], seed: int) -> Attempt:
    case, start = CASES[name], time.monotonic()
    studies = ", ".join(sweep.name for sweep in of)
    rng = random.Random(f"{seed} {name} {studies}")
    with bench() as place:
        try:
            drill = case.drill(place, rng, of if case.together else of[0])
            place.expect_no_process_left()
            found = Attempt(name, studies, drill, "", True)
        except Cannot as reason:
            found = Attempt(name, studies, None, str(reason), True)
        except Missed as fault:
            said = str(fault).replace("|", "/").replace(str(place.root), "...").replace("\n", " ")
            found = Attempt(name, studies, None, said[:300], False)
        except Exception as error:  # noqa: BLE001 - the other drills go on
            traceback.print_exc()
            found = Attempt(name, studies, None, f"the drill itself failed: {type(error).__name__}: {error}", False)
    result = (
        f"held, {counts([found.drill])}" if found.drill else f"{'not run' if found.held else 'BROKEN'}: {found.fault}"
    )
    print(f"{name} ({studies}): {result} ({time.monotonic() - start:.0f} s)", file=sys.stderr, flush=True)
    return found


def table(attempts: Sequence[Attempt], seconds: float) -> str:
    """One row per case; what was done is summed over the studies."""
    lines = ["| case | what was done | studies | runs compared | result |", "|---|---|---|---|---|"]
    for case in CASES:
        if not (tried := [one for one in attempts if one.case == case]):
            continue
        drills = [one.drill for one in tried if one.drill]
        broken = [f"BROKEN ({one.studies}): {one.fault}" for one in tried if not one.held]
        barred = [f"not run ({one.studies}): {one.fault}" for one in tried if one.held and not one.drill]
        held = ["held"] if drills and not broken else []
        studies = sum(len(one.studies.split(", ")) for one in tried if one.drill)
        cells = [case, counts(drills) or "-", str(studies), str(sum(drill.runs for drill in drills))]
        lines.append(f"| {' | '.join([*cells, '; '.join([*held, *broken, *barred])])} |")
    machine = f"{platform.system()} {platform.machine()} with {os.cpu_count()} cores"
    return "\n".join([*lines, "", f"{seconds / 60:.0f} minutes on {machine}."])


def replaced(old: str, new: str) -> str:
    """Return the old table with the rows of the new one in the places of theirs."""
    rows = {line.split("|")[1]: line for line in new.splitlines() if line.startswith("| ")}
    lines = [rows.get(line.split("|")[1], line) if line.startswith("| ") else line for line in old.strip().splitlines()]
    return "\n".join(lines)


def counts(drills: Sequence[Drill]) -> str:
    """What was done, as `3 drivers killed, 4 workers killed`; kinds are the same in every drill of a case."""
    total: Counter[str] = Counter()
    for drill in drills:
        total.update(drill.done)
    return ", ".join(f"{count} {what}" for what, count in total.items())


if __name__ == "__main__":
    sys.exit(main())
