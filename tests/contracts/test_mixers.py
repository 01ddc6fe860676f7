"""Every mixer keeps every promise, with and without a short convolution, whichever is its default."""

import dataclasses

import pytest
import torch

from assay.contracts import mixers as contract
from assay.contracts.base import promises
from assay.core.errors import UserError
from assay.mixers import mixers
from assay.mixers.base import Mixer, MixerModule
from portable import MIXERS


@pytest.mark.parametrize("promise", promises("mixers"), ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("conv", [0, 4])
@pytest.mark.parametrize("name", MIXERS)
def test_mixer_keeps(name: str, conv: int, promise) -> None:
    promise(dataclasses.replace(mixers[name](), conv=conv))


def test_the_mixers_published_with_a_short_convolution_have_it_by_default() -> None:
    default = {name: mixers[name]().conv for name in mixers.names()}
    of_four = ("delta_net", "delta_product", "gated_delta_net", "kda", "mamba2", "mesa", "mlstm")
    assert {name: conv for name, conv in default.items() if conv} == dict.fromkeys(of_four, 4) | {"hyena": 3}


@pytest.mark.parametrize(("name", "channels"), [("attention", 32), ("delta_net", 3 * 32)])
def test_zero_goes_without_the_convolution_and_is_the_least(name: str, channels: int) -> None:
    without, with_it = mixers.parse(f"{name}:conv=0"), mixers.parse(f"{name}:conv=4")
    assert with_it.state_size(32, 10) - without.state_size(32, 10) == 3 * channels
    assert mixers.parse(without.label) == without and mixers.parse(with_it.label) == with_it
    with pytest.raises(UserError, match="conv=-1 is too small"):
        mixers.parse(f"{name}:conv=-1")


class Normed(MixerModule):
    """A running mean, less a statistic of what it should not know."""

    def __init__(self, d_model: int, fault: str) -> None:
        super().__init__()
        self.fault, self.linear = fault, torch.nn.Linear(d_model, d_model)

    def forward(self, x):
        if self.fault == "batch" or (self.fault == "batch in training" and self.training):
            x = x - x.mean(0)
        if self.fault == "time in training" and self.training:
            x = x - x.mean(1, keepdim=True)
        return self.linear(x).cumsum(1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Faulty(Mixer):
    fault: str = ""

    def core(self, d_model: int, max_len: int) -> MixerModule:
        return Normed(d_model, self.fault)


@pytest.mark.parametrize(
    ("fault", "promise", "seen"),
    [
        ("batch", contract.mixes_each_sequence_alone, "a batch of 4 and 4 batches of 1 differ"),
        ("batch in training", contract.mixes_each_sequence_alone, "in training, a sequence's outputs depend"),
        ("time in training", contract.does_not_read_the_future, "in training, outputs before 5 depend"),
    ],
)
def test_statistics_over_sequences_and_over_time_are_noticed(fault: str, promise, seen: str) -> None:
    promise(Faulty())
    with pytest.raises(AssertionError, match=seen):
        promise(Faulty(fault=fault))
