"""A training step of these mixers can be recorded as a CUDA graph: nothing in it waits for a number."""

import pytest
import torch

from assay.mixers import mixers

WORDS = (
    "attention",
    "attention:positions=rotary:num_kv_heads=2",
    "sliding_window",
    "sliding_window:positions=rotary",
    "linear_attention",
    "linear_attention:feature_map=dpfp:normalize=true",
    "based",
    "hybrid:conv=3",
    "base_conv",
    "hybrid:pattern=base_conv+attention",
)


@pytest.mark.parametrize("word", WORDS)
def test_no_control_flow_depends_on_the_data(word):
    """Meta tensors have shapes and no numbers: reading one back would raise."""
    with torch.device("meta"):
        module, x = mixers.parse(word).build(32, 150), torch.empty(2, 150, 32)
        y = module(x)
        y.sum().backward()
    assert y.shape == x.shape
