"""Estimates the peak memory of a run of `sae` from the sizes of its data and its code."""

import json
from collections.abc import Mapping
from functools import lru_cache

from assay.core.convert import convert
from assay.core.run import Run, canonical
from assay.nn.shapes import built_for_shapes
from assay.sparse_coders.base import SparseCoder, TrainedCoder
from assay.studies.sae.scoring import FITTED_ON
from assay.train.memory import TRAINED, stored
from assay.vectors.base import VectorData

PER_UNIT = 4
"""Numbers that a step holds per unit and row: before and after the nonlinearity, and their gradients."""


def memory(run: Run) -> Mapping[str, int]:
    recipe = run.options["recipe"] or {"batch": 0}
    return _memory(canonical([run.options["data"], run.options["coder"], run.options["d_code"], recipe["batch"]]))


@lru_cache(maxsize=4096)
def _memory(text: str) -> Mapping[str, int]:
    """Count the data, the coder, and the larger of training and scoring, which take turns."""
    data_options, coder_options, d_code, batch = json.loads(text)
    data = convert(VectorData, data_options, what="option 'data'")
    rows, d_in = data.shape() or (0, 0)
    scored = min(rows, max(1, FITTED_ON // d_code))
    trained = {"a step": 4 * batch * (PER_UNIT * d_code + 2 * d_in)}
    # In float32, and again in float64; and the Gram matrix, with a penalty, its factor and the inverse of that.
    judged = {"the code of the training rows": (4 + 8) * scored * d_code, "a decoder of the code": 32 * d_code**2}
    largest = max(trained, judged, key=lambda need: sum(need.values()))
    return {"the data": data.memory(), **_coder(coder_options, d_in, d_code), **largest}


def _coder(options: Mapping[str, object], d_in: int, d_code: int) -> dict[str, int]:
    coder = convert(SparseCoder, options, what="option 'coder'")
    if not isinstance(coder, TrainedCoder):
        return {"weights": 4 * d_in * d_code}
    module = built_for_shapes(lambda: coder.build(1, d_in, d_code))
    return {} if module is None else {"weights, gradients and optimizer state": TRAINED * stored(module)}
