"""docs/icl.md says, mixer by mixer, which published layer it is and what differs, as the docstrings say it."""

import pytest

from assay.mixers import mixers


@pytest.fixture
def layers(script):
    return script("docs/layers_icl.py")


def test_the_page_shows_what_the_docstrings_say(layers):
    page = layers.PAGE.read_text(encoding="utf-8")
    assert layers.placed(page) == page, "run python docs/layers_icl.py"


def test_every_mixer_has_a_row_with_its_layer_its_options_and_what_differs(layers):
    rows = [line.split(" | ") for line in layers.table().splitlines()[2:]]
    assert [row[0] for row in rows] == [f"| `{name}`" for name in mixers.names()]
    assert all(len(row) == 4 and row[1] and len(row[3].split()) > 2 for row in rows)
    assert {row[0] for row in rows if row[1] == "none"} >= {"| `hybrid`", "| `sparse_attention`"}
    gated = next(row for row in rows if "gated_delta_net" in row[0])
    assert "the authors'" in gated[1] and "expand_v 2" in gated[2] and "keys of d_model channels" in gated[3]


def test_a_layer_that_is_the_authors_but_for_nothing_says_so(layers, monkeypatch):
    monkeypatch.setattr(layers, "paragraphs", lambda name: ["It is.", "As published. To the letter."])
    assert layers.differs("any") == "nothing" and layers.published("any") == "the paper's"
