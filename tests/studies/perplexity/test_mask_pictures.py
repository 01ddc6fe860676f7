"""docs/perplexity.md shows the mask of every method, as the methods draw it."""

import pytest

from assay.attention import attention


@pytest.fixture
def masks(script):
    return script("docs/masks_perplexity.py")


def test_the_page_shows_what_the_methods_draw(masks):
    page = masks.PAGE.read_text(encoding="utf-8")
    assert masks.placed(page) == page, "run python docs/masks_perplexity.py"
    assert page.count(masks.BEGIN) == page.count(masks.END) == 1


def test_every_method_has_a_picture_of_its_own(masks):
    drawn = masks.drawn()
    pictures = {name: masks.picture(name) for name in attention.names()}
    assert all(name in drawn.split() for name in pictures)
    assert len({"\n".join(rows) for _, _, *rows in pictures.values()}) == len(pictures)
    assert pictures["window"][2 + 6] == "..#####" and pictures["dense"][-1] == "#" * masks.TIME
