"""Models are matched in parameters: the state mixer of each is as wide as brings its layers to one size."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from assay.core.convert import construct
from assay.models.sequence import SequenceModel
from assay.tasks import tasks

ALIGNED, NARROW = 8, 64
"""Widths are multiples of ALIGNED, which products in bf16 need to be fast; in models narrower than NARROW that would be
more than 2 % of a layer, and any width is taken."""


def matched(task: str, model: Mapping[str, Any], layer_params: int) -> str:
    """Return the state mixer, with its width, whose layer has about `layer_params` parameters. Where the mixer alone
    has more, it is as narrow as it can be, and the card says that the model is not matched."""
    told = construct(SequenceModel, {**model, "layer_params": layer_params}, what="the card's model")
    return _state_mixer(told, tasks.parse(task).shape().length)


@cache
def _state_mixer(model: SequenceModel, length: int) -> str:
    """Return the state mixer; once for all rates and seeds of a mixer, since layers are built to be counted."""
    fitted, _ = model.nearest(length, ALIGNED if model.model_dim >= NARROW else 1)
    return str(fitted.state_mixer.label)
