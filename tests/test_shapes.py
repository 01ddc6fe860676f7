"""Shape annotations are enforced in tests: a tensor of another shape raises in each of these packages."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jaxtyping import TypeCheckError


def mixer() -> Any:
    from assay.mixers import mixers

    return mixers["sparse_attention"]().build(8, 4)(torch.zeros(4, 8))


def state_mixer() -> Any:
    from assay.state_mixers import state_mixers

    return state_mixers["none"]().build(8)(torch.zeros(2, 8, dtype=torch.long))


def model() -> Any:
    from assay.models.causal_lm import sparse_attention

    return sparse_attention(torch.nn.Identity(), *(torch.zeros(2, 3) for _ in range(3)), None)


def vector_data() -> Any:
    from assay.vectors.base import Part

    return Part(torch.zeros(3))


def study() -> Any:
    from assay.studies.perplexity.scoring import Tally

    return Tally(1, 4).add(None, torch.zeros(2, 4), torch.zeros(4))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [mixer, state_mixer, model, vector_data, study])
def test_a_tensor_of_another_shape_is_refused(wrong: Callable[[], Any]) -> None:
    with pytest.raises(TypeCheckError):
        wrong()
