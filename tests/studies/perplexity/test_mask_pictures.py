"""docs/perplexity.md shows the mask of every method, as the methods draw it."""

import pytest

from portable import METHODS


@pytest.fixture
def masks(script):
    return script("docs/masks_perplexity.py")


def test_the_page_shows_what_the_methods_draw(masks):
    page = masks.PAGE.read_text(encoding="utf-8")
    assert masks.placed(page) == page, "run python docs/masks_perplexity.py"
    assert page.count("<!-- masks: begin -->") == page.count("<!-- masks: end -->") == 1


def test_a_page_without_a_place_for_them_is_an_error(masks):
    with pytest.raises(ValueError, match="there is no place for the section: it stands between <!-- masks: begin -->"):
        masks.placed("a page")


def test_every_method_has_a_picture_of_its_own(masks):
    drawn = masks.drawn()
    pictures = {name: masks.picture(name) for name in METHODS}
    assert all(name in drawn.split() for name in pictures)
    assert len({"\n".join(rows) for _, _, *rows in pictures.values()}) == len(pictures)
    assert pictures["window"][2 + 6] == "..#####" and pictures["dense"][-1] == "#" * masks.TIME
