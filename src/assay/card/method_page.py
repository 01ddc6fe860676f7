"""The page of a method's card is one file that needs no network: verdicts, loss against bytes held, each budget with
the field beside it, the whole field as a table, the method's file and provenance."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from assay.card.charts import MINE, beside, number, sentence, standings
from assay.card.judge import Difference
from assay.card.method_card import FORMATS, BudgetLine, MethodCard, above, differences, recall
from assay.card.methods import DENSE, VERSION, Measured
from assay.core.words import NAMED
from assay.metrics.intervals import Interval
from assay.report.page import build_page
from assay.report.section import Section, Value
from assay.report.style import MUTED

LOSS, RECALLED = "nats per token above dense attention", "the same, of tokens that could be looked up"


LEFT_OUT = "left out: the share of attention that is not computed, as realised"


def page(card: MethodCard, files: Mapping[str, str], notes: Sequence[str] = ()) -> str:
    """Build the page; `files` are those that the method comes from, and `notes` say what was left out."""
    asked = f"What does a language model lose with {card.name}? Protocol {VERSION}; {card.setting}."
    sections = [("Verdicts", asked, _verdicts(card, notes))]
    sections += [(each.name, sentence(told), _budget(card, each)) for each, told in
                 zip(card.lines, card.verdicts(), strict=True) if not each.mine.error]  # fmt: skip
    sections.append(("The field", "Every method beside it, at every budget.", _field(card)))
    # The numbers are in the charts and tables, and would double the page.
    behind = [
        replace(record, run=replace(record.run, study="The field"), metrics={}, cost={}) for record in card.records
    ]
    return build_page(sections, behind, title=f"Card of {card.name}", files=files, cards=False)


def _verdicts(card: MethodCard, notes: Sequence[str]) -> Section:
    made = Section("card")
    for told in (card.headline(), *card.verdicts(), *card.comparable(), *notes):
        made.finding(sentence(told))
    note = f"{card.legend()}; {LEFT_OUT}."
    made.table("card", [card.row(each) for each in card.lines], formats=FORMATS, note=note)
    measured = [each.mine for each in card.lines if not each.mine.error]
    others = [one for own in card.field.values() for one in own if not one.error]
    points = [_point(card, one) for one in (*measured, *others)]
    if measured and others:
        few = {card.name, *_best(card)}
        chart = beside(points, x_title="kB of keys and values held", y_title=LOSS, log_x=True, named=few)
        made.chart("loss_by_bytes", chart, caption="Loss against what is held, every method at its budgets.")
    return made


def _best(card: MethodCard) -> list[str]:
    """Return the methods that lose least, by their mean over budgets."""
    losses: dict[str, list[float]] = {}
    for own in card.field.values():
        for one in own:
            if not one.error:
                losses.setdefault(one.method, []).append(above(one).mean)
    return sorted(losses, key=lambda name: sum(losses[name]) / len(losses[name]))[:NAMED]


def _point(card: MethodCard, one: Measured) -> dict[str, Any]:
    whole = above(one)
    look = {"series": one.method, "mine": one.method == card.name, "x": one.held / 1000}
    return {**look, "y": whole.mean, "low": whole.low, "high": whole.high, "score": number(whole, ".3f")}


def _budget(card: MethodCard, each: BudgetLine) -> Section:
    """Every method at one budget, the least loss first."""
    made = Section("card")
    every = [each.mine, *(one for one in card.field.get(each.mine.slots, ()) if not one.error)]
    name = each.name.replace("=", "_")
    filled = f"Filled: told apart from {card.name}"
    told = f"Every method of this budget with its 95 % interval. {filled}; hollow: not, or not compared."
    lost = {one.method: above(one) for one in every}
    _standings(made, f"loss_{name}", card, lost, {**each.uneven, **each.differences}, title=LOSS, caption=told)
    recalled = {one.method: found for one in every if (found := recall(one)) is not None}
    told = (
        f"Tokens that stood before in the window. {filled} by the loss of these tokens; hollow: not, or not compared."
    )
    apart = _of_recall(each, [one for one in every if one.method in recalled])
    _standings(made, f"recall_{name}", card, recalled, apart, title=RECALLED, caption=told)
    return made


def _of_recall(each: BudgetLine, every: Sequence[Measured]) -> dict[str, Difference]:
    """Compare recall with the methods that the loss is compared with: those that cost as much, and the others."""
    groups = ([one for one in every if one.method in compared] for compared in (each.differences, each.uneven))
    return {name: one for group in groups for name, one in differences(each.mine, group, "hit_nll", "hits").items()}


def _standings(
    made: Section, name: str, card: MethodCard, found: Mapping[str, Interval], compared: Mapping[str, Difference],
    *, title: str, caption: str,
) -> None:  # fmt: skip
    rows = []
    for method, whole in sorted(found.items(), key=lambda item: item[1].mean):
        mine = method == card.name
        apart = mine or (method in compared and compared[method].standing != "level")
        look = {"label": card.marked(method), "colour": MINE if mine else MUTED, "apart": apart}
        rows.append({**look, "y": whole.mean, "low": whole.low, "high": whole.high, "score": number(whole, ".3f")})
    if rows:
        made.chart(name, standings(rows, [], title=title, references={DENSE: 0.0}), caption=caption)


def _field(card: MethodCard) -> Section:
    """Every method and budget as a row, with whether it was compared."""
    made = Section("card")
    rows: list[dict[str, Value]] = []
    for each in card.lines:
        for one in (each.mine, *card.field.get(each.mine.slots, ())):
            rows.append(_row(card, each, one))
    told = f"difference: how much less (+) or more (-) {card.name} loses; p: of that, after Holm"
    note = f"{card.legend()}; {LEFT_OUT}; {told}."
    made.table("field", rows, formats={**FORMATS, "p (Holm)": ".2g", "difference": "+z.3f"}, note=note)
    return made


def _row(card: MethodCard, each: BudgetLine, one: Measured) -> dict[str, Value]:
    found: dict[str, Value] = {"budget": each.name, "method": card.marked(one.method)}
    keys: Sequence[str] = ("loss above dense", "recall", "KV kB held", "left out", "difference", "p (Holm)")
    if one.error:
        return {**found, **dict.fromkeys(keys), "loss above dense": "no number"}
    told = each.differences.get(one.method) or each.uneven.get(one.method)
    difference, p = (told.gain, told.p) if told else (None, None)
    values: tuple[Value, ...] = (above(one), recall(one), one.held / 1000, one.left_out, difference, p)
    return {**found, **dict(zip(keys, values, strict=True))}
