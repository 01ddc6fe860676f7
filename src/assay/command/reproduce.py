"""`assay reproduce NAME`: run what others reported, and compare with it.

    $ assay reproduce regression-ols
    regression-ols: Minimum-norm least squares in context errs by 1 - n/d of the variance after n < d examples, ...
      reproduced      error over variance after 10 examples: mean 0.504 of 16 seeds (...), wanted 0.5 ± 0.045
      certificate
        seeds: holds, 16; 9 are enough to decide (...)

The runs of its certificate are computed too, unless the goal was reached without: other recipes, more of them while
the best is at an edge of those tried, and twice the training. With --quick only the claim itself is run.
The claims stand in studies/<name>/claims.py, or in a JSON file of the same form (--file). Records stay in the store: a
second call computes nothing, and `assay findings` judges all claims from what is stored.
"""

import importlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from assay.api import Execution, Session, combined_grid, configure
from assay.command import flags
from assay.command.flags import Parser
from assay.command.progress import say
from assay.core import shipped
from assay.core.convert import construct, nearest
from assay.core.errors import UserError
from assay.core.estimate import duration
from assay.core.plan import Grid
from assay.core.reading import read_json
from assay.core.run import Record, Run
from assay.core.study import Study
from assay.report.certificate import examined
from assay.report.claims import Claim, by_identity, identity
from assay.report.recipes import Keep
from assay.report.section import Section
from assay.report.text import as_markdown, render
from assay.studies import studies


def reproduce(words: list[str]) -> int:
    """Published claims, run and compared: `assay reproduce NAME ...`, or `all`; without a name, what there is."""
    parser = Parser(prog="assay reproduce", description=reproduce.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="claims, or all; without one they are listed")
    parser.add_argument("--file", type=Path, help="claims of your own: a JSON object of claims by name")
    parser.add_argument("--out", default="results", help=flags.OUT)
    parser.add_argument("--device", default="auto", help=flags.DEVICE)
    parser.add_argument("--backend", default="torch", help=flags.BACKEND)
    parser.add_argument("--executor", default="local", help=flags.EXECUTOR)
    parser.add_argument("--workers", type=int, default=0, help=flags.WORKERS)
    parser.add_argument("--quick", action="store_true", help="run the claim alone, without what its certificate needs")
    args = parser.parse_args(words)
    known = claims_in(args.file) if args.file else known_claims()
    if not args.names:
        took = shipped.durations()
        for name, found in known.items():
            print(f"{name}: {found.claim}\n  {found.source}\n  {_took(took.get(name))}")
        return 0
    placing = {key: getattr(args, key) for key in ("out", "device", "backend", "executor", "workers")}
    execution = construct(Execution, placing, what="assay reproduce")
    chosen = list(known) if "all" in args.names else args.names
    for name in chosen:
        if name not in known:
            raise UserError(f"no claim '{name}'.{nearest(name, known)} Known: {', '.join(known)}, or all.")
    sessions = {name: session_of(known[name], execution) for name in chosen}
    return max([run_claim(name, known[name], each, quick=args.quick) for name, each in sessions.items()], default=0)


def _took(found: Mapping[str, Any] | None) -> str:
    """`takes: 12 runs with those of the certificate, 3 min of cpu`."""
    if found is None:
        return "takes: not known, no run of it ships with assay"
    runs = f"{found['runs']} runs with those of the certificate"
    return f"takes: {runs}, {duration(found['seconds'])} of {found['device']}"


def known_claims() -> dict[str, Claim]:
    """The claims by name: those of studies/<name>/claims.py, which import no torch, and those that a study of a
    plug-in file carries itself."""
    folders = dict.fromkeys(name.partition(".")[0] for name in studies.names())
    found: dict[str, Claim] = {}
    for folder in folders:
        if files("assay.studies").joinpath(folder, "claims.py").is_file():
            found |= importlib.import_module(f"assay.studies.{folder}.claims").CLAIMS
        elif folder in studies.names():
            found |= studies[folder].claims
    return found


def claims_in(path: Path) -> dict[str, Claim]:
    """The claims of a JSON file, by name."""
    data = read_json(path, {str: CLAIM}, what="claims", remedy="Give a JSON file of claims by name with --file.")
    return {name: construct(Claim, given, what=f"claim '{name}'") for name, given in data.items()}


CHECK = {"what": str, "rows": (dict, ...)}
CLAIM = {
    "claim": str, "source": str, "study": str, "preset": (str, None, ...), "checks": [CHECK],
    "options": (dict, ...), "grid": ({str: list}, ...), "tables": ([str], ...),
    "certificate": ({
        "about": str, "metric": str, "tried": {str: [float]}, "longer": dict, "number": CHECK, "arms": ([dict], ...),
        "on": (dict, ...)}, None, ...),
}  # fmt: skip
"""What a claim in a file has (core.reading); the rest is converted, or refused, by its name."""


