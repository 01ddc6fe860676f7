"""Several cards begin with a table of all: scores, and who is told better than whom."""

from types import SimpleNamespace
from typing import Any

from assay.card.judge import Difference
from assay.card.side_by_side import side_by_side, told_better
from assay.metrics.intervals import Interval


def card(name: str, **questions: dict[str, tuple[float, float]]) -> Any:
    """A stand-in for a card: for each question, the difference to the others and its p. Scores are 0.5."""
    lines = [
        SimpleNamespace(
            name=question,
            differences={
                other: Difference(other, Interval(gap, gap - 0.1, gap + 0.1, 5), p, 0.1, lower=question == "loss")
                for other, (gap, p) in told.items()
            },
        )
        for question, told in questions.items()
    ]
    return SimpleNamespace(name=name, lines=lines, form=".2f", scores={each.name: 0.5 for each in lines})


def test_one_is_told_better_where_both_cards_say_so() -> None:
    a = card("a", recall={"b": (0.3, 0.01), "c": (0.2, 0.01)}, loss={"b": (0.3, 0.01)})
    b = card("b", recall={"a": (-0.3, 0.01), "c": (-0.1, 0.5)}, loss={"a": (-0.3, 0.01)})
    c = card("c", recall={"a": (-0.2, 0.2), "b": (0.1, 0.5)})
    assert told_better([a, b, c], "recall") == "a > b", "c's own card does not tell it from a"
    assert told_better([a, b, c], "loss") == "b > a", "less is better"
    assert told_better([c], "recall") == "-"


def test_a_question_that_one_card_lacks_is_a_gap_of_that_card_alone() -> None:
    text = side_by_side([card("a", recall={}, parity={}), card("b", recall={})])
    assert text.startswith("a, b, side by side\n")
    recall, parity = (next(line.split() for line in text.splitlines() if line.startswith(q)) for q in ("rec", "par"))
    assert recall == ["recall", "0.50", "0.50", "-"] and parity == ["parity", "0.50", "-", "-"]
