"""The model of the in-context studies is: embed, n x (mixer, state mixer), norm, head.

    h = embed(x) + position;   h += mixer(norm(h));   h += state_mixer(norm(h));   answer = head(norm(h))

The head, and the last layer's state mixer, run only where an answer is scored, since nothing else reads them. The
table of learned positions is as long as the task, not longer. Under autocast h is as narrow as the products: small
models are bound by memory.
"""

from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from assay.core.errors import UserError
from assay.mixers import mixers
from assay.mixers.base import Mixer, MixerModule
from assay.nn.norm import Norm
from assay.nn.random import for_shapes_alone
from assay.nn.shapes import built_for_shapes, parameter_count
from assay.state_mixers import state_mixers
from assay.state_mixers.base import StateMixer
from assay.tasks.base import TaskShape, Tokens

Scored = Int[Tensor, "batch scored"] | None
"""The positions at which answers are read; None: all."""


@dataclass(frozen=True, kw_only=True)
class SequenceModel:
    """An embedding, layers of a sequence mixer and a state mixer, and a head."""

    seq_mixer: Mixer = field(default_factory=lambda: mixers.parse("attention"))
    """Moves information along time."""
    state_mixer: StateMixer = field(default_factory=lambda: state_mixers.parse("mlp"))
    """Works on each position alone."""
    model_dim: int = 128
    """Channels of the vector that every position has between layers."""
    num_layers: int = 2
    """Layers, each a sequence mixer followed by a state mixer."""
    positions: Literal["learned", "none", "auto"] = "learned"
    """Learned absolute positions, added to the embedding, or none; auto: where the mixer is blind to order."""
    tied: bool = False
    """The head shares the embedding's vectors, where inputs and outputs are tokens."""
    layer_params: int = 0
    """Parameters of a layer, met within 2 % by the width of the state mixer; 0: no target."""

    def __post_init__(self) -> None:
        if self.model_dim < 1 or self.num_layers < 1:
            raise UserError(f"model_dim={self.model_dim}, num_layers={self.num_layers}: both must be at least 1.")
        self.seq_mixer.check_width(self.model_dim)

    def build(self, shape: TaskShape, max_len: int = 0) -> "SequenceModule":
        """Build the model for a task; its mixers for sequences of up to `max_len` tokens, where that is more."""
        longest = max(shape.length, max_len)
        return SequenceModule(self.fitted(longest) if self.layer_params else self, shape, longest)

    def check(self, shape: TaskShape) -> None:
        """Raise UserError if it cannot be built for the task; the shapes of one layer are enough to know."""
        _check(self, shape)

    @property
    def has_table(self) -> bool:
        """Whether it has a table of positions, and so works for the task's length alone."""
        return self.positions == "learned" or (self.positions == "auto" and not self.seq_mixer.tells_order())

    def fitted(self, length: int) -> "SequenceModel":
        """Return the model whose state mixer is as wide as `layer_params` asks."""
        model, met = self.nearest(length)
        if abs(met - self.layer_params) > 0.02 * self.layer_params:
            raise UserError(
                f"{self.seq_mixer} at model_dim={self.model_dim} has no state mixer width that gives a layer "
                f"{self.layer_params} parameters: the nearest is {met}. Raise model.layer_params, or choose a smaller "
                "mixer."
            )
        return model

    def nearest(self, length: int, multiple: int = 1) -> tuple["SequenceModel", int]:
        """Return the model whose layers come nearest to `layer_params`, and the parameters that one has; the state
        mixer's width is a multiple of `multiple`, at least one of them."""
        if not any(option.name == "inner" for option in fields(self.state_mixer)):
            raise UserError(
                f"model.layer_params={self.layer_params} is met by the width of the state mixer, and "
                f"{self.state_mixer} has none. Choose mlp, glu, swiglu or bilinear."
            )
        expected = max(self.layer_params, self.model_dim**2)
        layers = (self._with_inner(inner) for inner in (1, 2))
        narrow, wide = (parameter_count(partial(Layer, layer, length), expected=expected) for layer in layers)
        inner = multiple * max(1, round((1 + (self.layer_params - narrow) / (wide - narrow)) / multiple))
        return self._with_inner(inner), narrow + (inner - 1) * (wide - narrow)

    def _with_inner(self, inner: int) -> "SequenceModel":
        return replace(self, state_mixer=replace(self.state_mixer, **{"inner": inner}), layer_params=0)

    def state_size(self, length: int) -> int:
        """Return the scalars carried per sequence after `length` tokens, over all layers."""
        return self.num_layers * self.seq_mixer.state_size(self.model_dim, length)


