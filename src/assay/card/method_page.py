"""The page of a method's card, one file that needs no network: verdicts, loss against bytes held, each budget with the
field beside it, the whole field as a table, the method's file and provenance."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from assay.card.charts import MINE, beside, standings
from assay.card.judge import NAMED
from assay.card.method_card import FORMATS, Line, MethodCard, above, recall
from assay.card.methods import DENSE, VERSION, Measured
from assay.metrics.intervals import Interval
from assay.report.page import build_page
from assay.report.section import Section, Value
from assay.report.style import MUTED

LOSS, RECALLED = "nats per token above dense attention", "the same, of tokens that could be looked up"


def page(card: MethodCard, files: Mapping[str, str]) -> str:
    """Build the page; `files` are those that the method comes from."""
    asked = f"What does a language model lose with {card.name}? Protocol {VERSION}; {card.setting}."
    sections = [("Verdicts", asked, _verdicts(card))]
    sections += [(each.question, _sentence(told), _budget(card, each)) for each, told in
                 zip(card.lines, card.verdicts(), strict=True) if not each.mine.error]  # fmt: skip
    sections.append(("The field", "Every method beside it, at every budget.", _field(card)))
    # The numbers are in the charts and tables, and would double the page.
    behind = [
        replace(record, run=replace(record.run, study="The field"), metrics={}, cost={}) for record in card.records
    ]
    return build_page(sections, behind, title=f"Card of {card.name}", files=files, cards=False)


def _sentence(told: str) -> str:
    return f"{told[0].upper()}{told[1:]}."


def _verdicts(card: MethodCard) -> Section:
    made = Section("card")
    for sentence in card.verdicts():
        made.finding(_sentence(sentence))
    made.table("card", [card.row(each) for each in card.lines], formats=FORMATS, note="\n".join(card.legend()))
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
    return {**look, "y": whole.mean, "low": whole.low, "high": whole.high, "score": _number(whole)}


def _number(whole: Interval) -> str:
    return f"{whole.mean:.3f}" if whole.low is None else f"{whole.mean:.3f} [{whole.low:.3f}, {whole.high:.3f}]"


def _budget(card: MethodCard, each: Line) -> Section:
    """Every method at one budget, the least loss first."""
    made = Section("card")
    every = [each.mine, *(one for one in card.field.get(each.mine.slots, ()) if not one.error)]
    name = each.question.replace("=", "_")
    told = f"Every method of this budget with its 95 % interval. Filled: told apart from {card.name}."
    _standings(made, f"loss_{name}", card, each, {one.method: above(one) for one in every}, LOSS, told)
    recalled = {one.method: found for one in every if (found := recall(one)) is not None}
    _standings(made, f"recall_{name}", card, each, recalled, RECALLED, "Tokens that stood before in the window.")
    return made


def _standings(
    made: Section, name: str, card: MethodCard, each: Line, found: Mapping[str, Interval], title: str, caption: str
) -> None:
    rows = []
    for method, whole in sorted(found.items(), key=lambda item: item[1].mean):
        mine = method == card.name
        told = each.differences.get(method) or each.uneven.get(method)
        apart = mine or (told is not None and told.standing != "level")
        look = {"label": card.marked(method), "colour": MINE if mine else MUTED, "apart": apart}
        rows.append({**look, "y": whole.mean, "low": whole.low, "high": whole.high, "score": _number(whole)})
    if rows:
        made.chart(name, standings(rows, [], title=title, references={DENSE: 0.0}), caption=caption)


def _field(card: MethodCard) -> Section:
    """Every method and budget as a row, with whether it was compared."""
    made = Section("card")
    rows: list[dict[str, Value]] = []
    for each in card.lines:
        for one in (each.mine, *card.field.get(each.mine.slots, ())):
            rows.append(_row(card, each, one))
    note = "; ".join(card.legend())
    made.table("field", rows, formats={**FORMATS, "p (Holm)": ".2g", "difference": "+.3f"}, note=note)
    return made


def _row(card: MethodCard, each: Line, one: Measured) -> dict[str, Value]:
    found: dict[str, Value] = {"budget": each.question, "method": card.marked(one.method)}
    keys: Sequence[str] = ("loss above dense", "recall", "KV kB held", "left out", "difference", "p (Holm)")
    if one.error:
        return {**found, **dict.fromkeys(keys), "loss above dense": "no number"}
    told = each.differences.get(one.method) or each.uneven.get(one.method)
    difference, p = (told.interval, told.p) if told else (None, None)
    values: tuple[Value, ...] = (above(one), recall(one), one.held / 1000, one.left_out, difference, p)
    return {**found, **dict(zip(keys, values, strict=True))}
