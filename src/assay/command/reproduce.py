"""`assay reproduce NAME`: run what others reported, and compare with it.

    $ assay reproduce regression-ols
    regression-ols: Minimum-norm least squares in context errs by 1 - n/d of the variance after n < d examples, ...
      pass  error over variance after 10 examples: mean 0.504 of seeds 0 1 2 (0.5204 0.4741 0.5174), wanted 0.5 ± 0.045

reproductions.json holds the claims: a study with its options and grid, as `assay.run` takes them, and checks, each a
number of some records, reduced over seeds, with its target; and tables of the study to print under them. Records stay
in the store: a second call computes nothing.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from assay.command.flags import Parser
from assay.command.progress import say, shown
from assay.core.convert import construct, nearest
from assay.core.errors import UserError
from assay.core.files import read_file
from assay.core.run import Record, Run, canonical, flat
from assay.core.words import printable

if TYPE_CHECKING:
    from assay.api import Execution, Session

REDUCTIONS: dict[str, Callable[[Iterable[float]], float]] = {"mean": fmean, "min": min, "max": max}


@dataclass(frozen=True, kw_only=True)
class Check:
    """One number that a claim stands or falls with."""

    what: str
    """The number in words."""
    metric: str
    """A dotted path into the metrics; `by_answer.5` is an entry of a list."""
    rows: Any = field(default_factory=dict)
    """Which runs: dotted options and their values. They may differ in their seed alone."""
    over: Literal["mean", "min", "max"] = "mean"
    """What is made of the seeds."""
    at_least: float | None = None
    at_most: float | None = None
    target: float | None = None
    tolerance: float | None = None

    def __post_init__(self) -> None:
        wanted = [name for name in ("at_least", "at_most", "target") if getattr(self, name) is not None]
        if len(wanted) != 1 or (self.target is None) != (self.tolerance is None):
            raise UserError(f"check '{self.what}': give one of at_least, at_most, or target with its tolerance.")

    @property
    def wanted(self) -> str:
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        return f"at most {self.at_most:g}" if self.at_most is not None else f"{self.target:g} ± {self.tolerance:g}"

    def is_met(self, value: float) -> bool:
        if self.at_least is not None:
            return value >= self.at_least
        if self.at_most is not None:
            return value <= self.at_most
        assert self.target is not None and self.tolerance is not None
        return abs(value - self.target) <= self.tolerance

    def chosen(self, runs: Sequence[Run]) -> list[Run]:
        """The runs that the check is about: at least one, and of one setting, or nothing is computed."""
        found = [run for run in runs if _has(flat(run.options), self.rows)]
        if len({canonical({**run.to_json(), "seed": None}) for run in found}) != 1:
            kind = "runs of several settings" if found else "no run"
            raise UserError(f"check '{self.what}': its rows, {canonical(self.rows)}, choose {kind} of the plan.")
        return found


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A published claim, and what has to come out here."""

    claim: str
    source: str
    study: str
    options: Any
    checks: tuple[Check, ...]
    grid: Any = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    """Tables of the study's report to print under the checks."""

    def session(self, execution: "Execution") -> "Session":
        """Planned and checked, before anything is computed."""
        from assay.api import Session, combined_grid, configure
        from assay.studies import studies

        cls = studies[self.study]
        grid = combined_grid(cls, None, self.grid, named=self.options)
        session = Session.open(configure(cls, None, dict(self.options)), grid, execution)
        for check in self.checks:
            check.chosen(session.plan.runs)
        return session


