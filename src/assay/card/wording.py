"""A card puts its lines into words: who is told better, what may be said, and what was matched."""

from collections.abc import Sequence

from assay.card.judge import Compared, Line, Standing
from assay.card.protocol import TOLERANCE
from assay.core.words import named

FEW = 3
"""With fewer to compare with, `none` is better would sound like more than it is."""


def headline(lines: Sequence[Compared], better: str, at: str) -> str:
    """Say in one sentence, without its period, how many of the field are told better, line by line: `headline(lines,
    "mixers that beat it at equal training", "in")`."""
    told = _counted(lines, at)
    return f"In short, {better}: {told}" if told else "In short: nothing of it can be compared"


def _counted(lines: Sequence[Compared], at: str) -> str:
    """`none in recall, update; 3 of 18 in parity`."""
    found = {
        each.name: (sum(one.standing == "below" for one in each.differences.values()), len(each.differences))
        for each in lines
        if each.differences
    }
    none = [name for name, (count, of) in found.items() if not count and of >= FEW]
    some = [f"{count} of {of} {at} {name}" for name, (count, of) in found.items() if name not in none]
    return "; ".join(filter(None, [f"none {at} {', '.join(none)}" if none else "", ", ".join(some)]))


def in_words(lines: Sequence[Line]) -> list[str]:
    """Return the verdicts as sentences: what it does, what it does not, and beside whom."""
    found = []
    for each in lines:
        beside = "; ".join(told_apart(each))
        told = (each.verdict, f"at equal training {beside}" if beside else "", each.undecided())
        found.append("; ".join(filter(None, told)))
    return found


def told_apart(line: Compared) -> list[str]:
    """Say who is told apart and who is not, the best first: `better than a, b`, `not told apart from c`."""
    best_first = sorted(line.differences.values(), key=lambda each: each.gain.mean)
    standings: dict[str, Standing] = {"better than": "above", "worse than": "below", "not told apart from": "level"}
    found = {word: [one.other for one in best_first if one.standing == kind] for word, kind in standings.items()}
    return [f"{word} {named(names)}" for word, names in found.items() if names]


def matching_of(lines: Sequence[Line]) -> list[str]:
    """Say in which questions the models have as many parameters per layer as the field's."""
    of = {matched: [each.name for each in lines if each.answer.matched is matched and not each.answer.lost]
          for matched in (True, False, None)}  # fmt: skip
    told = [
        f"within {TOLERANCE:.0%} of the field's ({', '.join(of[True])})" if of[True] else "",
        f"not matched: the mixer alone is larger ({', '.join(of[False])})" if of[False] else "",
        f"not matched: the mixer alone is the layer ({', '.join(of[None])})" if of[None] else "",
    ]
    return [f"  parameters per layer: {'; '.join(each for each in told if each)}"]
