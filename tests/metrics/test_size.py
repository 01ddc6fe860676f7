"""Sizes against counts by hand."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from assay.encoders import encoders
from assay.metrics.size import flops_per_token, parameters
from assay.mixers import mixers
from assay.nn import scan


class First(nn.Module):
    """The first output of a module that gives several, on (batch, time, d) or (batch, d, time)."""

    def __init__(self, inner, *, channels_first=False):
        super().__init__()
        self.inner, self.channels_first = inner, channels_first

    def forward(self, x):
        y = self.inner(x.mT if self.channels_first else x)
        return y[0] if isinstance(y, tuple) else y


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


def test_parameters_counts_frozen_ones_and_shared_ones_once():
    shared = nn.Linear(24, 32)
    assert parameters(shared) == 800
    assert parameters(nn.Sequential(shared, shared)) == 800
    assert parameters(shared.requires_grad_(False)) == 800


@pytest.mark.parametrize(
    ("module", "by_hand"),
    [
        (nn.Linear(16, 32), 2 * 16 * 32),
        (First(nn.GRU(16, 8, batch_first=True)), 2 * 3 * 8 * (16 + 8)),
        (First(nn.Conv1d(16, 8, 3, padding="same"), channels_first=True), 2 * 16 * 8 * 3),
        # Four projections, then 10 keys scored and 10 values summed per token.
        (Attention(), 2 * 4 * 16 * 16 + 2 * 2 * 10 * 16),
        (nn.ReLU(), 0),
    ],
    ids=["linear", "gru", "conv", "attention", "relu"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_flops_per_token_counts_products_as_two(module, by_hand, dtype):
    assert flops_per_token(module.to(dtype), 10, 16) == by_hand


@pytest.mark.parametrize(
    ("word", "by_hand"),
    [
        ("static_mlp", 2 * 768 * 32),
        ("gru", 2 * (32 * 3 * 75 * (24 + 75) + 75 * 32)),
        ("mean_mlp", 2 * (32 * (24 * 132 + 132 * 132) + 132 * 32)),
        # 32 tokens are merged in 16 + 8 + 4 + 2 + 1 pairs.
        ("causal_conv", 2 * (32 * 24 * 47 + 31 * 94 * 47 + 47 * 32)),
        # Keys and values of every token, one query, one row of scores and sums, one output.
        ("self_attn", 2 * (32 * (24 * 72 + 2 * 72 * 72) + 72 * 72 + 2 * 32 * 72 + 72 * 72 + 72 * 32)),
    ],
)
def test_the_encoders_cost_what_their_formulas_say(word, by_hand):
    assert flops_per_token(encoders.parse(word).build(32, 24, 32), 32, 24) == by_hand / 32


@pytest.mark.parametrize("word", ["attention", "delta_net", "hyena", "mamba2", "sparse_attention"])
def test_operations_are_those_that_torch_counts(word):
    module, x = mixers.parse(word).build(32, 40).eval(), torch.zeros(1, 40, 32)
    with scan.as_written(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(x)
    assert flops_per_token(module, 40, 32) == counter.get_total_flops() / 40 > 0


def test_a_large_module_is_counted_by_its_shapes_as_a_small_one_is(monkeypatch):
    module = nn.Sequential(nn.Linear(16, 1024), nn.ReLU(), nn.Linear(1024, 16))
    seen = []
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: seen.append(x.device.type) or x)
    assert flops_per_token(module, 8, 16) == flops_per_token(module, 10_000, 16) == 4 * 16 * 1024
    assert seen == ["cpu", "meta"]


def test_a_short_count_leaves_torch_s_compiler_alone():
    """Importing it takes longer than a short run, in every worker."""
    code = """
import sys
from assay.metrics.size import flops_per_token
from assay.mixers import mixers
assert flops_per_token(mixers["delta_net"]().build(32, 40), 40, 32) > 0
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_counting_leaves_the_module_as_it_was():
    module = nn.Sequential(nn.Linear(16, 4), nn.Flatten(0, 1), nn.BatchNorm1d(4)).requires_grad_(False)
    flops_per_token(module, 10, 16)
    assert module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())
    assert module[2].num_batches_tracked == 0


def test_a_fused_lstm_is_counted():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.out = nn.LSTM(24, 48, batch_first=True), nn.Linear(48, 32)

        def forward(self, x):
            return self.out(self.lstm(x)[0][:, -1])

    assert flops_per_token(Last(), 32, 24) == pytest.approx(2 * 4 * 48 * (24 + 48) + 2 * 48 * 32 / 32)


def test_counting_changes_no_later_result():
    torch.manual_seed(0)
    layer, x = nn.Linear(24, 32), torch.randn(64, 24)
    before = layer(x)
    flops_per_token(nn.Sequential(nn.Flatten(), nn.Linear(32 * 24, 8)), 32, 24)
    assert torch.equal(layer(x), before)


@pytest.mark.parametrize("label", ["attention:conv=4", "delta_net", "mamba2"])
def test_counting_runs_no_kernel_whatever_the_backend(label, monkeypatch):
    """Shapes alone have no memory: a Triton kernel launched on them reads address 0, and ends every later CUDA call."""
    module = mixers.parse(label).build(32, 16)
    by_torch = flops_per_token(module, 16, 32)
    monkeypatch.setattr(scan, "backend", "triton")
    monkeypatch.setitem(sys.modules, "assay.nn.convolution_kernels", None)
    monkeypatch.setitem(sys.modules, "assay.nn.triton", None)
    assert flops_per_token(module, 16, 32) == by_torch > 0
    assert scan.backend == "triton"