def reproduce(words: list[str]) -> int:
    """Published claims, run and compared: `assay reproduce NAME ...`, or `all`; without a name, what there is."""
    parser = Parser(prog="assay reproduce", description=reproduce.__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--file", type=Path, help="claims of your own, in the form of assay/reproductions.json")
    parser.add_argument("--out", default="results")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--executor", default="local")
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args(words)
    known = reproductions(args.file)
    if not args.names:
        for name, found in known.items():
            print(f"{name}: {found.claim}\n  {found.source}")
        return 0
    from assay.api import Execution

    placing = {key: getattr(args, key) for key in ("out", "device", "executor", "workers")}
    execution = construct(Execution, placing, what="assay reproduce")
    chosen = list(known) if "all" in args.names else args.names
    for name in chosen:
        if name not in known:
            raise UserError(f"no reproduction '{name}'.{nearest(name, known)} Known: {', '.join(known)}, or all.")
    sessions = {name: known[name].session(execution) for name in chosen}
    return max([_run(name, known[name], session) for name, session in sessions.items()])


def reproductions(path: Path | None = None) -> dict[str, Reproduction]:
    """By name: those that come with assay, or those of a file."""
    source = path or files("assay").joinpath("reproductions.json")
    try:
        data = json.loads(read_file(path) if path else source.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read claims from '{source}': {error}. Give a JSON file with --file.") from None
    if not isinstance(data, dict):
        raise UserError(f"cannot read claims from '{source}': expected a JSON object, a reproduction by its name.")
    return {name: construct(Reproduction, given, what=f"reproduction '{name}'") for name, given in data.items()}


def _run(name: str, claimed: Reproduction, session: "Session") -> int:
    """1 if a check misses, or has no number for one of its seeds."""
    say(session.describe())
    with shown(session.labels, len(session.todo)) as watch:
        records = {record.run.id: record for record in session.compute(watch)}
    print(f"{name}: {claimed.claim}\n  {claimed.source}")
    missed = False
    for check in claimed.checks:
        kept, found = _compared(check, [records.get(run.id) for run in check.chosen(session.plan.runs)])
        missed |= not kept
        print(f"  {'pass' if kept else 'FAIL'}  {check.what}: {found}, wanted {check.wanted}")
    ids = dict.fromkeys(run.id for check in claimed.checks for run in check.chosen(session.plan.runs))
    print(f"  records: {' '.join(ids)}")
    for record in records.values():
        if record.status != "done":
            reason = (record.error or "a number was not finite").strip().splitlines()[-1]
            say(f"{record.status}: {session.labels[record.run.id]}: {printable(reason)}")
    _print_tables(claimed.tables, session, list(records.values()))
    return int(missed)


def _print_tables(names: Sequence[str], session: "Session", records: Sequence[Record]) -> None:
    """Those of the study's report that the claim names, of what came to an end."""
    done = [record for record in records if record.status == "done"]
    if not names or not done:
        return
    from assay.report.section import Section
    from assay.report.text import render

    section = Section(session.plan.study.name)
    session.plan.study.report(done, section)
    tables = {table.name: table for table in section.tables}
    for name in names:
        if name not in tables:
            raise UserError(
                f"{section.study} has no table '{name}'.{nearest(name, tables)} It has: {', '.join(tables)}."
            )
        print(f"\n{render(tables[name], None)}")


def _compared(check: Check, records: Sequence[Record | None]) -> tuple[bool, str]:
    """Whether the check is met, and what was found: `mean 0.75 of seeds 0 1 (0.74 0.76)`."""
    done = [record for record in records if record and record.status == "done"]
    values = {record.run.seed: _at(record.metrics, check.metric) for record in done}
    numbers = {seed: value for seed, value in values.items() if value is not None}
    if len(numbers) < len(records):
        return False, f"{check.metric} is there for {len(numbers)} of {len(records)} seeds"
    value = REDUCTIONS[check.over](numbers.values())
    each = " ".join(f"{number:.4g}" for number in numbers.values())
    return check.is_met(value), f"{check.over} {value:.4g} of seeds {' '.join(map(str, numbers))} ({each})"


def _has(options: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(key in options and options[key] == value for key, value in wanted.items())


def _at(value: Any, path: str) -> float | None:
    for key in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return float(value) if isinstance(value, int | float) else None
