"""Every mixer keeps every promise, with and without a short convolution, whichever is its default."""

import dataclasses
import math
from itertools import pairwise
from typing import ClassVar

import pytest
import torch

from assay.contracts import mixers as contract
from assay.core.errors import UserError
from assay.mixers import mixers
from assay.mixers.base import Mixer, MixerModule
from portable import MIXERS
from promised import broken


@pytest.mark.parametrize("conv", [0, 4])
@pytest.mark.parametrize("name", MIXERS)
def test_mixer_keeps_every_promise(name: str, conv: int, monkeypatch: pytest.MonkeyPatch) -> None:
    published = mixers[name]()
    if bool(conv) != bool(published.conv):
        # A convolution carries a few tokens, and ends before the scan whose chunks the long sequences are for.
        monkeypatch.setattr(contract, "LENGTHS", (contract.SHORT,))
    assert not broken("mixers", dataclasses.replace(published, conv=conv))


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


class RunningSum(MixerModule):
    """The sum of what was seen, and a fault."""

    def __init__(self, d_model: int, fault: str) -> None:
        super().__init__()
        self.fault, self.linear = fault, torch.nn.Linear(d_model, d_model)

    def forward(self, x):
        if self.fault == "batch" or (self.fault == "batch in training" and self.training):
            x = x - x.mean(0)
        if self.fault == "time in training" and self.training:
            x = x - x.mean(1, keepdim=True)
        y = self.linear(x).cumsum(1)
        if self.fault.startswith("chunk of ") and (self.training or not self.fault.endswith("in training")):
            y = y + self.sum_of_the_next_chunk(x, int(self.fault.split()[2]))
        if self.fault == "beyond 40":
            y = torch.cat([y[:, :40], y[:, 40:] + x[:, 40:].mean(1, keepdim=True)], dim=1)
        if self.fault == "not a number":
            y = torch.cat([y[:, :40], y[:, 40:] * math.nan], dim=1)
        if self.fault.startswith("forgets"):
            at = 256 if self.fault.endswith("256") else 100
            y = torch.cat([y[:, :at], y[:, at:] - y[:, at - 1 : at]], dim=1)
        return y

    @staticmethod
    def sum_of_the_next_chunk(x, size):
        """As a chunked form whose carried state is off by one."""
        parts = [part.sum(1, keepdim=True).expand_as(part) for part in x.split(size, dim=1)]
        shifted = [after[:, :1].expand_as(part) for part, after in pairwise(parts)]
        return torch.cat([*shifted, torch.zeros_like(parts[-1])], dim=1)

    def init_state(self, batch):
        return torch.zeros(batch, self.linear.out_features, 1), torch.zeros(batch)

    def step(self, x, state):
        carried, seen = state
        y = carried[..., :1].squeeze(2) + self.linear(x)
        if self.fault == "hides":
            self.last = y = y + getattr(self, "last", 0)
        grown = y[..., None].expand(-1, -1, 2 if self.fault == "grows" and seen[0] >= 50 else 1)
        return y, (grown, seen + 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Faulty(Mixer):
    fault: str = ""

    def core(self, d_model: int, max_len: int) -> MixerModule:
        return RunningSum(d_model, self.fault)

    def core_state(self, d_model: int, length: int) -> int:
        return d_model + 1


@pytest.mark.parametrize(
    ("fault", "promise", "seen"),
    [
        ("batch", contract.mixes_each_sequence_alone, "a batch of 4 and 4 batches of 1"),
        ("batch in training", contract.mixes_each_sequence_alone, "in training, a sequence's outputs depend"),
        ("time in training", contract.does_not_read_the_future, "in training, output 0 of 24 moved"),
        ("chunk of 32", contract.does_not_read_the_future, "output 0 of 136 moved"),
        ("chunk of 64", contract.does_not_read_the_future, "output 0 of 136 moved"),
        ("chunk of 128", contract.does_not_read_the_future, "output 0 of 136 moved"),
        ("chunk of 256", contract.does_not_read_the_future, "output 0 of 264 moved"),
        ("chunk of 512 in training", contract.does_not_read_the_future, "in training, output 0 of 1032"),
        ("chunk of 64 in training", contract.does_not_read_the_future, "in training, output 0 of 136"),
        ("beyond 40", contract.does_not_read_the_future, "an output of 0 to 62 of 136 moved"),
        ("not a number", contract.gives_finite_numbers, "output 40 of 136 is NaN or infinite, the first of 96"),
        ("not a number", contract.does_not_read_the_future, "not known: outputs are not finite numbers"),
        ("forgets at 256", contract.steps_as_it_runs_in_parallel, "the two forms, over 1032 tokens, differ"),
        ("forgets", contract.steps_as_it_runs_in_parallel, "the two forms, over 1032 tokens, differ"),
        ("hides", contract.carries_the_state_it_declares, "the module holds more of them than its state does"),
        (
            "grows",
            contract.carries_the_state_it_declares,
            "after 136 tokens the state holds 65 scalars, and core_state",
        ),
    ],
)
def test_a_fault_is_noticed_also_where_it_shows_beyond_a_chunk_alone(fault: str, promise, seen: str) -> None:
    promise(Faulty())
    with pytest.raises(AssertionError, match=seen):
        promise(Faulty(fault=fault))


def test_a_state_that_is_declared_wrong_is_told_in_the_authors_words() -> None:
    """The author wrote `core_state`; the short convolution's own state is not theirs to count."""

    class Short(Faulty):
        def core_state(self, d_model: int, length: int) -> int:
            return d_model

    for conv, beside in ((0, ""), (4, " beside the 96 of its short convolution")):
        seen = f"after 1 token the state holds 33 scalars{beside}, and core_state says 32"
        with pytest.raises(AssertionError, match=seen):
            contract.carries_the_state_it_declares(Short(conv=conv))


def test_a_mixer_that_gives_the_two_public_methods_needs_no_others() -> None:
    """`build` and `state_size`, without the convolution of the base class."""

    class Plain(Mixer):
        name = "plain"
        declared: ClassVar[int] = 1
        ordered = False

        def build(self, d_model: int, max_len: int) -> MixerModule:
            return Faulty().core(d_model, max_len)

        def state_size(self, d_model: int, length: int) -> int:
            return self.declared * Faulty().core_state(d_model, length)

    contract.carries_the_state_it_declares(Plain())
    Plain.declared = 2
    with pytest.raises(AssertionError, match="holds 33 scalars, and state_size says 66"):
        contract.carries_the_state_it_declares(Plain())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Blind(Faulty):
    ordered = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learning(Faulty):
    ordered = True


def test_a_mixer_that_is_blind_to_order_has_to_say_so() -> None:
    """A sum undeclared would be trained without positions, and a card would say that it cannot copy."""
    with pytest.raises(AssertionError, match="Add `ordered = False` to the class"):
        contract.says_if_it_is_blind_to_order(Faulty())
    for mixer in (Blind(), Learning(), Faulty(conv=4)):
        contract.says_if_it_is_blind_to_order(mixer)
    assert not Blind().tells_order() and Learning().tells_order()
