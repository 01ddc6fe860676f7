"""`assay findings`: every published claim that assay knows, judged from stored records, as a table or a page.

    $ assay findings --page docs/FINDINGS.md
    $ assay findings --out findings --ship src/assay/shipped      # what the claims rest on, for everybody

Nothing is computed: a claim whose runs are not all stored has the verdict `no record`, and names the command that
makes them. Records that ship with assay count as stored, unless the store has the run itself.
"""

import json
import re
import textwrap
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from assay.command.flags import Parser
from assay.command.progress import say
from assay.command.reproduce import configured, known_claims, tables_of
from assay.core import shipped
from assay.core.convert import nearest
from assay.core.errors import UserError
from assay.core.files import check_writable, disk_errors, write_file
from assay.core.plan import make_plan
from assay.core.run import Numerics, Record, Run, finite
from assay.core.store import Store
from assay.metrics.intervals import Interval
from assay.report.certificate import Finding, examined
from assay.report.claims import Check, Claim, Judged, identity, of_one_kind
from assay.report.recipes import Keep

HEAD = """# Findings

This page judges claims that others published, and questions of our own (their source says *not published*), by stored
runs. `assay findings --page docs/FINDINGS.md` writes it from records that ship with assay; no number is typed by hand.
The verdicts:

- *reproduced*: every number lies where the claim wants it, with its whole interval.
- *not reproduced*: some number lies elsewhere, with its whole interval.
- *undecided*: an interval crosses the limit, or a repeat with as many seeds would agree with a probability below 80 %.
- *not converged*: the result could be a matter of training (another recipe of the grid is told apart as better, the
  claim's own lies at an edge, or doubled training changes the number).
- *no record*: a run that the claim needs is not stored.
- *cannot be judged here*: a sentence of a document that no run here can speak for, with the reason in a word.

A certificate has three parts: the recipe, doubled training, and the seeds. Recipes differ in the options named, often
in the rate alone, and are compared by the number in parentheses; for parity, S5 and zoology that is the number of the
test itself. The last part counts the seeds, for perplexity the clusters of text in their place, and how many are
enough to decide on which side of its limit the number in parentheses lies. A part is *not asked* where the claim is
about one recipe, where nothing is trained, or where the goal was reached. Only claims whose other parts all hold may
be stated elsewhere; `assay findings --certified` lists them. A recipe with a better mean than the claim's own fails
the certificate where the seeds tell the two apart, or where it lies at an edge of the grid and is better by more than
2 %; otherwise it is named, with the paired difference.

`SmolLM2-135M` stands for SmolLM2-135M-Instruct with weights of 4 bits (Q4_1), as `smollm2-135m` fetches it.

What a score of `expressivity` means is asked of codes whose content is known (`assay expressivity --preset planted`).
Where a source has words for a number ("high", "clear", "outperforms"), the limit is ours. Intervals are 95 %: over
seeds; for perplexity, over clusters of text; for claims about the weights of models of modular addition, over models,
one left out at a time."""


UNJUDGED = "cannot be judged here"
WIDTH, INDENT = 118, 16
"""Columns of a line, as of a piped table, and where the claim begins."""


def as_json(one: Finding) -> dict[str, Any]:
    checks = [
        {"what": each.check.what, "verdict": str(each.verdict), "found": each.number, "wanted": each.check.wanted}
        for each in one.judged
    ]
    return {
        "name": one.name,
        "claim": one.claim.claim,
        "source": one.claim.source,
        "verdict": str(one.verdict),
        "certificate": {part.name: {"holds": part.holds, "asked": part.asked, "said": part.said} for part in one.parts},
        "checks": checks,
        "records": len(one.records),
        "command": one.claim.command(one.name),
    }


def findings(words: list[str]) -> int:
    """Every published claim, judged from what is stored: a table, or with --page a page such as docs/FINDINGS.md."""
    parser = Parser(prog="assay findings", description=findings.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="claims, each with its numbers and its certificate")
    parser.add_argument("--out", default="results", help="where the records are")
    parser.add_argument("--page", type=Path, help="a markdown page to write")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    parser.add_argument("--ship", type=Path, metavar="FOLDER", help="write the records that the claims rest on there")
    parser.add_argument("--certified", action="store_true", help="only claims with a verdict and a whole certificate")
    args = parser.parse_args(words)
    if args.certified and (args.page or args.ship):
        raise UserError("--certified lists claims: --page and --ship are about all of them. Leave one out.")
    sources, known = Sources(Path(args.out)), known_claims()
    if unknown := [name for name in args.names if name not in known]:
        raise UserError(f"no claim '{unknown[0]}'.{nearest(unknown[0], known)} `assay findings` lists them.")
    if args.names and (args.page or args.ship):
        raise UserError("--page and --ship are about all claims: name none.")
    for path in filter(None, (args.page, args.ship and args.ship / shipped.MEASURED)):
        check_writable(path)
    chosen = {name: claim for name, claim in known.items() if not args.names or name in args.names}
    found = [judged(name, claim, sources) for name, claim in chosen.items()]
    found = [one for one in found if one.publishable or not args.certified]
    if args.page:
        with disk_errors(args.page):
            args.page.write_text(page(found), encoding="utf-8")
        say(f"wrote {args.page}")
    if args.ship:
        ship(found, args.ship)
    if args.json:
        print(json.dumps(finite([as_json(one) for one in found])[0], indent=1))
    elif args.names and not args.certified:
        print("\n\n".join(map(_details, found)))
    elif not (args.page or args.ship):
        print("\n".join(map(certified_line if args.certified else _short, found)))
        if not args.certified:
            print("\nSentences of the documents:")
            lines = (
                f"{word:<{INDENT - 2}}  {about[:3]} {sentence} ({name})"
                for about, sentence, name, word in sentences(found)
            )
            print("\n".join(map(_wrapped, lines)))
    return 0


