"""Write docs/methods.md, the page of attention methods, from the records that ship and nothing else.

python docs/methods_perplexity.py
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from masks_perplexity import between

from assay.attention import attention
from assay.card.method_card import above, recall
from assay.card.methods import DENSE, MODEL, ONLINE, PREFIX, SHIPPED, TINY, Measured
from assay.core import shipped
from assay.core.run import Numerics, Record
from assay.metrics.bootstrap import LEAST, ratio, ratio_difference
from assay.metrics.intervals import Interval
from assay.report.claims import Claim
from assay.report.rows import Row
from assay.report.text import with_interval
from assay.studies.perplexity.cells import budget_of, cells, error, facts, form, is_dense, sums
from assay.studies.perplexity.field import ASKED
from assay.studies.perplexity.field_claims import (
    END,
    Told,
    at_end,
    field_claims,
    form_of,
    more_right,
    probe_claims,
    told,
)
from assay.studies.perplexity.generating import GENERATE
from assay.studies.perplexity.probing import PROBE

PAGE = Path(__file__).parent / "methods.md"
TEXT = "speeches"
PROTOCOLS = (ONLINE, PREFIX)
TITLES = {MODEL: "SmolLM2-135M", TINY: "the Llama of 260K parameters (stories260K)"}
NOTHING = "-"
END_ALONE = ("window", "streaming_llm")
"""What keeps the end of the text whatever it says: others have to find more than these."""


@cache
def every() -> list[Record]:
    """All records that ship, read once."""
    return shipped.records(SHIPPED)


def records_of(model: str, preset: str) -> list[Record]:
    """The records of a model under a protocol that ship."""
    prefix = preset == PREFIX
    return [
        record
        for record in every()
        if record.run.options["model"]["name"] == model and (record.run.options["protocol"] == "prefix") == prefix
    ]


def is_text(record: Record) -> bool:
    options = record.run.options
    return options["dataset"]["name"] == TEXT and GENERATE not in options


def by_device(records: Sequence[Record]) -> list[list[Record]]:
    """Records by the kind of device that computed them, most first: nothing is compared across kinds."""
    kinds: dict[Numerics, list[Record]] = {}
    for record in records:
        kinds.setdefault(record.run.numerics, []).append(record)
    return sorted(kinds.values(), key=len, reverse=True)


def word_of(options: Mapping[str, Any]) -> str:
    """The method's name with what differs from its published form."""
    return form(attention.load(options["method"]), options["positions"])


@cache
def measured(model: str, preset: str) -> dict[str, list[Measured]]:
    """Every method with dense attention of the same device, budgets from the largest on; those alone that have all."""
    found: dict[str, list[Measured]] = {}
    budgets = ASKED[preset]["budgets"]
    for some in by_device([record for record in records_of(model, preset) if is_text(record)]):
        rows = [row for row in cells(some) if not error(row)]
        dense = next((row for row in rows if is_dense(row)), None)
        own: dict[str, list[Measured]] = {}
        for row in rows if dense else ():
            if not is_dense(row):
                own.setdefault(word_of(row.options), []).append(Measured(word_of(row.options), row, dense, ships=True))
        for word, several in own.items():
            several.sort(key=lambda one: -one.slots)
            if word not in found and tuple(one.slots for one in several) == tuple(budgets):
                found[word] = several
    return dict(sorted(found.items(), key=lambda pair: above(pair[1][-1]).mean))


def speeds(model: str, preset: str) -> tuple[dict[str, str], str]:
    """Tokens per second over those of dense attention on the same device, and what that device was. On a CPU, whose
    cores others may use, seconds are those of the process."""
    there = [record for record in records_of(model, preset) if GENERATE in record.run.options]
    for some in by_device(there):
        told = some[0].provenance
        key = "tokens_per_second" if told.gpu else "tokens_per_cpu_second"
        rates = {word_of(r.run.options): r.cost.get(key) for r in some if not r.refusal}
        refused = {word_of(r.run.options): "evicts nothing" for r in some if r.refusal}
        whole = rates.pop(DENSE, None)
        slots = next((r.run.options["budget"]["slots"] for r in some if r.run.options["budget"]["slots"]), None)
        if whole and slots:
            per = "s" if told.gpu else "CPU second"
            where = f"{told.gpu or told.cpu or told.machine}, dense {whole:.0f} tokens per {per}; budget of {slots}"
            return {word: f"{rate / whole:.2f}x" for word, rate in rates.items() if rate} | refused, where
    return {}, ""


def each(own: Sequence[Measured], shown: Callable[[Measured], str]) -> str:
    """A cell with a number for each budget."""
    return " / ".join(shown(one) for one in own)