def configured(claim: Claim) -> tuple[Study, Grid]:
    """The study that a claim is about, with its options, and the grid."""
    cls = studies[claim.study]
    study = configure(cls, claim.preset, dict(claim.options))
    return study, combined_grid(cls, claim.preset, claim.grid, named=claim.options)


def session_of(claim: Claim, execution: Execution) -> Session:
    """The claim's runs, planned, and its checks looked at, before anything is computed."""
    session = Session.open(*configured(claim), execution)
    for check in claim.checks:
        check.chosen(session.plan.runs)
    return session


def run_claim(name: str, claim: Claim, session: Session, *, quick: bool = False) -> int:
    """1 unless the verdict, by numbers of all seeds and with its certificate, is that the claim is reproduced."""

    def look(wanted: Claim, keep: Keep) -> tuple[Sequence[Run], Mapping[str, Record]]:
        if wanted is claim:
            return session.plan.runs, by_identity(computed(session))
        opened = session_of(wanted, session.execution)
        runs = [run for run in opened.plan.runs if keep(run)]
        there = _shipped(runs)
        todo = {run.id for run in runs} - {record.run.id for record in there}
        records = opened.stored if quick else computed(replace(opened, todo=[r for r in opened.todo if r.id in todo]))
        return runs, by_identity([*there, *records])

    found = examined(name, claim, look)
    print(f"{name}: {claim.claim}\n  {claim.source}")
    for one in found.judged:
        print(f"  {one.verdict!s:<14}  {one.check.what}: {one.number}, wanted {one.check.wanted}")
    print("  certificate")
    for part in found.parts:
        print(f"    {part}")
    if str(found.verdict) != str(found.checked):
        print(f"  {found.verdict}")
    ids = dict.fromkeys(run.id for check in claim.checks for run in check.chosen(session.plan.runs))
    print(f"  records: {' '.join(ids)}")
    if elsewhere := devices_of(claim, session) - {run.numerics.device for run in session.plan.runs}:
        device = ", ".join(sorted(elsewhere))
        print(
            f"  what ships is of {device}, where the same runs come out otherwise: `assay findings` has their numbers"
        )
    for table in tables_of(claim, found.records).values():
        print(f"\n{table}")
    return int(found.verdict.word != "reproduced")


def devices_of(claim: Claim, session: Session) -> set[str]:
    """The devices of the records that ship of a claim's runs."""
    wanted = set(map(identity, session.plan.runs))
    return {one.run.numerics.device for one in shipped.records(claim.study) if identity(one.run) in wanted}


def _shipped(runs: Sequence[Run]) -> list[Record]:
    """Those of a certificate's runs that ship with assay, from the same kind of device."""
    wanted = {run.id for run in runs}
    studies = dict.fromkeys(run.study for run in runs)
    return [record for study in studies for record in shipped.records(study) if record.run.id in wanted]


def computed(session: Session) -> list[Record]:
    """Compute a session, with its progress and every run that did not finish on standard error."""
    say(session.describe())
    with session.progress(part=session.title.partition(", ")[0]) as watch:
        records = list(session.compute(watch))
    for record in records:
        if record.status != "done":
            reason = (record.error or "a number was not finite").strip().splitlines()[-1]
            say(f"{record.status}: {session.labels[record.run.id]}: {reason}")
    return records


def tables_of(claim: Claim, records: Sequence[Record], *, markdown: bool = False) -> Mapping[str, str]:
    """The tables of the study's report that the claim names, of the runs that finished."""
    done = [record for record in records if record.status == "done"]
    if not claim.tables or not done:
        return {}

    class Enough(Exception):
        """All that is wanted is there; charts and files, which may need weights, are left out."""

    class Wanted(Section):
        def table(self, name: str, *args: Any, **options: Any) -> None:
            super().table(name, *args, **options)
            if {table.name for table in self.tables} >= set(claim.tables):
                raise Enough

    section = Wanted(claim.study)
    with suppress(Enough):
        configured(claim)[0].report(done, section)
    tables = {table.name: table for table in section.tables}
    for name in claim.tables:
        if name not in tables:
            raise UserError(f"{claim.study} has no table '{name}'.{nearest(name, tables)} It has: {', '.join(tables)}.")
    return {name: as_markdown(tables[name]) if markdown else render(tables[name], None) for name in claim.tables}
