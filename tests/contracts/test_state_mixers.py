"""Every state mixer keeps every promise, and the promises notice one that mixes more than channels."""

from dataclasses import dataclass

import pytest
from torch import nn

from assay.contracts import state_mixers as contract
from assay.state_mixers import state_mixers
from assay.state_mixers.base import StateMixer
from promised import broken


@pytest.mark.parametrize("name", state_mixers.names())
def test_state_mixer_keeps_every_promise(name: str) -> None:
    assert not broken("state_mixers", state_mixers[name]())


class Mixing(nn.Module):
    """A linear layer, and a mean over what it should not know."""

    def __init__(self, d_model: int, fault: str) -> None:
        super().__init__()
        self.fault, self.linear = fault, nn.Linear(d_model, d_model)

    def forward(self, x):
        axes = {"sequences": [0], "positions": [1]}.get(self.fault, [0, 1] if self.training and self.fault else [])
        return self.linear(x - x.mean(axes, keepdim=True) if axes else x)


@dataclass(frozen=True, kw_only=True)
class Faulty(StateMixer):
    fault: str = ""

    def build(self, d_model: int) -> nn.Module:
        return Mixing(d_model, self.fault)


@pytest.mark.parametrize(
    ("fault", "seen"),
    [("sequences", "sequences mix"), ("positions", "positions mix"), ("training", "in training, an output depends")],
)
def test_a_state_mixer_that_mixes_more_than_channels_is_noticed(fault: str, seen: str) -> None:
    contract.works_on_each_position_alone(Faulty())
    with pytest.raises(AssertionError, match=seen):
        contract.works_on_each_position_alone(Faulty(fault=fault))
