"""Measures CPU seconds of the shell itself: help, choices, a wrong flag, a stored demo and its page.

    python benchmarks/shell.py [--out results] [name ...]

The best of three processes on one thread, and its ratio to `python -c "import torch"`, since machines differ. The demo
is computed first where the folder has none of it, which takes minutes and is not measured. Nor is the first page of new
records, whose sections are made then and kept in the cache (report/kept.py): that takes about seven seconds.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from measuring import asked, parser_of, verdict

PYTHON = [sys.executable, "-m", "assay"]
STUDIES = ("expressivity", "icl", "modular sweep", "perplexity", "sae")


@dataclass(frozen=True)
class Timed:
    """Commands that share a goal; the slowest of them counts."""

    commands: tuple[tuple[str, ...], ...]
    goal: float
    before: float
    """CPU seconds that it took before it was looked at, on two busy ARM cores."""
    code: int = 0


def measurements(out: Path) -> dict[str, Timed]:
    words = [study.split() for study in STUDIES]
    return {
        "help": Timed(tuple((*study, "--help") for study in words), 0.7, 2.7),
        "choices": Timed(tuple((*study, "--choices") for study in words), 0.7, 2.7),
        "typo": Timed(tuple((*study, "--sead", "3") for study in words), 0.7, 2.7, code=2),
        "demo": Timed((("demo", "--out", str(out)),), 6.0, 20.0),
        "report": Timed((("report", "--out", str(out)),), 3.0, 6.0),
    }


def cpu_seconds(command: Sequence[str], *, code: int = 0, repeats: int = 3) -> float:
    """The fewest CPU seconds of a command, children included, of several processes."""
    taken = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ended = subprocess.run(command, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if ended.returncode != code:
            raise SystemExit(f"{' '.join(command)} ended with {ended.returncode}: {ended.stderr.decode()[-500:]}")
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(taken)


def measured(name: str, timed: Timed, torch: float) -> bool:
    seconds = max(cpu_seconds([*PYTHON, *words], code=timed.code) for words in timed.commands)
    text = f"{name:<8} {seconds:5.2f} CPU seconds, {seconds / torch:.2f} of `import torch` (before: {timed.before:g})"
    return verdict(text, goal=f"under {timed.goal:g}", met=seconds < timed.goal)


def main() -> int:
    parser = parser_of(__doc__ or "", measurements(Path()))
    parser.add_argument("--out", type=Path, default=Path("results"), help="a results folder with the stored demo")
    args = parser.parse_args()
    known = measurements(args.out)
    asked(parser, args.names, known)
    names = args.names or list(known)
    if {"demo", "report"} & set(names):
        subprocess.run([*PYTHON, "demo", "--out", str(args.out)], stdout=subprocess.DEVNULL, check=True)
    torch = cpu_seconds([sys.executable, "-c", "import torch"])
    print(f"`import torch` alone takes {torch:.2f} CPU seconds here", flush=True)
    met = [measured(name, known[name], torch) for name in names]  # all of them, also after a miss
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