def sentences(found: Sequence[Finding]) -> Iterator[tuple[str, str, str, str]]:
    """Yield document, sentence, claim and verdict, for each of the claims that judges the sentence; one that none can
    judge has no claim, and the reason in the verdict."""
    verdicts = {one.name: one.verdict.word for one in found}
    stated = files("assay.studies").joinpath("sentences.toml").read_text(encoding="utf-8")
    for document, judged_by in tomllib.loads(stated).items():
        for sentence, judges in judged_by.items():
            if judges.startswith(UNJUDGED):
                yield document, sentence, "-", judges
            else:
                yield from ((document, sentence, name, verdicts[name]) for name in judges.split() if name in verdicts)


def _short(one: Finding) -> str:
    word, _, more = str(one.verdict).partition(": ")
    line = _wrapped(f"{word:<{INDENT - 2}}  {one.name}: {one.claim.claim}")
    return f"{line}\n{_wrapped(more, ' ' * INDENT)}" if more else line


def _wrapped(text: str, first: str = "") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=" " * INDENT, break_on_hyphens=False)


def certified_line(one: Finding) -> str:
    """The claim in short with its verdict on one line, and on the next the number that decided it; the page has both
    whole. A claim of a user's own that does not fit is cut, its number never."""
    deciding = one.deciding
    assert deciding is not None, "a claim without a number has no verdict"
    found = re.sub(r" \([^)]*\)$", "", deciding.number)  # the page has every seed
    number = f": {found}; wanted {deciding.check.wanted}"
    claim = _shortened(f"{one.name}: {one.claim.short or one.claim.claim}")
    what = _shortened(deciding.check.short or deciding.check.what, number)
    return f"{one.verdict.word:<{INDENT}}{claim}\n{' ' * INDENT}{what}"


def _shortened(text: str, behind: str = "") -> str:
    """The text on one line, with all of what stands behind it."""
    return textwrap.shorten(text, WIDTH - INDENT - len(behind), placeholder=" ...", break_on_hyphens=False) + behind


@dataclass(frozen=True)
class Sources:
    """What is stored in a folder or ships with assay, read once."""

    out: Path
    read: dict[str, list[tuple[str, Record]]] = field(default_factory=dict)
    numbers: Mapping[str, Mapping[str, Any]] = field(default_factory=shipped.measured)

    def of(self, runs: Sequence[Run], numerics: Numerics | None = None) -> dict[str, Record]:
        """The records of these runs, by identity; of the same run, the stored one counts. All are of one kind of
        device and precision: the given one, or that which has most."""
        wanted = {identity(run) for run in runs}
        studies = dict.fromkeys(run.study for run in runs)
        named = [pair for study in studies for pair in self._named(study) if pair[0] in wanted]
        return of_one_kind(pair for pair in named if numerics in (None, pair[1].run.numerics))

    def _named(self, study: str) -> list[tuple[str, Record]]:
        if study not in self.read:
            known = [*shipped.records(study), *Store(self.out).records(study)]
            there = [record for record in known if record.status in ("done", "diverged")]
            self.read[study] = [(identity(record.run), record) for record in there]
        return self.read[study]


def planned(claim: Claim) -> Sequence[Run]:
    """The runs that a claim needs. Whether they would fit into memory is asked by whoever runs them."""
    return make_plan(*configured(claim), Numerics()).runs


def judged(name: str, claim: Claim, sources: Sources) -> Finding:
    """A claim, judged by the records that are there."""

    computed: list[Numerics] = []

    def look(wanted: Claim, keep: Keep) -> tuple[Sequence[Run], Mapping[str, Record]]:
        """What is doubled or has another recipe has to be computed as the claim's own runs, which come first, are."""
        runs = [run for run in planned(wanted) if keep(run)]
        records = sources.of(runs, computed[0] if computed else None)
        computed.extend(record.run.numerics for record in list(records.values())[:1])
        return runs, records

    def measured(check: Check, chosen: Sequence[Record]) -> Interval | None:
        """Look up what was measured from weights that are not here."""
        entry = sources.numbers.get(shipped.key_of(name, check.what, shipped.digest(chosen)))
        return Interval(*(entry[key] for key in ("mean", "low", "high", "n"))) if entry else None

    try:
        return examined(name, claim, look, measured)
    except UserError as error:
        return Finding(name, claim, reason=str(error))


