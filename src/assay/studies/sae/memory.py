"""Estimates, from the sizes of its data and its code, the peak memory of a run of `sae` and what it stores."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from torch import nn

from assay.core.run import Run
from assay.nn.shapes import built_for_shapes
from assay.sparse_coders.base import SparseCoder, TrainedCoder
from assay.studies.sae.fitting import Setting
from assay.studies.sae.scoring import FITTED_ON
from assay.studies.sae.weights import Kept
from assay.train.footprint import TRAINED, stored
from assay.vectors.base import VectorData

PER_UNIT = 4
"""Numbers that a step holds per unit and row: before and after the nonlinearity, and their gradients."""


def memory(run: Run) -> Mapping[str, int]:
    setting = Setting.of(run)
    return _memory(setting.data, setting.coder, setting.d_code, setting.recipe.batch if setting.recipe else 0)


@lru_cache(maxsize=4096)
def _memory(data: VectorData, coder: SparseCoder, d_code: int, batch: int) -> Mapping[str, int]:
    """Count the data, the coder, and the larger of training and scoring, which take turns."""
    rows, d_in = data.shape() or (0, 0)
    scored = min(rows, max(1, FITTED_ON // d_code))
    trained = {"a step": 4 * batch * (PER_UNIT * d_code + 2 * d_in)}
    # In float32, and again in float64; and the Gram matrix, with a penalty, its factor and the inverse of that.
    judged = {"the code of the training rows": (4 + 8) * scored * d_code, "a decoder of the code": 32 * d_code**2}
    largest = max(trained, judged, key=lambda need: sum(need.values()))
    weights = {"weights": 4 * d_in * d_code}
    if isinstance(coder, TrainedCoder):
        module = _shapes(coder, d_in, d_code)
        weights = {"weights, gradients and optimizer state": TRAINED * stored(module)} if module else {}
    return {"the data": data.memory(), **weights, **largest}


def stored_bytes(runs: Sequence[Run], kept: Kept) -> int:
    """Estimate what the weights of runs take in the store, from shapes; runs of data of unknown width count nothing."""
    sizes = Counter((setting.data, setting.coder, setting.d_code) for setting in map(Setting.of, runs))
    return sum(count * _stored_bytes(kept, *size) for size, count in sizes.items())


def _stored_bytes(kept: Kept, data: VectorData, coder: SparseCoder, d_code: int) -> int:
    d_in = data.width() or 0
    if kept == "directions" or not isinstance(coder, TrainedCoder):
        return (2 if kept == "directions" else 4) * d_in * d_code
    module = _shapes(coder, d_in, d_code)
    return sum(value.nbytes for value in module.state_dict().values()) if module else 0


def _shapes(coder: TrainedCoder, d_in: int, d_code: int) -> nn.Module | None:
    return built_for_shapes(lambda: coder.build(1, d_in, d_code))
