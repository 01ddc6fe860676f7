"""A sequence mixer moves information along time, causally, and can do so one token at a time with a state.

The base class does once what every mixer shares, the optional short convolution in front and its part of the state,
and asks a mixer for two methods: `core`, the module, and `core_state`, how many scalars it carries. Mixers that were
published with the convolution inside, on their queries, keys and values, are `InnerConvolution`s.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from assay.core.errors import UserError
from assay.core.plugin import Registry, Sized
from assay.mixers import mixers
from assay.nn.axes import Token, Tokens
from assay.nn.convolution import ShortConvolution
from assay.nn.random import initialised_from
from assay.nn.shapes import built_for_shapes

State = Any
"""Tensors with a leading batch axis, alone or in (nested) tuples, hold all that a mixer knows of the past."""


class MixerModule(nn.Module):
    """`Mixer.build` returns this: `step`, which sees only x_t and the state, and for training a parallel `forward`. One
    of the two is enough; without a `step` the state is all tokens so far, and `forward` runs on them for each token."""

    depth: int = 0
    """Index of this mixer in the model, set by the model: random draws should differ between layers."""

    def forward(self, x: Tokens) -> Tokens:
        """Process a whole sequence: token by token, unless a mixer has a parallel form, which is faster."""
        if type(self).step is MixerModule.step:
            raise NotImplementedError(f"{type(self).__name__} has neither forward(x) nor step(x, state)")
        state, outputs = self.init_state(len(x)), []
        for token in x.unbind(1):
            y, state = self.step(token, state)
            outputs.append(y)
        return torch.stack(outputs, dim=1)

    def init_state(self, batch: int) -> State:
        """Return the state before the first token, on the module's device and in its dtype."""
        if type(self).step is not MixerModule.step:
            raise NotImplementedError(f"{type(self).__name__} has a step, and no init_state(batch) that it begins with")
        return ()

    def step(self, x: Token, state: State) -> tuple[Token, State]:
        """Process one token; feeding a sequence token by token gives what `forward` gives."""
        seen = torch.cat([*state, x[:, None]], dim=1)
        return self(seen)[:, -1], (seen,)


@dataclass(frozen=True, kw_only=True)
class Mixer(Sized):
    """Every mixer of mixers/<name>.py derives from this. The promises are in assay.contracts.mixers."""

    registry: ClassVar[Registry] = mixers
    may_be_none: ClassVar[tuple[str, ...]] = ("conv",)
    ordered: ClassVar[bool] = True
    """Whether one layer can tell the order of the past without positions in the tokens; models of one that cannot get a
    table of positions where `positions` is auto, as on a card."""
    portable: ClassVar[bool] = True
    """Whether it runs on every device, and many models at once. Other people's CUDA kernels do neither."""

    conv: int = 0
    """Tokens that a causal depthwise convolution sees; 0: none. It stands in front, x + conv(x), or where a
    mixer was published with one inside, there; those have it by default."""

    def build(self, d_model: int, max_len: int) -> MixerModule:
        """Build the module for sequences of up to `max_len` tokens."""
        core = self.core(d_model, max_len)
        return Convolved(core, d_model, self.front_kernel) if self.front_kernel else core

    @property
    def front_kernel(self) -> int:
        """Return the kernel of the convolution in front; 0: none."""
        return 0 if self.inner_kernel else self.conv

    @property
    def inner_kernel(self) -> int:
        """Return the kernel of a convolution on queries, keys and values; 0: none."""
        return 0

    def check_width(self, d_model: int) -> None:
        """Raise UserError where its heads do not divide a model of that width evenly. It can still be built, so that a
        parameter budget can be met, but it is not what a name such as `attention` promises."""
        heads = getattr(self, "num_heads", 1) or 1  # 0: the mixer chooses, or has none
        if d_model % heads:
            raise UserError(f"{self}: {heads} heads do not divide model_dim={d_model}. Choose num_heads or model_dim.")

    def state_size(self, d_model: int, length: int) -> int:
        """Return the scalars in a sequence's state after `length` tokens, the short convolution included."""
        return self.core_state(d_model, length) + max(0, self.front_kernel - 1) * d_model

    def tells_order(self) -> bool:
        """Return whether it knows the order without positions, by itself or by its convolution."""
        return self.ordered or self.conv > 1

    def matrices(self, d_model: int) -> tuple[int, int, int] | None:
        """Return heads, d_k and d_v of the matrices that it writes its values to, one of d_k x d_v per head; None where
        it has no such matrices."""
        return None

    def core(self, d_model: int, max_len: int) -> MixerModule:
        raise NotImplementedError(
            f"{type(self).__name__} has no core(self, d_model, max_len), which returns its module"
        )

    def core_state(self, d_model: int, length: int) -> int:
        """Return the scalars in the state of `core`; of a module without a `step`, those of all tokens so far."""
        with initialised_from(0, "state"):
            core = built_for_shapes(lambda: self.core(d_model, length)) or self.core(d_model, length)
        if replays(core):
            return d_model * length
        has = "core_state(self, d_model, length), which returns how many scalars its state has after `length` tokens"
        raise NotImplementedError(f"{type(self).__name__} has no {has}")


@dataclass(frozen=True, kw_only=True)
class InnerConvolution(Mixer):
    """Lets a mixer's convolution stand on its projected queries, keys and values."""

    conv_on: Literal["qkv", "input"] = "qkv"
    """Where the convolution stands: on queries, keys and values, with a SiLU after it, or as x + conv(x) in front."""

    @property
    def inner_kernel(self) -> int:
        return self.conv if self.conv_on == "qkv" else 0

    def convolved_channels(self, d_model: int) -> int:
        """Return the channels of all queries, keys and values."""
        raise NotImplementedError(f"{type(self).__name__}.convolved_channels")

    def state_size(self, d_model: int, length: int) -> int:
        seen = max(0, self.inner_kernel - 1) * self.convolved_channels(d_model)
        return super().state_size(d_model, length) + seen


class Convolved(MixerModule):
    """Puts a short convolution with a residual in front of a mixer."""

    def __init__(self, core: MixerModule, d_model: int, kernel: int) -> None:
        super().__init__()
        self.core, self.convolution = core, ShortConvolution(d_model, kernel)

    def forward(self, x: Tokens) -> Tokens:
        return self.core(x + self.convolution(x))

    def init_state(self, batch: int) -> State:
        return self.convolution.init_state(batch), self.core.init_state(batch)

    def step(self, x: Token, state: State) -> tuple[Token, State]:
        seen, carried = state
        shifted, seen = self.convolution.step(x, seen)
        y, carried = self.core.step(x + shifted, carried)
        return y, (seen, carried)


def replays(module: nn.Module) -> bool:
    """Return whether it, or a mixer inside it, has no `step` of its own."""
    return any(type(part).step is MixerModule.step for part in module.modules() if isinstance(part, MixerModule))


def state_scalars(state: State) -> int:
    """Return the scalars per sequence in a state, counted from its tensors."""
    if isinstance(state, torch.Tensor):
        return state.numel() // state.shape[0]
    return sum(state_scalars(part) for part in state)
