"""A hybrid runs other mixers one after another, each on the sum of what came in and what those before it found.

    y_1 = M_1(N_1(x));   y_2 = M_2(N_2(x + y_1));   ...   out = y_1 + y_2 + ...        N: RMSNorm

The default, a short window and a matrix for what is further back, is the idea of Based (Arora et al. 2024). On the
command line the members are joined by +:  hybrid:pattern=sliding_window+delta_net

State: those of the members.

No paper: published hybrids, Based among them, alternate whole layers, each with a feed-forward half; here the members
share one layer, and the state mixer comes after the last.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from assay.core.errors import UserError
from assay.mixers import mixers
from assay.mixers.base import Mixer, MixerModule, State
from assay.nn.axes import Token, Tokens
from assay.nn.norm import Norm


@mixers.register("hybrid")
@dataclass(frozen=True, kw_only=True)
class Hybrid(Mixer):
    """A pattern of other mixers, one after another with residuals."""

    pattern: tuple[Mixer, ...] = (mixers.parse("sliding_window"), mixers.parse("linear_attention"))
    """The members, joined by + on the command line."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.pattern:
            raise UserError("hybrid: the pattern is empty. Write hybrid:pattern=sliding_window+linear_attention.")

    def check_width(self, d_model: int) -> None:
        for member in self.pattern:
            member.check_width(d_model)

    def tells_order(self) -> bool:
        return self.conv > 1 or any(member.tells_order() for member in self.pattern)

    def core(self, d_model: int, max_len: int) -> MixerModule:
        return InSequence([member.build(d_model, max_len) for member in self.pattern], d_model)

    def core_state(self, d_model: int, length: int) -> int:
        return sum(member.state_size(d_model, length) for member in self.pattern)


class InSequence(MixerModule):
    def __init__(self, members: list[MixerModule], d_model: int) -> None:
        super().__init__()
        self.members: Sequence[MixerModule] = nn.ModuleList(members)  # type: ignore[assignment]
        self.norms = nn.ModuleList(Norm(d_model) for _ in members)

    def forward(self, x: Tokens) -> Tokens:
        found = torch.zeros_like(x)
        for norm, member in zip(self.norms, self.members, strict=True):
            found = found + member(norm(x + found))
        return found

    def init_state(self, batch: int) -> State:
        return tuple(member.init_state(batch) for member in self.members)

    def step(self, x: Token, state: State) -> tuple[Token, State]:
        found, states = torch.zeros_like(x), []
        for norm, member, carried in zip(self.norms, self.members, state, strict=True):
            y, carried = member.step(norm(x + found), carried)
            found = found + y
            states.append(carried)
        return found, tuple(states)
