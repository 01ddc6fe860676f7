"""`assay findings`: every published claim that assay knows, judged from stored records, as a table or a page.

    $ assay findings --page docs/FINDINGS.md
    $ assay findings --out findings --ship src/assay/shipped      # what the claims rest on, for everybody

Nothing is computed: a claim whose runs are not all stored has the verdict `no record`, and names the command that
makes them. Records that ship with assay count as stored, unless the store has the run itself.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from assay.command.flags import Parser
from assay.command.progress import say
from assay.command.reproduce import known_claims, tables_of
from assay.core import shipped
from assay.core.errors import UserError
from assay.core.files import disk_errors, write_file
from assay.core.run import Numerics, Record, Run, finite
from assay.metrics.intervals import Interval
from assay.report.certificate import Part, certified, steady, tuned
from assay.report.claims import Check, Claim, Judged, Measured, Verdict, identity, judge, of_one_kind, worst

HEAD = """# Findings

Published claims, and what the stored records say of them. `assay findings --page docs/FINDINGS.md` writes this page
from records alone, which ship with assay; no number in it is typed by hand. A claim is

- *reproduced* where every number with its whole interval lies where the claim wants it,
- *not reproduced* where one lies elsewhere,
- *undecided* where an interval crosses the limit,
- *not converged* where a miss could be one of training: the recipe is not the best of a grid, or lies at its edge, or
  doubled training changes the number,
- without a verdict (*no record*) where a run that it needs is not stored.

The spec of `expressivity` states no number. Intervals are 95 %."""


@dataclass(frozen=True)
class Finding:
    """A claim with the verdict on each of its checks."""

    name: str
    claim: Claim
    judged: tuple[Judged, ...]
    records: tuple[Record, ...]
    reason: str = ""
    """Why nothing could be planned, such as a data set that is not on this machine."""
    parts: tuple[Part, ...] = ()
    """The parts of its certificate."""
    behind: tuple[Record, ...] = ()
    """Records that the certificate rests on."""

    @property
    def checked(self) -> Verdict:
        return worst(one.verdict for one in self.judged) if self.judged else Verdict("no record")

    @property
    def verdict(self) -> Verdict:
        return certified(self.checked, self.claim, self.parts)

    @property
    def deciding(self) -> Judged | None:
        """The check that the verdict is that of."""
        return next((one for one in self.judged if one.verdict == self.checked), None)

    def to_json(self) -> dict[str, Any]:
        checks = [
            {"what": one.check.what, "verdict": str(one.verdict), "found": one.number, "wanted": one.check.wanted}
            for one in self.judged
        ]
        return {
            "name": self.name,
            "claim": self.claim.claim,
            "source": self.claim.source,
            "verdict": str(self.verdict),
            "certificate": {part.name: {"holds": part.holds, "said": part.said} for part in self.parts},
            "checks": checks,
            "records": len(self.records),
            "command": self.claim.command(self.name),
        }


def findings(words: list[str]) -> int:
    """Every published claim, judged from what is stored: a table, or with --page a page such as docs/FINDINGS.md."""
    parser = Parser(prog="assay findings", description=findings.__doc__)
    parser.add_argument("--out", default="results", help="where the records are")
    parser.add_argument("--page", type=Path, help="a markdown page to write")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    parser.add_argument("--ship", type=Path, metavar="FOLDER", help="write the records that the claims rest on there")
    args = parser.parse_args(words)
    sources = Sources(Path(args.out))
    found = [judged(name, claim, sources) for name, claim in known_claims().items()]
    if args.page:
        with disk_errors(args.page):
            args.page.write_text(page(found), encoding="utf-8")
        say(f"wrote {args.page}")
    if args.ship:
        ship(found, args.ship)
    if args.json:
        print(json.dumps(finite([one.to_json() for one in found])[0], indent=1))
    elif not (args.page or args.ship):
        for one in found:
            print(f"{one.verdict!s:<14}  {one.name}: {one.claim.claim}")
    return 0


@dataclass(frozen=True)
class Sources:
    """What is stored in a folder or ships with assay, read once."""

    out: Path
    read: dict[str, list[tuple[str, Record]]] = field(default_factory=dict)
    numbers: Mapping[str, Mapping[str, Any]] = field(default_factory=shipped.measured)

    def of(self, runs: Sequence[Run]) -> dict[str, Record]:
        """The records of these runs, by identity; of the same run, the stored one counts."""
        wanted = {identity(run) for run in runs}
        studies = dict.fromkeys(run.study for run in runs)
        return of_one_kind(pair for study in studies for pair in self._named(study) if pair[0] in wanted)

    def _named(self, study: str) -> list[tuple[str, Record]]:
        from assay.core.store import Store

        if study not in self.read:
            known = [*shipped.records(study), *Store(self.out).records(study)]
            there = [record for record in known if record.status in ("done", "diverged")]
            self.read[study] = [(identity(record.run), record) for record in there]
        return self.read[study]


def planned(claim: Claim) -> Sequence[Run]:
    """The runs that a claim needs. Whether they would fit into memory is asked by whoever runs them."""
    from assay.api import combined_grid, configure
    from assay.core.plan import make_plan
    from assay.studies import studies

    cls = studies[claim.study]
    grid = combined_grid(cls, claim.preset, claim.grid, named=claim.options)
    return make_plan(configure(cls, claim.preset, dict(claim.options)), grid, Numerics()).runs


def judged(name: str, claim: Claim, sources: Sources) -> Finding:
    """A claim, judged by the records that are there."""
    try:
        runs = planned(claim)
    except UserError as error:
        return Finding(name, claim, (), (), reason=str(error))
    stored = sources.of(runs)

    def measured(check: Check, chosen: Sequence[Record]) -> Interval | None:
        entry = sources.numbers.get(shipped.key_of(name, check.what, shipped.digest(chosen)))
        return Interval(*(entry[key] for key in ("mean", "low", "high", "n"))) if entry else None

    found = tuple(judge(check, runs, stored, measured) for check in claim.checks)
    parts, behind = _certificate(claim, runs, stored, sources, measured)
    return Finding(name, claim, found, _those(runs, stored), parts=parts, behind=behind)


def _those(runs: Sequence[Run], stored: Mapping[str, Record]) -> tuple[Record, ...]:
    return tuple(stored[key] for run in runs if (key := identity(run)) in stored)


def _certificate(
    claim: Claim, runs: Sequence[Run], stored: Mapping[str, Record], sources: Sources, measured: Measured
) -> tuple[tuple[Part, ...], tuple[Record, ...]]:
    """The parts of the claim's certificate, and the records that they rest on."""
    certificate = claim.certificate
    if certificate is None:
        return (), ()
    others = replace(claim, options={**claim.options, **certificate.on}, grid=certificate.tried, checks=())
    longer = replace(claim, options={**claim.options, **certificate.longer}, checks=())
    tried, doubled = planned(others), planned(longer)
    compared, more = sources.of(tried), sources.of(doubled)
    before = judge(certificate.number, runs, stored, measured)
    after = judge(certificate.number, doubled, more, measured)
    own = certificate.number.chosen(runs)[0]
    parts = tuned(certificate, own, tried, compared), steady(certificate, before, after)
    return parts, (*_those(tried, compared), *_those(doubled, more))


