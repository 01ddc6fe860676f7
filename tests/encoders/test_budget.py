"""fit_width finds the width nearest to a budget, as trying every width would."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from assay.core.errors import UserError
from assay.encoders import encoders
from assay.encoders.base import Encoder
from assay.encoders.budget import fit_width
from assay.metrics.size import parameters

SIZES = {"length": 32, "d_in": 24, "d_code": 32}
OURS = ("self_attn", "static_mlp", "gru", "causal_conv", "mean_mlp")


def count(encoder):
    with torch.device("meta"):
        return parameters(encoder.build(*SIZES.values()))


@pytest.mark.parametrize("word", OURS)
def test_the_width_is_the_best_of_all_widths(word):
    fitted = fit_width(encoders.parse(word), 12_345, **SIZES)
    every = {width: count(encoders.parse(f"{word}:width={width}")) for width in range(1, 150)}
    assert abs(count(fitted) - 12_345) == min(abs(n - 12_345) for n in every.values())


@pytest.mark.parametrize("word", OURS)
def test_a_hundred_thousand_is_met_within_five_percent(word):
    assert abs(count(fit_width(encoders.parse(word), 100_000, **SIZES)) / 100_000 - 1) <= 0.05


def test_an_exact_budget_gives_back_the_encoder():
    assert fit_width(encoders.parse("self_attn"), 25_304, **SIZES) == encoders.parse("self_attn")


def test_other_options_are_kept():
    assert fit_width(encoders.parse("self_attn:heads=2"), 50_000, **SIZES).heads == 2


def test_the_specs_static_mlp_gets_a_hidden_layer_only_when_the_budget_asks_for_one():
    plain = encoders.parse("static_mlp")
    assert fit_width(plain, 25_000, **SIZES) == plain
    assert fit_width(plain, 25_000, **SIZES | {"length": 64}).width == 16


def test_searching_draws_nothing_from_the_global_generator():
    before = torch.get_rng_state()
    fit_width(encoders.parse("gru"), 50_000, **SIZES)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_budget_between_two_widths_names_both():
    says = r"'static_mlp' cannot have 1,200 .* 833 \(width=1\) and 1,634 \(width=2\)"
    with pytest.raises(UserError, match=says):
        fit_width(encoders.parse("static_mlp"), 1_200, **SIZES)


def test_a_budget_below_the_smallest_names_the_smallest():
    with pytest.raises(UserError, match=r"nearest counts are 833 \(width=1\)\. Use"):
        fit_width(encoders.parse("static_mlp"), 10, **SIZES)


@dataclass(frozen=True, kw_only=True)
class Fixed(Encoder):
    def build(self, length, d_in, d_code):
        return nn.Linear(d_in, d_code)


@dataclass(frozen=True, kw_only=True)
class Even(Encoder):
    width: int = 2

    def build(self, length, d_in, d_code):
        if self.width % 2:
            raise ValueError("width must be even")
        return nn.Linear(d_in, self.width)


def test_an_encoder_without_width_is_told_what_to_add():
    with pytest.raises(UserError, match=r"no option `width: int`\. Give its class that field"):
        fit_width(Fixed(), 1_000, **SIZES)


def test_an_encoder_that_refuses_a_width_is_told_so():
    with pytest.raises(UserError, match=r"does not build at width=1 \(width must be even\)"):
        fit_width(Even(), 1_000, **SIZES)
