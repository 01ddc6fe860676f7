"""A badge shows a card in a README: the name, and the place in every question that could be ranked, as SVG."""

from collections.abc import Mapping
from xml.sax.saxutils import escape

HEIGHT, PADDING, LETTER = 20, 6, 6.6
"""Pixels; the width of a letter is that of the widest common one at 11 px, so that no text is cut."""


def badge(name: str, ranks: Mapping[str, str], *, of: str) -> str:
    """Return the badge: `assay card, smoke | mine: recall 2-5 of 18, parity not ranked`; `ranks` are by question, and
    cards are compared with others `of` the same tier and protocol."""
    told = [f"{question} {rank or 'not ranked'}" for question, rank in ranks.items()]
    left, right = f"assay card, {of}", f"{name}: {', '.join(told)}"
    widths = [round(len(text) * LETTER) + 2 * PADDING for text in (left, right)]
    whole = sum(widths)
    label = escape(f"{left}: {right}", {'"': "&quot;"})
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="{HEIGHT}" role="img" aria-label="{label}">'
        f"<title>{label}</title>"
        f'<rect width="{whole}" height="{HEIGHT}" rx="3" fill="#30506b"/>'
        f'<rect width="{widths[0]}" height="{HEIGHT}" rx="3" fill="#444"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{PADDING}" y="14">{escape(left)}</text>'
        f'<text x="{widths[0] + PADDING}" y="14">{escape(right)}</text></g></svg>\n'
    )
