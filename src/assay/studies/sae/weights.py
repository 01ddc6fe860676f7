"""Stores the weights of trained coders whole, in float32, and loads them again.

    weights.safetensors    every parameter and buffer without its models axis; `usage`, the mean responsibility of each
                           unit; `input_mean` and `input_scale`, where the data were centred and scaled

A coder of 4,608 units and 576 inputs takes 21 MB, one of 65,536 and 2,304 takes 1.2 GB. `--weights directions` keeps
only the units' directions, in half precision: a quarter of that for a coder with a decoder, enough for figures and for
stability over seeds, but not for an export. It is no part of a run's id: what is measured is the same.
"""

import os
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from assay.core.convert import convert
from assay.core.errors import UserError
from assay.core.run import Record
from assay.nn.preparation import Preparation
from assay.sparse_coders.base import CoderModule, FittedModule, SparseCoder, TrainedCoder
from assay.train.artifacts import file_parts, saved_tensors
from assay.vectors.base import VectorData

WEIGHTS = "weights.safetensors"
Kept = Literal["whole", "directions"]
KEPT = "ASSAY_SAE_WEIGHTS"
"""The environment variable that tells workers what to keep, as places.FOLDER tells them where the data are."""


def keep(what: Kept) -> None:
    """Set what this process and its workers store of a coder."""
    os.environ[KEPT] = what


def encoded(module: CoderModule, usage: Tensor, preparation: Preparation | None) -> bytes:
    """Encode what is kept of one model."""
    return b"".join(file_parts(dict(_kept(module, usage, preparation))))


def _kept(module: CoderModule, usage: Tensor, preparation: Preparation | None) -> Iterator[tuple[str, Tensor]]:
    directions = module.directions()[0]
    yield "usage", usage
    if os.environ.get(KEPT) == "directions":
        yield "directions", directions.half()
        return
    state = {name: value[0] for name, value in module.state_dict().items()}
    yield from state.items()
    same = _usual_directions(state)
    if same is None or not torch.equal(same, directions):
        yield "directions", directions
    if preparation is not None:
        yield "input_mean", preparation.mean
        yield "input_scale", torch.tensor(preparation.scale, dtype=torch.float64)


def _usual_directions(state: dict[str, Tensor]) -> Tensor | None:
    """The directions of most coders, which are stored anyway: rows of the decoder, or of the encoder without one."""
    return state.get("W_dec", state.get("W_enc"))


def weights(record: Record) -> dict[str, Tensor]:
    """Load the tensors that a record stores of its model; `directions` are always among them."""
    kept = saved_tensors(record, WEIGHTS)
    usual = _usual_directions(kept)
    return kept if usual is None else {"directions": usual, **kept}


def saved_module(record: Record) -> CoderModule:
    """Load the coder of a record, with the preparation of the rows it was trained on."""
    kept = weights(record)
    coder = convert(SparseCoder, record.run.options["coder"], what="option 'coder'")
    if "W_enc" not in kept:
        remedy = f"{coder.name} is no linear map of a row. Fit it again (`fit` of its plug-in)"
        if isinstance(coder, TrainedCoder):
            remedy = "only its units' directions. Remove it (`assay rm ID`) and repeat it with --weights whole"
        raise UserError(f"run {record.run.id} keeps no coder that can be loaded: {remedy}.")
    units, inputs = kept["W_enc"].shape
    if isinstance(coder, TrainedCoder):
        module = coder.build(1, inputs, units)
        module.load_state_dict({name: kept[name][None] for name in module.state_dict()})
    else:
        module = FittedModule(kept["W_enc"], kept["b_enc"], rectified=bool(getattr(coder, "rectified", False)))
    module.preparation = _preparation(record, kept)
    return module


def _preparation(record: Record, kept: dict[str, Tensor]) -> Preparation | None:
    """How the rows were prepared; for a record from before that was stored, as the data set says, which loads it."""
    if "input_mean" in kept:
        return Preparation(kept["input_mean"], float(kept["input_scale"]))
    data = convert(VectorData, record.run.options["data"], what="option 'data'")
    return data.load().preparation if data.prepares else None
