"""Any mixer becomes an encoder: pooled_mixer."""

import pytest
import torch

from assay.contracts.base import promises
from assay.encoders import encoders
from assay.encoders.budget import fit_width
from assay.metrics.jacobian import jacobians
from assay.metrics.size import parameters
from assay.mixers import mixers
from assay.nn.random import initialised_from, stream

SIZES = {"length": 32, "d_in": 24, "d_code": 32}
OURS = ("attention", "sliding_window", "linear_attention", "based", "hybrid")


def count(encoder):
    with torch.device("meta"):
        return parameters(encoder.build(*SIZES.values()))


@pytest.mark.parametrize("promise", promises("encoders"), ids=lambda f: f.__name__)
@pytest.mark.parametrize("word", [*(f"pooled_mixer:mixer={name}" for name in OURS), "pooled_mixer:width=5"])
def test_a_pooled_mixer_keeps(word, promise):
    promise(encoders.parse(word))


def test_it_is_one_residual_layer_read_at_the_last_token():
    with initialised_from(0, "test"):
        module = encoders.parse("PooledMixer:mixer=based").build(*SIZES.values())
    x = torch.randn(4, 32, 24, generator=stream(0, "x"))
    h = module.embed(x)
    o = h + module.mixer(h / (h.square().mean(-1, keepdim=True) + 1e-6).sqrt() * module.norm.weight)
    torch.testing.assert_close(module(x), torch.relu(module.code(o[:, -1])))


def test_by_default_it_is_attention_of_25_thousand_parameters():
    encoder = encoders.parse("pooled_mixer")
    assert encoder.mixer == mixers.parse("attention") and encoder.label == "PooledMixer"
    assert count(encoder) == 24_944


@pytest.mark.parametrize("name", OURS)
def test_it_can_be_sized_to_a_budget_and_named_by_a_word(name):
    fitted = fit_width(encoders.parse(f"pooled_mixer:mixer={name}"), 50_000, **SIZES)
    assert abs(count(fitted) / 50_000 - 1) <= 0.05
    assert encoders.parse(fitted.label) == fitted


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", OURS)
def test_its_jacobian_can_be_taken_without_falling_back_to_loops(name):
    module = encoders.parse(f"pooled_mixer:mixer={name}:width=16").build(8, 3, 2)
    x = torch.randn(2, 8, 3, generator=stream(0, "x"))
    assert jacobians(module, x).shape == (2, 2, 8 * 3)
