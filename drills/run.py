"""`make drill` breaks assay in every way we know, on the real command, and checks the store afterwards.

    python drills/run.py [--only NAME ...] [--seed N] [--into docs/reliability.md]

Every drill ends with the same questions: does each record equal the one of an undisturbed run, byte for byte; was
anything computed a second time without need; is any process left? Takes a quarter of an hour on two cores.
"""

import argparse
import platform
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench import Cannot, Missed, bench
from cases import DRILLS, Drill

MARK = "<!-- make drill -->"


@dataclass(frozen=True)
class Row:
    drill: str
    done: str
    runs: str
    result: str
    seconds: float
    held: bool = field(default=True, compare=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=sorted(DRILLS), default=list(DRILLS), help="some drills alone")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--into", type=Path, help="put the table between the marks of this document, too")
    args = parser.parse_args()
    rows = []
    for name in args.only:
        rows.append(attempt(name, DRILLS[name], random.Random(f"{args.seed} {name}")))
        print(f"{rows[-1].drill}: {rows[-1].result} ({rows[-1].seconds:.0f} s)", file=sys.stderr, flush=True)
    text = table(rows)
    print(text)
    if args.into:
        before, _, rest = args.into.read_text().partition(MARK)
        args.into.write_text(f"{before}{MARK}\n{text}\n{MARK}{rest.partition(MARK)[2]}")
    return 0 if all(row.held for row in rows) else 1


def attempt(name: str, drill: Callable[..., Drill], rng: random.Random) -> Row:
    start = time.monotonic()
    with bench() as place:
        try:
            found = drill(place, rng)
            place.expect_no_process_left()
            row = Row(name, found.done, str(found.runs), "held", time.monotonic() - start)
        except Cannot as reason:
            row = Row(name, f"not run: {reason}", "-", "not run", time.monotonic() - start)
        except Missed as fault:
            said = str(fault).replace("|", "/").replace(str(place.root), "...")
            row = Row(name, "-", "-", f"BROKEN: {said[:300]}", time.monotonic() - start, held=False)
    return row


def table(rows: list[Row]) -> str:
    lines = ["| drill | what was done | runs | records equal, nothing twice, no process left |", "|---|---|---|---|"]
    lines += [f"| {row.drill} | {row.done} | {row.runs} | {row.result} |" for row in rows]
    seconds = sum(row.seconds for row in rows)
    return "\n".join([*lines, "", f"{seconds:.0f} s on {platform.system()} {platform.machine()}."])


if __name__ == "__main__":
    sys.exit(main())
