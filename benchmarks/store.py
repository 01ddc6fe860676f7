"""Measures CPU seconds and memory of commands on a store of 100,000 records, and the overhead per run.

    python benchmarks/store.py                                    every measurement, on a store made for it
    python benchmarks/store.py --store FOLDER show report         some, on one that benchmarks/stored.py wrote

Each command runs in a process of its own; seconds are CPU time, so that other processes matter little. The index is
made by the first `show`, which is measured too. The exit code is 1 if a goal is missed.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from measuring import asked, parser_of, verdict

RUNS = 2000
MB = 1000**2
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Cost:
    seconds: float
    memory: float
    """Peak resident bytes."""


def cost_of(words: Sequence[str]) -> Cost:
    """Measure a command; its output is dropped."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(words)} failed:\n{said}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def judged(name: str, words: Sequence[str], *, seconds: float, memory: float | None = None) -> bool:
    cost = cost_of(words)
    goal = f"{seconds:g} s" + (f", {memory / MB:.0f} MB" if memory else "")
    met = cost.seconds <= seconds and (memory is None or cost.memory <= memory)
    return verdict(f"{name}: {cost.seconds:.1f} s of CPU, {cost.memory / MB:.0f} MB", goal=goal, met=met)


def assay(*words: str) -> list[str]:
    return [sys.executable, "-m", "assay", *words]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def show(out: Path) -> bool:
    for index in out.glob(".store/*/.index"):
        index.unlink()
    first = cost_of(assay("show", "--out", str(out)))
    print(f"show, the first time, which makes the index: {first.seconds:.1f} s of CPU, {first.memory / MB:.0f} MB")
    return judged("show", assay("show", "--out", str(out)), seconds=5, memory=500 * MB)


def show_id(out: Path) -> bool:
    run = max((out / ".store" / "icl").iterdir())
    return judged("show ID", assay("show", run.name, "--out", str(out)), seconds=5, memory=500 * MB)


def planned(seeds: range) -> str:
    """Write a script that plans the icl study's stored runs: their options, with the generator's axes."""
    return f"""
import sys; sys.path.insert(0, {str(HERE)!r})
import tempfile
from dataclasses import replace
from pathlib import Path
from assay.api import Execution, Session, configure
from assay.models.sequence import SequenceModel
from assay.studies import studies
from assay.train.recipe import Train
from stored import MIXERS, RATES, TASKS
model = SequenceModel(model_dim=32, positions="auto", num_layers=1)
train = Train(max_steps=10, micro_batch_size=4, validate_every=2)
study = configure(studies["icl"], None, dict(eval_size=20, train=train, model=model))
axes = {{"task": TASKS, "model.seq_mixer": MIXERS, "optimizer.lr": RATES, "seed": {[str(seed) for seed in seeds]!r}}}
session = Session.open(study, axes, Execution(out=Path(sys.argv[1])))
"""


def resume(out: Path) -> bool:
    """Measure a plan of some 2,000 runs that are all stored."""
    code = planned(range(8)) + f"assert len(session.stored) > {RUNS} * 0.9, session.describe(); session.compute()"
    return judged("resume", [*python(code), str(out)], seconds=5, memory=500 * MB)


def new_runs(out: Path) -> bool:
    """Measure the same plan with as many runs that are not stored, and their estimate."""
    code = planned(range(1000, 1008)) + f"assert len(session.todo) > {RUNS} * 0.9; print(session.describe())"
    return judged("a plan with new runs", [*python(code), str(out)], seconds=5, memory=500 * MB)


def load(out: Path) -> bool:
    return judged("assay.load", python(f"import assay; assay.load({str(out)!r})"), seconds=10)


def to_pandas(out: Path) -> bool:
    code = f"import assay; assay.load({str(out)!r}).to_pandas()"
    return judged("assay.load and to_pandas", python(code), seconds=20)


def report(out: Path) -> bool:
    met = judged("report", assay("report", "--out", str(out)), seconds=60, memory=1000 * MB)
    size = (out / "report.html").stat().st_size
    return verdict(f"report: a page of {size / MB:.1f} MB", goal="5 MB", met=size <= 5 * MB) and met


TRIVIAL = f"""
import sys, time; sys.path.insert(0, {str(HERE.parent / "tests")!r})
import assay, toy
if __name__ == "__main__":
    start = time.perf_counter()
    found = assay.run("toy", xs=tuple(range({RUNS})), seeds=(0,), out=sys.argv[1], executor=sys.argv[2], workers=2)
    assert len(found) == {RUNS}
    print((time.perf_counter() - start) / {RUNS})
"""
PLAIN = f"""
import json, os, sys, time
start = time.perf_counter()
for x in range({RUNS}):
    folder = os.path.join(sys.argv[1], str(x)); os.makedirs(folder)
    for name, data in (("note.txt", str(x)), ("record.json", json.dumps({{"x": x, "square": x * x}}))):
        with open(os.path.join(folder, name + ".new"), "w") as file:
            file.write(data); file.flush(); os.fsync(file.fileno())
        os.replace(file.name, os.path.join(folder, name))
print((time.perf_counter() - start) / {RUNS})
"""


def overhead(out: Path) -> bool:
    """Measure the wall time of planning, locks, messages and the store per run, over 2,000 that compute nothing,
    against a loop that only writes as many files as safely."""

    def per_run(code: str, *words: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "script.py"  # a file: workers import it
            script.write_text(code)
            done = subprocess.run([sys.executable, script, f"{folder}/out", *words], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        return float(done.stdout.split()[-1])

    plain = per_run(PLAIN)
    met = []
    for executor in ("serial", "local"):
        ours = per_run(TRIVIAL, executor) - plain
        name = {"serial": "serial", "local": "2 workers"}[executor]
        text = f"overhead per trivial run, {name}: {ours * 1e3:.2f} ms over the plain loop's {plain * 1e3:.2f} ms"
        met.append(verdict(text, goal="10 ms", met=ours <= 0.01))
    return all(met)


MEASUREMENTS: dict[str, Callable[[Path], bool]] = {
    function.__name__: function for function in (show, show_id, resume, new_runs, load, to_pandas, report, overhead)
}


def main() -> int:
    parser = parser_of(__doc__ or "", MEASUREMENTS)
    parser.add_argument("--store", type=Path, help="a folder that benchmarks/stored.py wrote; without it, one is made")
    parser.add_argument("--records", type=int, default=100_000, help="of the store that is made")
    arguments = parser.parse_args()
    names = arguments.names or list(MEASUREMENTS)
    asked(parser, names, MEASUREMENTS)
    with tempfile.TemporaryDirectory() as made:
        out = arguments.store or Path(made)
        if arguments.store is None and set(names) != {"overhead"}:
            start = time.monotonic()
            # In a process of its own: a child's peak memory counts what its parent held when it was forked.
            subprocess.run([sys.executable, str(HERE / "stored.py"), str(out), str(arguments.records)], check=True)
            print(f"{arguments.records:,} records written in {time.monotonic() - start:.0f} s", flush=True)
        met = [MEASUREMENTS[name](out) for name in names]
        return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
