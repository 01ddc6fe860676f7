"""Any layer of flash-linear-attention (Yang and Zhang 2024) runs as a mixer on CUDA: a baseline, or another oracle.

    fla_layer:layer=GatedDeltaNet:num_heads=2        a class of fla.layers, with heads of d_model / num_heads channels

It is built with its own defaults but for hidden_size, num_heads, head_dim and layer_idx, as far as it takes them.
State: what the layer puts into fla's cache, counted after a sequence of that length.

No paper: the layers are other people's code, run as it is. They need the extra `fla` and a GPU, and models are trained
one by one, since their kernels have no axis for the models of a bank.
"""

import inspect
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from assay.core.errors import UserError
from assay.mixers import mixers
from assay.mixers.base import Mixer, MixerModule, state_scalars
from assay.nn.axes import Token, Tokens

DEVICE = "cuda"


@mixers.register("fla_layer")
@dataclass(frozen=True, kw_only=True)
class FlaLayer(Mixer):
    """A layer of flash-linear-attention, on CUDA."""

    portable: ClassVar[bool] = False
    may_be_none: ClassVar[tuple[str, ...]] = ("conv", "num_heads")

    layer: str = "GatedDeltaNet"
    """A class of fla.layers."""
    num_heads: int = 4
    """Heads, for a layer that has them; 0: it has none."""

    def core(self, d_model: int, max_len: int) -> MixerModule:
        return ForeignLayer(self.built(d_model), self.layer)

    def core_state(self, d_model: int, length: int) -> int:
        return measured_state(self, d_model, length)

    def built(self, d_model: int) -> nn.Module:
        """Return the layer, given what it takes of what we know."""
        cls = getattr(fla("layers"), self.layer, None)
        if cls is None:
            known = ", ".join(getattr(fla("layers"), "__all__", ()))
            raise UserError(f"fla_layer: fla.layers has no '{self.layer}'. It has {known}.")
        takes = inspect.signature(cls).parameters
        if self.num_heads and "num_heads" not in takes:
            raise UserError(f"fla_layer: {self.layer} has no num_heads. Write fla_layer:layer={self.layer}:num_heads=0")
        heads = {"num_heads": self.num_heads, "head_dim": d_model // self.num_heads} if self.num_heads else {}
        # RWKV-7 asks of how many layers it is the first.
        known_here = {"hidden_size": d_model, "layer_idx": 0, "num_hidden_layers": 2} | heads
        return cls(**{name: value for name, value in known_here.items() if name in takes})


class ForeignLayer(MixerModule):
    def __init__(self, layer: nn.Module, name: str) -> None:
        super().__init__()
        self.layer, self.name = layer, name

    def forward(self, x: Tokens) -> Tokens:
        if x.device.type not in (DEVICE, "meta"):
            raise UserError(f"fla_layer:layer={self.name} runs on CUDA alone: use --device cuda, or another mixer.")
        return self.layer(x)[0]

    def init_state(self, batch: int) -> "Carried":
        return Carried(fla("models.utils").Cache())

    def step(self, x: Token, state: "Carried") -> tuple[Token, "Carried"]:
        # The layer writes into the cache it is given; deepcopy itself refuses tensors with a history.
        carried = Carried(deepcopy(state.cache, {id(tensor): tensor.clone() for tensor in state}))
        y = self.layer(x[:, None], past_key_values=carried.cache, use_cache=True)[0]
        return y.squeeze(1), carried


class Carried:
    """Holds fla's cache of one layer; iterating over it gives its tensors."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache

    def __iter__(self) -> Iterator[Tensor]:
        held = tree_leaves(self.cache[0]) if len(self.cache) else ()
        return (value for value in held if isinstance(value, Tensor))


@cache
@torch.no_grad()
def measured_state(mixer: FlaLayer, d_model: int, length: int) -> int:
    """Return the scalars in the layer's cache after one sequence."""
    layer, carried = mixer.built(d_model).to(DEVICE).eval(), Carried(fla("models.utils").Cache())
    layer(torch.zeros(1, length, d_model, device=DEVICE), past_key_values=carried.cache, use_cache=True)
    return state_scalars(carried)


def fla(module: str) -> Any:
    """Return a module of flash-linear-attention."""
    if not torch.get_device_module(DEVICE).is_available():
        raise UserError("fla_layer runs on CUDA alone, and there is no GPU here: choose another mixer.")
    try:
        return import_module(f"fla.{module}")
    except ImportError as error:
        raise UserError(
            f"fla_layer needs flash-linear-attention with its layers ({error}): pip install 'assay-bench[fla]'"
        ) from error