class Layer(nn.Module):
    def __init__(self, model: SequenceModel, length: int) -> None:
        super().__init__()
        self.mixer = model.seq_mixer.build(model.model_dim, length)
        self.state_mixer = model.state_mixer.build(model.model_dim)
        self.norms = nn.ModuleList(Norm(model.model_dim) for _ in range(2))

    def forward(
        self, h: Float[Tensor, "batch time d_model"], positions: Scored = None
    ) -> Float[Tensor, "batch _ d_model"]:
        """Compute every position, or only `positions`: state mixers work on each alone."""
        h = h + self.mixer(self.norms[0](h))
        if positions is not None:
            h = torch.gather(h, 1, positions[..., None].expand(-1, -1, h.shape[-1]))
        return h + self.state_mixer(self.norms[1](h))


@lru_cache(maxsize=1024)
def _check(model: SequenceModel, shape: TaskShape) -> None:
    """Raise the UserError that building one layer raises. Cached, since the points of a grid share their models."""
    built_for_shapes(lambda: replace(model, num_layers=1).build(shape))


class SequenceModule(nn.Module):
    """A decoder over tokens or vectors."""

    def __init__(self, model: SequenceModel, shape: TaskShape, max_len: int) -> None:
        super().__init__()
        width = model.model_dim
        self.embed = _embedding(shape, width)
        self.position = nn.Parameter(_table(shape.length, width)) if model.has_table else None
        self.layers = nn.ModuleList(Layer(model, max_len) for _ in range(model.num_layers))
        for depth, mixer in enumerate(part for part in self.modules() if isinstance(part, MixerModule)):
            mixer.depth = depth
        self.norm = Norm(width)
        self.outputs = shape.outputs.vocab if isinstance(shape.outputs, Tokens) else shape.outputs.dim
        self.per_position = shape.answers_per_position
        ties = isinstance(shape.inputs, Tokens) and shape.inputs == shape.outputs and self.per_position == 1
        if model.tied and not ties:
            raise UserError(
                "a tied head needs a task whose answers are tokens of its inputs, one per position: untie it with "
                "--model.no_tied (model.tied=False)."
            )
        self.head = None if model.tied else nn.Linear(width, self.per_position * self.outputs, bias=False)

    def hidden(self, inputs: Tensor, positions: Scored) -> Float[Tensor, "batch scored d_model"]:
        h = self.embed(inputs)
        if self.position is not None:
            h = h + self.position[: inputs.shape[1]]
        if torch.is_autocast_enabled(h.device.type):
            h = h.to(torch.get_autocast_dtype(h.device.type))
        *layers, last = self.layers
        for layer in layers:
            h = layer(h)
        return self.norm(last(h, positions))

    def forward(self, inputs: Tensor, positions: Scored = None) -> Float[Tensor, "batch answers outputs"]:
        """Return answers at `positions`, or at every position; where a position has several, they stand in a row."""
        h = self.hidden(inputs, positions)
        if self.head is None:
            return linear(h, self.embed.weight)  # type: ignore[arg-type]
        answers = self.head(h)
        return answers if self.per_position == 1 else read_out(answers, self.per_position)


def read_out(answers: Float[Tensor, "batch scored wide"], count: int) -> Float[Tensor, "batch answers outputs"]:
    """Cut what stands at each position into `count` answers."""
    return rearrange(answers, "b s (n outputs) -> b (s n) outputs", n=count)


def _table(length: int, width: int) -> Float[Tensor, "time d_model"]:
    return torch.empty(length, width) if for_shapes_alone() else 0.02 * torch.randn(length, width)


def _embedding(shape: TaskShape, width: int) -> nn.Module:
    if isinstance(shape.inputs, Tokens):
        if for_shapes_alone():
            return nn.Embedding(shape.inputs.vocab, width, _weight=torch.empty(shape.inputs.vocab, width))
        table = nn.Embedding(shape.inputs.vocab, width)
        nn.init.normal_(table.weight, std=width**-0.5)  # norms scale it up; a learning rate moves small ones more
        return table
    return nn.Linear(shape.inputs.dim, width, bias=False)
