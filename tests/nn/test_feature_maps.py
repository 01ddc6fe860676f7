"""Feature maps by their formulas, channel by channel."""

import pytest
import torch

from assay.nn.feature_maps import FEATURE_MAPS, Taylor
from assay.nn.random import initialised_from, stream

D = 3


def made(kind):
    with initialised_from(0, "test"):
        return kind(D).double()


def vectors(*shape, name="x"):
    return torch.randn(*shape, D, generator=stream(0, name), dtype=torch.float64)


@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_dim_out_is_the_width_of_the_output_and_known_before_building(name):
    module = made(FEATURE_MAPS[name])
    expected = {"hedgehog": 2 * D, "dpfp": 8 * D}.get(name, D)
    assert module(vectors(2, 4)).shape == (2, 4, expected)
    assert module.dim_out == FEATURE_MAPS[name].features(D) == expected


@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_only_signed_maps_give_negative_features(name):
    module = made(FEATURE_MAPS[name])
    assert bool((module(vectors(100)) < 0).any()) == FEATURE_MAPS[name].signed


def test_the_plain_maps():
    x = vectors(5)
    assert torch.equal(made(FEATURE_MAPS["identity"])(x), x)
    assert torch.equal(made(FEATURE_MAPS["relu"])(x), x.clamp(min=0))
    torch.testing.assert_close(made(FEATURE_MAPS["elu"])(x), torch.where(x > 0, x + 1, x.exp()))


def test_elementwise_product_multiplies_two_affine_maps():
    module, x = made(FEATURE_MAPS["elementwise_product"]), vectors(5)
    one = x @ module.one.weight.T + module.one.bias
    other = x @ module.other.weight.T + module.other.bias
    torch.testing.assert_close(module(x), one * other)


def test_t2r_is_a_rectified_linear_map():
    module, x = made(FEATURE_MAPS["t2r"]), vectors(5)
    torch.testing.assert_close(module(x), (x @ module.linear.weight.T).clamp(min=0))


def test_hedgehog_starts_as_a_softmax_of_the_channels_and_their_negatives():
    x = vectors(5)
    both = torch.cat([x.exp(), (-x).exp()], dim=-1)
    torch.testing.assert_close(made(FEATURE_MAPS["hedgehog"])(x), both / both.sum(-1, keepdim=True))


def test_dpfp_multiplies_each_half_with_four_neighbours():
    x = vectors()
    halves = [max(0.0, sign * value) for sign in (1, -1) for value in x.tolist()]
    expected = [halves[i] * halves[(i - j) % (2 * D)] for j in range(1, 5) for i in range(2 * D)]
    torch.testing.assert_close(made(FEATURE_MAPS["dpfp"])(x), torch.tensor(expected, dtype=torch.float64))


def test_taylor_features_have_the_kernel_1_x_x2_over_2_and_no_product_twice():
    q, k, module = vectors(50), vectors(50, name="k"), made(Taylor)
    a = (q * k).sum(-1)
    torch.testing.assert_close((module(q) * module(k)).sum(-1), 1 + a + a**2 / 2, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(module.kernel(a), 1 + a + a**2 / 2, rtol=1e-12, atol=1e-12)
    assert module.dim_out == module(q).shape[-1] == 1 + D + 6
