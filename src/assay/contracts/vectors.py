"""Every vector data set keeps these promises: see assay.vectors.base."""

import torch

from assay.contracts.shared import shared
from assay.vectors.base import VectorData, Vectors


def has_three_parts_of_finite_rows(data: VectorData) -> None:
    """Train and test hold rows of one width, float32, finite; labels, where there are any, one for each row."""
    found = _loaded(data)
    for name in ("train", "validation", "test"):
        part = getattr(found, name)
        assert part.x.ndim == 2 and part.x.shape[1] == found.d_in, f"{name} is {tuple(part.x.shape)}"
        assert part.x.dtype == torch.float32 and part.x.isfinite().all(), f"{name} is not finite float32"
        assert len(part) > 0 or name == "validation", f"{name} is empty"
        assert part.labels is None or part.labels.shape == (len(part),), f"{name} has other labels than rows"
        if part.fired is not None:
            assert found.dictionary is not None and part.fired.shape == (len(part), len(found.dictionary))


def is_the_same_every_time(data: VectorData) -> None:
    """Loaded twice, it is the same to the bit."""
    one, other = _loaded(data), data.load()
    assert torch.equal(one.train.x, other.train.x) and torch.equal(one.test.x, other.test.x), "two loads differ"


def keeps_its_parts_apart(data: VectorData) -> None:
    """No test row is a training row, but for exact repeats in the data themselves (at most 1 %)."""
    found = _loaded(data)
    seen = {row.numpy().tobytes() for row in found.train.x}
    repeated = sum(row.numpy().tobytes() in seen for row in found.test.x)
    assert repeated <= 0.01 * len(found.test), f"{repeated} test rows are training rows"


@shared
def _loaded(data: VectorData) -> Vectors:
    return data.load()
