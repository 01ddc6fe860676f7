"""Write the table of attention methods whose records ship into docs/card.md.

python docs/methods_card.py
"""

from pathlib import Path

from masks_perplexity import between

from assay.api import Execution
from assay.attention import attention
from assay.card.method_card import above, recall
from assay.card.methods import ONLINE, PREFIX, Measured, MethodRunner, field_of
from assay.report.text import with_interval
from assay.studies.perplexity.cells import form

PAGE = Path(__file__).parent / "card.md"
ASKED = {ONLINE: "slots", PREFIX: "keys of a prefix"}


def table(preset: str) -> str:
    """The methods of one protocol whose records ship, the least loss at the smallest budget first."""
    runner = MethodRunner(preset, Execution(device="cpu"), compute=lambda session: [])
    words = runner.field()
    found = runner.measured(words)
    rows = sorted(found.values(), key=lambda own: above(own[-1]).mean)
    slots = [one.slots for one in rows[0]]
    head = ["method", *(f"{k} {ASKED[preset]}" for k in slots), f"recall, {slots[-1]}", "kB held", "left out"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *map(_line, rows)]
    lacking = [word for word in field_of(preset) if word not in words]
    if lacking:
        lines += ["", f"Records of {', '.join(f'`{word}`' for word in lacking)} do not ship yet."]
    return "\n".join(lines)


def _line(own: list[Measured]) -> str:
    last, lost = own[-1], recall(own[-1])
    name = form(attention.load(last.cell.options["method"]), last.cell.options["positions"])
    cells = [f"`{name}`", *(with_interval(above(one), ".3f") for one in own)]
    cells += [f"{lost.mean:.2f}" if lost else "-", f"{last.held / 1000:,.0f}", f"{last.left_out:.2f}"]
    return f"| {' | '.join(cells)} |"


def placed(page: str) -> str:
    """The page with both tables in their places."""
    for preset in (ONLINE, PREFIX):
        page = between(page, preset, table(preset))
    return page


if __name__ == "__main__":
    PAGE.write_text(placed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