def ship(found: Sequence[Finding], folder: Path) -> None:
    """Write the records of all claims, by study, and what was measured from weights, which stay where they are."""
    studies: dict[str, dict[str, Record]] = {}
    numbers: list[dict[str, Any]] = []
    for one in found:
        for record in (*one.behind, *one.records):
            studies.setdefault(record.run.study, {})[record.run.id] = record
        numbers += [entry for judged in one.judged if (entry := _from_weights(one, judged))]
    for study, records_by_id in studies.items():
        shipped.write(folder / f"{study}.jsonl.gz", records_by_id.values())
    with disk_errors(folder):
        write_file(folder / shipped.MEASURED, (json.dumps(numbers, indent=1) + "\n").encode())
    say(f"wrote {sum(map(len, studies.values()))} records of {len(studies)} studies to {folder}")


def _from_weights(one: Finding, judged: Judged) -> dict[str, Any] | None:
    """The entry of a number that cannot be measured again from the records alone."""
    check = judged.check
    if check.measure is None or judged.found is None:
        return None
    chosen = set(check.chosen([record.run for record in one.records]))
    records = [replace(record, folder=None) for record in one.records if record.run in chosen]
    try:
        check.measure(records)
    except UserError:
        return {"claim": one.name, "check": check.what, "records": shipped.digest(records), **vars(judged.found)}
    return None


def page(found: Sequence[Finding]) -> str:
    """The page: one table of all claims, then each with its checks and tables."""
    summary = ["| claim | verdict | number | wanted |", "| --- | --- | --- | --- |"]
    summary += [_line(one) for one in found]
    return "\n\n".join([HEAD, "\n".join(summary), *(_details(one) for one in found)]) + "\n"


def _line(one: Finding) -> str:
    deciding = one.deciding
    cells = [f"[{one.name}](#{one.name}): {one.claim.claim}", f"**{one.verdict}**"]
    cells += [deciding.number, deciding.check.wanted] if deciding else [one.reason or "-", "-"]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _details(one: Finding) -> str:
    devices = sorted({record.run.numerics.device for record in one.records})
    made = f"{len(one.records)} records on {' and '.join(devices)}" if one.records else "No records"
    lines = [f"## {one.name}", f"*{one.claim.claim}* ({one.claim.source})"]
    lines.append(
        "\n".join(f"- **{j.verdict}** {j.check.what}: {j.number}; wanted {j.check.wanted}" for j in one.judged)
    )
    lines += ["\n".join(f"- {'holds' if part.holds else 'fails'}, {part.name}: {part.said}" for part in one.parts)]
    lines.append(f"{made}, made by `{one.claim.command(one.name)}`." + (f" {one.reason}" if one.reason else ""))
    tables: Mapping[str, str] = tables_of(one.claim, one.records, markdown=True)
    return "\n\n".join(part for part in [*lines, *tables.values()] if part)
