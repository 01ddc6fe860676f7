"""The convolution inside a mixer, on queries, keys and values, against plain loops; its part of the state."""

import pytest
import torch
from torch.nn.functional import silu

from assay.contracts import mixers as promises
from assay.mixers import mixers
from assay.mixers.base import Convolved, state_scalars
from assay.nn.random import initialised_from, stream

INNER = ("delta_net", "gated_delta_net", "gated_linear_attn", "retention", "mamba2")
HEADS = INNER[:-1]
"""Mamba-2 has no projections per head: its own test writes its convolution out."""
KEPT = (
    promises.steps_as_it_runs_in_parallel,
    promises.carries_the_state_it_declares,
    promises.does_not_read_the_future,
    promises.trains_every_parameter,
)


def tokens(time: int = 9, d_model: int = 16) -> torch.Tensor:
    return torch.randn(2, time, d_model, generator=stream(0, "inner"), dtype=torch.float64)


@pytest.mark.parametrize("name", HEADS)
def test_queries_keys_and_values_are_convolved_and_then_activated(name: str) -> None:
    with initialised_from(0, name):
        module = mixers[name](conv=4).build(16, 9).double()
    module.heads.finish = "none"  # lengths and rotations come after
    x = tokens()
    projected, weight = x @ module.heads.qkv.weight.T, module.heads.convolution.weight
    expected = torch.zeros_like(projected)
    for t in range(9):
        for back in range(min(4, t + 1)):
            expected[:, t] += weight[:, 3 - back] * projected[:, t - back]
    found = torch.cat([part.transpose(1, 2).flatten(2) for part in module.heads.split(x)], dim=-1)
    torch.testing.assert_close(found, silu(expected))


@pytest.mark.parametrize("promise", KEPT)
@pytest.mark.parametrize("word", [f"{name}:conv={kernel}" for name in INNER for kernel in (1, 3)])
def test_the_promises_hold_with_other_kernels_inside(word: str, promise, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a convolution, with one of 4, and beyond a chunk: tests/contracts/test_mixers.py."""
    monkeypatch.setattr(promises, "LENGTHS", (promises.SHORT,))
    promise(mixers.parse(word))


@pytest.mark.parametrize("name", INNER)
def test_conv_on_input_puts_the_convolution_in_front(name: str) -> None:
    mixer = mixers.parse(f"{name}:conv=4:conv_on=input")
    module, plain = mixer.build(16, 9), mixers.parse(f"{name}:conv=0").build(16, 9)
    assert isinstance(module, Convolved)
    assert mixer.state_size(16, 9) == state_scalars(plain.init_state(1)) + 3 * 16
    promises.steps_as_it_runs_in_parallel(mixer)
    promises.carries_the_state_it_declares(mixer)


@pytest.mark.parametrize(
    "name", ["attention", "sliding_window", "sparse_attention", "linear_attention", "based", "gru"]
)
def test_other_mixers_keep_their_convolution_in_front(name: str) -> None:
    assert isinstance(mixers[name](conv=4).build(16, 9), Convolved)
    assert "conv_on" not in mixers[name]().spec()
