"""A card as an SVG badge for a README: the mixer's name, and its place in every question that could be ranked."""

from xml.sax.saxutils import escape

from assay.card.card import Card

HEIGHT, PADDING, LETTER = 20, 6, 6.6
"""Pixels; the width of a letter is that of the widest common one at 11 px, so that no text is cut."""


def badge(card: Card) -> str:
    """Return the badge: `assay card | mine: recall 2-5 of 18, parity not ranked`."""
    ranks = [f"{each.answer.question.name} {each.rank or 'not ranked'}" for each in card.lines]
    left, right = "assay card", f"{card.mixer}: {', '.join(ranks)}"
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
