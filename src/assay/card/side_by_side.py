"""Several cards, side by side: a score of each per question, and who is told better than whom."""

import textwrap
from collections.abc import Sequence

from assay.card.request import AnyCard
from assay.report.section import Table
from assay.report.text import render

NOTE = (
    "a score with its 95 % interval, as the cards below explain it; told better: on the cards of both, after Holm over "
    "each one's field"
)


def side_by_side(cards: Sequence[AnyCard], width: int = 118) -> str:
    """Return a line for every question, or budget, that one of the cards has."""
    asked = dict.fromkeys(line.name for card in cards for line in card.lines)
    rows = tuple(
        {"": name, **{card.name: card.scores.get(name) for card in cards}, "told better": told_better(cards, name)}
        for name in asked
    )
    table = Table("side by side", rows, {card.name: card.form for card in cards})
    head, note = ", ".join(card.name for card in cards), textwrap.fill(NOTE, width, subsequent_indent="  ")
    return f"{head}, side by side\n\n{render(table, width)}\n\n{note}"


def told_better(cards: Sequence[AnyCard], name: str) -> str:
    """`mesa > kda; gru > kda`: the first scores better than the second."""
    found = {card.name: {one: each.standing for one, each in line.differences.items()}
             for card in cards for line in card.lines if line.name == name}  # fmt: skip
    above = {
        one: [other for other in found if own.get(other) == "above" and found[other].get(one) == "below"]
        for one, own in found.items()
    }
    return "; ".join(f"{one} > {', '.join(others)}" for one, others in above.items() if others) or "-"
