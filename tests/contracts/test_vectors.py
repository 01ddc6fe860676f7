"""Every vector data set that needs no file keeps every promise."""

import pytest

from assay.vectors import vectors
from promised import broken

HERE = ("digits", "dictionary:rows=400", "dictionary:rows=400:hierarchy=true", "concepts:rows=400")


@pytest.mark.parametrize("word", HERE)
def test_vector_data_keep_every_promise(word: str) -> None:
    assert not broken("vectors", vectors.parse(word))
