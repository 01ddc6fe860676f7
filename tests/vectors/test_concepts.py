"""Planted concepts: what implies what, and how often."""

import pytest
import torch

from assay.core.errors import UserError
from assay.vectors import vectors


def test_a_child_comes_only_with_its_concept_and_a_row_has_eight_atoms() -> None:
    data = vectors.parse("concepts:rows=8000").load()
    assert data.parents is not None and data.train.fired is not None
    fired = data.train.fired > 0
    assert len(data.parents) == fired.shape[1] == 8 + 32 + 96
    assert (fired <= fired[:, list(data.parents)]).all()
    assert fired.sum(dim=1).double().mean() == pytest.approx(8.0, abs=0.1)
    alone = [bool((fired[:, 0] & ~fired[:, 8:12].any(dim=1)).any()), bool(fired[:, 8:12].any())]
    assert alone == [True, True], "a concept comes with children and without"
    torch.testing.assert_close(
        data.train.x, data.train.fired @ data.dictionary, rtol=0, atol=0.3, msg="rows are their atoms, and noise"
    )


def test_a_dictionary_with_a_hierarchy_says_which_atoms_imply_which() -> None:
    assert vectors.parse("dictionary:rows=40:atoms=6:active=1:hierarchy=true").load().parents == (0, 0, 0, 3, 3, 3)
    assert vectors.parse("dictionary:rows=40:atoms=6:active=1").load().parents is None


@pytest.mark.parametrize("word", ["concepts=1", "children=0", "rows=3", "noise=-1.0", "free=-1", "d_in=0"])
def test_sizes_that_make_no_rows_are_refused(word: str) -> None:
    with pytest.raises(UserError, match="concepts: d_in="):
        vectors.parse(f"concepts:{word}")
