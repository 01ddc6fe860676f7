"""`assay findings`: every published claim that assay knows, judged from stored records, as a table or a page.

    $ assay findings --page docs/FINDINGS.md
    $ assay findings --out findings --ship src/assay/shipped      # what the claims rest on, for everybody

Nothing is computed: a claim whose runs are not all stored has the verdict `no record`, and names the command that
makes them. Records that ship with assay count as stored, unless the store has the run itself.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.command.flags import Parser
from assay.command.progress import say
from assay.command.reproduce import known_claims, session_of, tables_of
from assay.core import shipped
from assay.core.errors import UserError
from assay.core.files import disk_errors, write_file
from assay.core.run import Record, finite
from assay.metrics.intervals import Interval
from assay.report.claims import Check, Claim, Judged, Verdict, by_identity, identity, judge, worst

HEAD = """# Findings

Published claims, and what the stored records say of them. `assay findings --page docs/FINDINGS.md` writes this page
from records alone; no number in it is typed by hand. A claim is *reproduced* where every number with its whole interval
lies where the claim wants it, *not reproduced* where one lies elsewhere, *undecided* where an interval crosses the
limit, and has *no record* where a run that it needs is not stored. The records ship with assay; the commands make them
again."""


@dataclass(frozen=True)
class Finding:
    """A claim with the verdict on each of its checks."""

    name: str
    claim: Claim
    judged: tuple[Judged, ...]
    records: tuple[Record, ...]
    reason: str = ""
    """Why nothing could be planned, such as a data set that is not on this machine."""

    @property
    def verdict(self) -> Verdict:
        return worst(one.verdict for one in self.judged) if self.judged else Verdict("no record")

    @property
    def deciding(self) -> Judged | None:
        """The check that the verdict is that of."""
        return next((one for one in self.judged if one.verdict == self.verdict), None)

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
    found = [judged(name, claim, args.out) for name, claim in known_claims().items()]
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


def judged(name: str, claim: Claim, out: str | Path) -> Finding:
    """A claim, judged by the records that are stored or shipped; of the same run, the stored one counts."""
    from assay.api import Execution
    from assay.core.store import Store

    try:
        runs = session_of(claim, Execution(out=Path(out), device="cpu")).plan.runs
    except UserError as error:
        return Finding(name, claim, (), (), reason=str(error))
    made_by = dict.fromkeys(run.study for run in runs)
    known = [r for study in made_by for r in (*shipped.records(study), *Store(out).records(study))]
    stored = by_identity((record for record in known if record.status in ("done", "diverged")), runs)
    records = tuple(stored[key] for run in runs if (key := identity(run)) in stored)
    numbers = shipped.measured()

    def measured(check: Check, chosen: Sequence[Record]) -> Interval | None:
        entry = numbers.get(shipped.key_of(name, check.what, shipped.digest(chosen)))
        return Interval(*(entry[key] for key in ("mean", "low", "high", "n"))) if entry else None

    return Finding(name, claim, tuple(judge(check, runs, stored, measured) for check in claim.checks), records)


def ship(found: Sequence[Finding], folder: Path) -> None:
    """Write the records of all claims, by study, and what was measured from weights, which stay where they are."""
    studies: dict[str, dict[str, Record]] = {}
    numbers: list[dict[str, Any]] = []
    for one in found:
        for record in one.records:
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
    lines.append(f"{made}, made by `{one.claim.command(one.name)}`." + (f" {one.reason}" if one.reason else ""))
    tables: Mapping[str, str] = tables_of(one.claim, one.records, markdown=True)
    return "\n\n".join(part for part in [*lines, *tables.values()] if part)
