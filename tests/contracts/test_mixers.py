"""Every mixer keeps every promise, with and without a short convolution, whichever is its default."""

import dataclasses

import pytest

from assay.contracts.base import promises
from assay.core.errors import UserError
from assay.mixers import mixers


@pytest.mark.parametrize("promise", promises("mixers"), ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("conv", [0, 4])
@pytest.mark.parametrize("name", mixers.names())
def test_mixer_keeps(name: str, conv: int, promise) -> None:
    promise(dataclasses.replace(mixers[name](), conv=conv))


def test_the_mixers_published_with_a_short_convolution_have_it_by_default() -> None:
    default = {name: mixers[name]().conv for name in mixers.names()}
    assert {name: conv for name, conv in default.items() if conv} == {"delta_net": 4, "gated_delta_net": 4, "mamba2": 4}


@pytest.mark.parametrize("name", ["attention", "delta_net"])
def test_zero_goes_without_the_convolution_and_is_the_least(name: str) -> None:
    without, with_it = mixers.parse(f"{name}:conv=0"), mixers.parse(f"{name}:conv=4")
    assert with_it.state_size(32, 10) - without.state_size(32, 10) == 3 * 32
    assert mixers.parse(without.label) == without and mixers.parse(with_it.label) == with_it
    with pytest.raises(UserError, match="conv=-1 is too small"):
        mixers.parse(f"{name}:conv=-1")
