"""The model of the in-context studies: embed, n x (mixer, state mixer), norm, head.

    h = embed(x) + position;   h += mixer(norm(h));   h += state_mixer(norm(h));   answer = head(norm(h))

The head runs only where an answer is scored, which is most of the work saved when the vocabulary is large. The table of
learned positions is as long as the task, not longer.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.core.errors import UserError
from assay.mixers import mixers
from assay.mixers.base import Mixer
from assay.state_mixers import state_mixers
from assay.state_mixers.base import StateMixer
from assay.tasks.base import TaskShape, Tokens


@dataclass(frozen=True, kw_only=True)
class SequenceModel:
    """The options of a sequence model; `build` makes it for a task."""

    seq_mixer: Mixer = field(default_factory=lambda: mixers.parse("attention"))
    """What moves information along time."""
    state_mixer: StateMixer = field(default_factory=lambda: state_mixers.parse("mlp"))
    """What works on each position alone."""
    model_dim: int = 128
    num_layers: int = 2
    positions: Literal["learned", "none"] = "learned"
    """Learned absolute positions, added to the embedding, or none."""

    def __post_init__(self) -> None:
        if self.model_dim < 1 or self.num_layers < 1:
            raise UserError(f"model_dim={self.model_dim}, num_layers={self.num_layers}: both must be at least 1.")

    def build(self, shape: TaskShape) -> "SequenceModule":
        return SequenceModule(self, shape)

    def state_size(self, length: int) -> int:
        """Scalars carried per sequence after `length` tokens, all layers."""
        return self.num_layers * self.seq_mixer.state_size(self.model_dim, length)


class Layer(nn.Module):
    def __init__(self, model: SequenceModel, length: int) -> None:
        super().__init__()
        self.mixer = model.seq_mixer.build(model.model_dim, length)
        self.state_mixer = model.state_mixer.build(model.model_dim)
        self.norms = nn.ModuleList(nn.RMSNorm(model.model_dim, eps=1e-6) for _ in range(2))

    def forward(self, h: Float[Tensor, "batch time d_model"]) -> Float[Tensor, "batch time d_model"]:
        h = h + self.mixer(self.norms[0](h))
        return h + self.state_mixer(self.norms[1](h))


class SequenceModule(nn.Module):
    """A decoder over tokens or vectors."""

    def __init__(self, model: SequenceModel, shape: TaskShape) -> None:
        super().__init__()
        width = model.model_dim
        self.embed = _embedding(shape, width)
        self.position = nn.Parameter(0.02 * torch.randn(shape.length, width)) if model.positions == "learned" else None
        self.layers = nn.ModuleList(Layer(model, shape.length) for _ in range(model.num_layers))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        outputs = shape.outputs.vocab if isinstance(shape.outputs, Tokens) else shape.outputs.dim
        self.head = nn.Linear(width, outputs, bias=False)

    def hidden(self, inputs: Tensor) -> Float[Tensor, "batch time d_model"]:
        h = self.embed(inputs)
        if self.position is not None:
            h = h + self.position[: inputs.shape[1]]
        for layer in self.layers:
            h = layer(h)
        return self.norm(h)

    def forward(
        self, inputs: Tensor, positions: Int[Tensor, "batch scored"] | None = None
    ) -> Float[Tensor, "batch scored outputs"]:
        """Answers at `positions`, or at every position."""
        h = self.hidden(inputs)
        if positions is not None:
            h = torch.gather(h, 1, positions[..., None].expand(-1, -1, h.shape[-1]))
        return self.head(h)


def _embedding(shape: TaskShape, width: int) -> nn.Module:
    if isinstance(shape.inputs, Tokens):
        return nn.Embedding(shape.inputs.vocab, width)
    return nn.Linear(shape.inputs.dim, width, bias=False)
