"""Every vector data set that needs no file keeps every promise."""

import pytest

from assay.contracts.base import promises
from assay.vectors import vectors

HERE = ("digits", "dictionary:rows=400", "dictionary:rows=400:hierarchy=true", "concepts:rows=400")


@pytest.mark.parametrize("promise", promises("vectors"), ids=lambda f: f.__name__)
@pytest.mark.parametrize("word", HERE)
def test_vector_data_keeps(word: str, promise) -> None:
    promise(vectors.parse(word))
