"""Write what 52 slots cost on three texts into docs/perplexity.md, from the records of `sparse-perplexity` that ship.

python docs/texts_perplexity.py
"""

import math
from dataclasses import replace
from pathlib import Path

from masks_perplexity import between

from assay.attention import attention
from assay.core import shipped
from assay.metrics.bootstrap import ratio, ratio_difference
from assay.metrics.intervals import Interval
from assay.report.rows import Row
from assay.report.text import with_interval
from assay.studies.perplexity.cells import budget_of, cells, form, is_dense, sums

PAGE = Path(__file__).parent / "perplexity.md"
TEXTS = {"wikitext-103/test.txt": "WikiText-103, test", "books": "six novels", "pydoc": "`pydoc`"}
CONTEXT, SLOTS = 1024, 52


def asked() -> dict[str, dict[str, Row]]:
    """The cells of each text, by the method's name with what differs from its published form."""
    found: dict[str, dict[str, Row]] = {text: {} for text in TEXTS}
    for row in cells(shipped.records("perplexity")):
        text = str(row.options["dataset"]["name"])
        wanted = is_dense(row) or budget_of(row).slots == SLOTS
        if text in found and wanted and row.options["context"] == CONTEXT:
            found[text][form(attention.load(row.options["method"]), row.options["positions"])] = row
    return found


def perplexity(row: Row) -> Interval:
    return _exp(ratio(*sums(row, "nll", "tokens")))


def over_dense(row: Row, dense: Row) -> Interval:
    """The perplexity over dense attention's, paired over clusters."""
    return _exp(ratio_difference(*sums(row, "nll", "tokens"), *sums(dense, "nll", "tokens")))


def _exp(found: Interval) -> Interval:
    low, high = (None if end is None else math.exp(end) for end in (found.low, found.high))
    return replace(found, mean=math.exp(found.mean), low=low, high=high)


def table() -> str:
    """The methods that all texts have, the least loss on the first text first."""
    found = asked()
    words = set.intersection(*(set(own) for own in found.values())) - {"dense"}
    first = next(iter(found.values()))
    counts = [len(sums(own["dense"], "tokens")[0]) for own in found.values()]
    head = ["perplexity", *(f"{title}, n = {n}" for title, n in zip(TEXTS.values(), counts, strict=True))]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines.append(f"| dense | {' | '.join(with_interval(perplexity(own['dense']), '.2f') for own in found.values())} |")
    for word in sorted(words, key=lambda word: over_dense(first[word], first["dense"]).mean):
        shown = [with_interval(over_dense(own[word], own["dense"]), ".2f") for own in found.values()]
        lines.append(f"| `{word}`, over dense | {' | '.join(shown)} |")
    return "\n".join(lines)


def placed(page: str) -> str:
    return between(page, "texts", table())


if __name__ == "__main__":
    PAGE.write_text(placed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