def ship(found: Sequence[Finding], folder: Path) -> None:
    """Write the records of all claims, by study, and what was measured from weights, which stay where they are."""
    studies: dict[str, dict[str, Record]] = {}
    numbers: list[dict[str, Any]] = []
    needed: dict[str, set[str]] = {}
    for one in found:
        for record in (*one.behind, *one.records):
            studies.setdefault(record.run.study, {})[record.run.id] = record
            needed.setdefault(record.run.id, set()).update(one.claim.series)
        numbers += [entry for judged in (*one.judged, *one.numbers) if (entry := _from_weights(one.name, judged))]
    for study, records_by_id in studies.items():
        shipped.write(folder, study, (_thin(r, needed[r.run.id]) for r in records_by_id.values()))
    with disk_errors(folder):
        unique = {json.dumps(entry): entry for entry in numbers}
        write_file(folder / shipped.MEASURED, (json.dumps(list(unique.values()), indent=1) + "\n").encode())
        text = json.dumps({one.name: took for one in found if (took := duration_of(one))}, indent=1)
        write_file(folder / shipped.DURATIONS, f"{text}\n".encode())
    say(f"wrote {sum(map(len, studies.values()))} records of {len(studies)} studies to {folder}")


def duration_of(one: Finding) -> dict[str, Any]:
    """The runs behind a claim and its certificate, what they took in all, and on which device; {} without records."""
    records = {record.run.id: record for record in (*one.behind, *one.records)}.values()
    seconds = sum(float(record.cost.get("seconds") or 0.0) for record in records)
    devices = sorted({record.provenance.gpu or record.run.numerics.device for record in records})
    return {"runs": len(records), "seconds": round(seconds, 1), "device": " and ".join(devices)} if records else {}


def _thin(record: Record, needed: Collection[str]) -> Record:
    """The record without the values per epoch that no claim reads."""
    kept = {name: value for name, value in record.metrics.items() if name not in shipped.SERIES or name in needed}
    for name, part in (each.split(".") for each in needed if "." in each):
        if name in record.metrics and name not in needed:
            kept[name] = kept.get(name, {}) | {part: record.metrics[name][part]}
    return replace(record, metrics=kept)


def _from_weights(name: str, judged: Judged) -> dict[str, Any] | None:
    """The entry of a number that cannot be measured again from the records alone."""
    check = judged.check
    if check.measure is None or judged.found is None:
        return None
    records = [replace(record, folder=None) for record in judged.records]
    try:
        check.measure(records)
    except UserError:
        return {"claim": name, "check": check.what, "records": shipped.digest(records), **vars(judged.found)}
    return None


def page(found: Sequence[Finding]) -> str:
    """The page: one table of all claims, then each with its checks and tables."""
    summary = ["| claim | verdict | number | wanted |", "| --- | --- | --- | --- |"]
    summary += [_line(one) for one in found]
    stated = ["## Sentences of the documents\n", "| document | sentence | id | verdict |", "| --- | --- | --- | --- |"]
    for document, sentence, name, word in sentences(found):
        judge = name if name == "-" else f"[{name}](#{name})"
        stated.append(f"| {document} | {_cell(sentence)} | {judge} | {word} |")
    return "\n\n".join([HEAD, "\n".join(summary), "\n".join(stated), *(_details(one) for one in found)]) + "\n"


def _line(one: Finding) -> str:
    deciding = one.deciding
    cells = [f"[{one.name}](#{one.name}): {one.claim.claim}", f"**{one.verdict}**"]
    cells += [deciding.number, deciding.check.wanted] if deciding else [one.reason or "-", "-"]
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _details(one: Finding) -> str:
    devices = sorted({record.run.numerics.device for record in one.records})
    made = f"{len(one.records)} records on {' and '.join(devices)}" if one.records else "No records"
    if others := {record.run.id for record in one.behind} - {record.run.id for record in one.records}:
        made += f", and {len(others)} more behind its certificate"
    lines = [f"## {one.name}", f"*{one.claim.claim}* ({one.claim.source})"]
    checks = [f"- **{j.verdict}** {j.check.what}: {j.number}; wanted {j.check.wanted}" for j in one.judged]
    parts = ["Certificate:", "", *(f"- {part}" for part in one.parts)] if one.parts else []
    lines += ["\n".join(checks), "\n".join(parts)]
    lines.append(f"{made}, made by `{one.claim.command(one.name)}`." + (f" {one.reason}" if one.reason else ""))
    tables: Mapping[str, str] = tables_of(one.claim, one.records, markdown=True)
    return "\n\n".join(part for part in [*lines, *tables.values()] if part)