def losses(model: str, preset: str) -> str:
    """The table of losses, bytes and speed."""
    found, (rates, where) = measured(model, preset), speeds(model, preset)
    slots = ASKED[preset]["budgets"]
    asked = "slots" if preset == ONLINE else "keys"
    every = " / ".join(map(str, slots))
    head = ["method", *(f"loss, {k} {asked}" for k in slots), f"recall, {every}", f"kB held, {every}", "tokens/s"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for word, own in found.items():
        row = [f"`{word}`", *(with_interval(above(one), ".3f") for one in own)]
        row += [each(own, _recall), each(own, lambda one: f"{one.held / 1000:,.0f}"), rates.get(word, NOTHING)]
        lines.append(f"| {' | '.join(row)} |")
    lacking = [word for word in words(preset) if word not in found]
    notes = [f"Records of {', '.join(f'`{word}`' for word in lacking)} do not ship yet."] if lacking else []
    once = f"Tokens/s: over dense attention, one sequence at a time, one measurement each ({where})."
    notes += [once if where else "Decoding: not measured."]
    return "\n".join([*lines, "", " ".join(notes)])


def _recall(one: Measured) -> str:
    found = recall(one)
    return f"{found.mean:.2f}" if found else NOTHING


def words(preset: str) -> list[str]:
    names = [attention.parse(word).name for word in ASKED[preset]["methods"]]
    return [form_of(preset, name) for name in names if name != DENSE]


def probed(model: str, preset: str) -> dict[str, list[Row]]:
    """The cells of each probe, of the kind of device that has most."""
    found: dict[str, list[Row]] = {}
    for some in by_device([record for record in records_of(model, preset) if PROBE in record.run.options["dataset"]]):
        for row in cells(some):
            name = str(row.options["dataset"]["name"]).removeprefix(f"{PROBE}:")
            if not error(row):
                found.setdefault(name, []).append(row)
        return found
    return found


def right(row: Row, *, at_end: bool = False) -> Interval:
    """The share of the answer's tokens that are the likeliest, where it lies before the end of the text or at it."""
    return right_of([row], at_end=at_end)


def right_of(rows: Sequence[Row], *, at_end: bool) -> Interval:
    """The same of several probes together."""
    kept = [
        (right, tokens)
        for row in rows
        for depth, right, tokens in zip(facts(row, "depths"), *sums(row, "right", "tokens"), strict=True)
        if (depth == END) == at_end
    ]
    return ratio([right for right, _ in kept], [tokens for _, tokens in kept])


def does(dense: Row, floor: Row) -> bool:
    """Return whether dense attention is told from the floor, by its loss and by the tokens that are right."""
    top, bottom = sums(dense, "nll", "tokens", "right"), sums(floor, "nll", "tokens", "right")
    gain = ratio_difference(*bottom[:2], *top[:2])
    more = ratio_difference(top[2], top[1], bottom[2], bottom[1])
    return gain.low is not None and more.low is not None and min(gain.low, more.low) > 0


def probes(model: str, preset: str) -> str:
    """The table of probes: the ceiling and the floor first, then the methods at their budgets."""
    found = probed(model, preset)
    if not found:
        return "Probes: not measured."
    floors = {name: next(row for row in own if row.options["dataset"]["floor"]) for name, own in found.items()}
    dense = {name: next(r for r in own if is_dense(r) and r is not floors[name]) for name, own in found.items()}
    done = [name for name in sorted(found) if does(dense[name], floors[name])]
    undone = [name for name in sorted(found) if name not in done]
    said = [f"{name} ({_of(dense[name])} right, floor {_of(floors[name])})" for name in undone]
    notes = [f"Dense attention does not do {', '.join(said)}: nothing can be lost there."] if said else []
    if not done:
        return " ".join(notes)
    slots = ASKED[preset]["budgets"]
    every = " / ".join(map(str, slots))
    head = ["method", *(f"{name}, {every}" for name in done), f"at the end, {every}"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for said, ends in (("dense (ceiling)", dense), ("dense, answer not in the text (floor)", floors)):
        last = _shown(right_of([ends[name] for name in done], at_end=True))
        lines.append(f"| {said} | {' | '.join(_of(ends[name]) for name in done)} | {last} |")
    shares = {name: _shares(found[name]) for name in done}
    last_ones = _at_end([row for name in done for row in found[name]])
    order = sorted(words(preset), key=lambda word: -_mean([shares[name].get(word, {}) for name in done]))
    alone = [form_of(preset, name) for name in END_ALONE]
    for word in alone + [word for word in order if word not in alone]:
        row = [" / ".join(_shown(by.get(word, {}).get(k)) for k in slots) for by in (*shares.values(), last_ones)]
        said = f"`{word}`, keeps the end{'' if word.startswith('window') else ' and 4 sinks'} alone (floor)"
        lines.append(f"| {said if word in alone else f'`{word}`'} | {' | '.join(row)} |")
    halves = [(i.high - i.low) / 2 for own in shares.values() for by in own.values() for i in by.values() if i.high]
    texts = {interval.n for by in last_ones.values() for interval in by.values()}
    notes.append(
        f"Columns of probes: depths below 1; half of a 95 % interval is at most {max(halves):.2f} ({LEAST} texts or "
        f"more, bootstrap). At the end: depth 1, all probes together, {max(texts)} texts, too few for an interval."
    )
    return "\n".join([*lines, "", " ".join(notes)])


def _shares(rows: Sequence[Row]) -> dict[str, dict[int, Interval]]:
    found: dict[str, dict[int, Interval]] = {}
    for row in rows:
        if not is_dense(row):
            found.setdefault(word_of(row.options), {})[int(budget_of(row).slots or 0)] = right(row)
    return found


def _at_end(rows: Sequence[Row]) -> dict[str, dict[int, Interval]]:
    """What each method has right at each budget where the answer lies at the end, over all probes."""
    several: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if not is_dense(row):
            several.setdefault((word_of(row.options), int(budget_of(row).slots or 0)), []).append(row)
    found: dict[str, dict[int, Interval]] = {}
    for (word, slots), own in several.items():
        found.setdefault(word, {})[slots] = right_of(own, at_end=True)
    return found


def _mean(several: Sequence[Mapping[int, Interval]]) -> float:
    every = [interval.mean for by in several for interval in by.values()]
    return sum(every) / len(every) if every else -1.0


def _shown(interval: Interval | None) -> str:
    return NOTHING if interval is None else f"{interval.mean:.2f}"


def _of(row: Row) -> str:
    return with_interval(right(row), ".2f")


def findings() -> str:
    """Every claim about the loss with its numbers, and what its verdict rests on."""
    claims = [claim for model in TITLES for preset in PROTOCOLS for claim in field_claims(preset, model)]
    note = "Numbers are nats per token that the first loses more than the second; p is after Holm over all {}."
    return _findings(claims, [record for record in every() if is_text(record)], note)


def answers() -> str:
    """Every claim about the answers of probes, of the model that does them."""
    claims = [claim for preset in PROTOCOLS for claim in probe_claims(preset, MODEL)]
    note = "Numbers: the share of tokens that the first gets right less that of the second; p after Holm over all {}."
    return _findings(claims, [record for record in every() if PROBE in record.run.options["dataset"]], note)


def _findings(claims: Sequence[Claim], records: Sequence[Record], note: str) -> str:
    found = told(records, claims)
    count = sum(each.found is not None for one in found for each in one.judged)
    lines = [_finding(one) for one in sorted(found, key=lambda one: one.verdict != "holds")]
    return "\n".join([*lines, "", note.format(count)])


def _finding(one: Told) -> str:
    numbers = [
        f"k={each.check.rows['budget.slots']} {with_interval(each.found, '.3f')} (p {_small(p)})"
        for each, p in zip(one.judged, one.p, strict=True)
        if each.found is not None and p is not None
    ]
    n = {each.found.n for each in one.judged if each.found is not None}
    said = f"{', '.join(numbers)}; n = {max(n)} texts{_last(one)}" if n else one.judged[0].reason
    return f"- **{one.verdict}**: {one.claim.claim} {said} ({one.claim.source})"


def _last(one: Told) -> str:
    """What a claim about answers leaves out: those at the end of the text."""
    measured = [each for each in one.judged if getattr(each.check.measure, "func", None) is more_right]
    found = [at_end(each) for each in measured if each.found is not None]
    if not found:
        return ""
    return f". At depth 1, not judged: {' / '.join(f'{each.mean:.3f}' for each in found)}, n = {found[0].n}"


def _small(p: float) -> str:
    """A p value; far tails are a normal's, of which no digit is to be believed."""
    return f"{p:.1g}" if p >= 1e-6 else "< 1e-6"


def placed(page: str) -> str:
    """The page with everything that is computed in its place."""
    page = between(page, "findings", findings())
    page = between(page, "answers", answers())
    for model in TITLES:
        for preset in PROTOCOLS:
            page = between(page, f"{model} {preset}", losses(model, preset))
            page = between(page, f"{model} {preset} probes", probes(model, preset))
    return page


if __name__ == "__main__":
    PAGE.write_text(placed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
