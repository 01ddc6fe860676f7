"""A sparse coder turns a vector into a longer or shorter one with few active units, and perhaps back.

Modules hold many models of one kind side by side: every parameter and buffer has a leading `models` axis, and no
operation mixes models. An input is (groups, batch, d_in): consecutive models share the batch of their group, so that
all models of one group are one matrix product. One coder alone is models=1, groups=1.

Two kinds of plug-in: a `TrainedCoder` is trained step by step (train.coder_bank); a `FittedCoder` is fitted at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn

from assay.core.errors import UserError
from assay.core.plugin import Registry, Sized
from assay.nn.preparation import Preparation
from assay.nn.random import initialised_from
from assay.sparse_coders import sparse_coders

Rows = Float[Tensor, "groups batch d_in"]
Codes = Float[Tensor, "models batch d_code"]
Guesses = Float[Tensor, "models batch d_in"]
Directions = Float[Tensor, "models d_code d_in"]
PerModel = Float[Tensor, " models"]
Terms = Mapping[str, PerModel]
"""A loss by its terms; `total` is minimised."""
VECTOR = 32
"""Most numbers that a vector loop takes at a time (two vectors of 512 bits)."""


class CoderModule(nn.Module):
    """`models` coders of one kind. Subclasses give `fresh`, `encode` and `loss`; those with a decoder, `decode`."""

    preparation: Preparation | None = None
    """How the rows that the coder was trained on were made from raw ones, where that is known; exports fold it in."""

    def __init__(self, models: int, d_in: int, d_code: int) -> None:
        super().__init__()
        self.models, self.d_in, self.d_code = models, d_in, d_code

    def encode(self, x: Rows) -> Codes:
        """Code each row, from that row alone."""
        raise NotImplementedError(f"{type(self).__name__}.encode")

    def decode(self, code: Codes) -> Guesses:
        raise UserError("this coder has no decoder of its own: fit one to its codes (metrics.sparsity.ridge_decoder).")

    @property
    def has_decoder(self) -> bool:
        return type(self).decode is not CoderModule.decode

    def directions(self) -> Directions:
        """The direction of each unit in the input: its row of the decoder, or of the encoder where there is none."""
        raise NotImplementedError(f"{type(self).__name__}.directions")

    @property
    def ignores_dark_inputs(self) -> bool:
        """Whether an input that is always 0 enters the loss only through W_enc x: no decoder, no norms."""
        return False

    @property
    def graphable(self) -> bool:
        """Whether a CUDA graph can hold a step; not with solvers that branch on the host."""
        return True

    def loss(self, x: Rows) -> Terms:
        """Compute the loss of the training batch, model by model, on the code that `encode` gives: with a decoder,
        `mse` is the squared error of that code; without one, the loss depends on x only through the code, and on all
        of it. May change buffers (who fired when), never parameters."""
        raise NotImplementedError(f"{type(self).__name__}.loss")

    def gradient(self, x: Rows) -> Terms:
        """Compute the loss, and write its gradient to every parameter's existing `.grad`."""
        with torch.enable_grad():
            terms = self.loss(x)
            for name, term in terms.items():
                if term.ndim != 1:
                    said = f"must have one number per model, and has the shape {tuple(term.shape)}"
                    raise UserError(f"{type(self).__name__}.loss: {name} {said}: do not average over models.")
            for parameter in self.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()
            terms["total"].sum().backward()
        return {name: term.detach() for name, term in terms.items()}

    def after_step(self) -> None:
        """Restore constraints, such as norms, after an update."""

    def fresh(self, mean: Float[Tensor, " d_in"]) -> dict[str, Tensor]:
        """Draw one model's initial parameters from the global generator; `mean` is that of the training data."""
        raise NotImplementedError(f"{type(self).__name__}.fresh")

    @torch.no_grad()
    def initialise(self, seeds: Sequence[int], mean: Float[Tensor, " d_in"]) -> None:
        """Initialise each model from its own seed's stream, whatever else is in the module."""
        for place, seed in enumerate(seeds):
            with initialised_from(seed, "init"):
                for name, value in self.fresh(mean).items():
                    self.get_parameter(name)[place].copy_(value)


class EncoderModule(CoderModule):
    """z = W_enc x + b_enc for all models of a group in one product."""

    def __init__(self, models: int, d_in: int, d_code: int) -> None:
        super().__init__(models, d_in, d_code)
        self.W_enc = nn.Parameter(torch.zeros(models, d_code, d_in))
        self.b_enc = nn.Parameter(torch.zeros(models, d_code))

    def fresh(self, mean: Float[Tensor, " d_in"]) -> dict[str, Tensor]:
        layer = nn.Linear(self.d_in, self.d_code)
        return {"W_enc": layer.weight, "b_enc": layer.bias}

    def directions(self) -> Directions:
        return self.W_enc.detach()

    def preactivations(self, x: Rows) -> Codes:
        return project(x, self.W_enc, self.b_enc)


class DecoderModule(EncoderModule):
    """An encoder that reads x - b_dec and a decoder x' = a W_dec + b_dec, tied at the start, their rows at length 1."""

    unit_rows: ClassVar[bool] = True
    """Whether decoder rows are kept at norm 1, so that a unit's activation is its size in the input."""
    half_fires: ClassVar[bool] = False
    """Whether half of the units fire at the start: d_code random rows then reconstruct d_code / (2 d_in) times x, and
    after such an overshoot most units die in the first steps. Encoder rows therefore begin shorter by as much."""

    def __init__(self, models: int, d_in: int, d_code: int) -> None:
        super().__init__(models, d_in, d_code)
        self.W_dec = nn.Parameter(torch.zeros(models, d_code, d_in))
        self.b_dec = nn.Parameter(torch.zeros(models, d_in))

    def fresh(self, mean: Float[Tensor, " d_in"]) -> dict[str, Tensor]:
        rows = nn.functional.normalize(torch.randn(self.d_code, self.d_in), dim=1)
        gain = min(1.0, 2 * self.d_in / self.d_code) if self.half_fires else 1.0
        return {"W_enc": rows * gain, "b_enc": torch.zeros(self.d_code), "W_dec": rows, "b_dec": mean}

    def preactivations(self, x: Rows) -> Codes:
        # W (x - b_dec) + b_enc, with b_dec moved into the bias, so that the batch is still one product.
        return project(x, self.W_enc, self.b_enc - torch.einsum("mkd,md->mk", self.W_enc, self.b_dec))

    def decode(self, code: Codes) -> Guesses:
        return torch.baddbmm(self.b_dec[:, None], code, self.W_dec)

    def directions(self) -> Directions:
        return self.W_dec.detach()

    def reconstruction_error(self, x: Rows, guess: Guesses) -> PerModel:
        """|x - guess|^2, summed over inputs and averaged over rows."""
        return self.residual(x, guess).square().sum(dim=2).mean(dim=1)

    def residual(self, x: Rows, guess: Guesses) -> Guesses:
        grouped = rearrange(guess, "(g m) b d -> g m b d", g=len(x))
        return rearrange(x[:, None] - grouped, "g m b d -> (g m) b d")

    @torch.no_grad()
    def after_step(self) -> None:
        if self.unit_rows:
            self.W_dec.div_(self.W_dec.norm(dim=2, keepdim=True).clamp_min(1e-8))


class FittedModule(CoderModule):
    """One model with nothing left to train: a = phi(W x + b), phi the identity or a ReLU."""

    W_enc: Tensor
    b_enc: Tensor

    def __init__(self, W: Float[Tensor, "d_code d_in"], b: Float[Tensor, " d_code"], *, rectified: bool) -> None:
        super().__init__(1, W.shape[1], W.shape[0])
        self.rectified = rectified
        self.register_buffer("W_enc", W[None])
        self.register_buffer("b_enc", b[None])

    def encode(self, x: Rows) -> Codes:
        z = project(x, self.W_enc, self.b_enc)
        return z.relu() if self.rectified else z

    def directions(self) -> Directions:
        return self.W_enc


class SparseCoder(Sized):
    """sparse_coders/<name>.py. The promises are in assay.contracts.sparse_coders."""

    registry: ClassVar[Registry] = sparse_coders
    may_be_none: ClassVar[tuple[str, ...]] = ("dead_after",)
    weights: ClassVar[tuple[str, ...]] = ()
    """Options that weigh a penalty: 0 or more, since below 0 it would be a reward."""
    scales: ClassVar[tuple[str, ...]] = ()
    """Options that must be above 0."""
    level_option: ClassVar[str | None] = None
    """The option that makes codes sparser or denser, if there is one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.weights:
            if (value := getattr(self, name)) < 0:
                raise UserError(f"{self.label}: {name}={value} would reward what it should cost; 0 or more.")
        for name in self.scales:
            if (value := getattr(self, name)) <= 0:
                raise UserError(f"{self.label}: {name}={value} must be above 0.")

    def check(self, d_in: int, d_code: int, batch: int) -> None:
        """Raise for sizes this coder cannot have, before anything is computed."""


class TrainedCoder(SparseCoder):
    """A coder trained by gradients, many at a time."""

    columns: ClassVar[tuple[str, ...]] = ()
    """Options in which the models of one module may differ; they must be numbers."""
    module: ClassVar[type[CoderModule]]

    def build(self, models: int, d_in: int, d_code: int) -> CoderModule:
        return stack([self] * models, d_in, d_code)


@dataclass(frozen=True, kw_only=True)
class CountedCoder(TrainedCoder):
    """A coder with a given number of active units."""

    columns: ClassVar = ("k",)
    level_option: ClassVar = "k"

    k: int = 8
    """Active units of a row."""

    def check(self, d_in: int, d_code: int, batch: int) -> None:
        if not 1 <= self.k <= d_code:
            raise UserError(f"{self.label}: k must be between 1 and the {d_code} units there are.")


class FittedCoder(SparseCoder):
    """A coder fitted to the training data at once."""

    def fit(self, x: Float[Tensor, "n d_in"], d_code: int, seed: int) -> CoderModule:
        """Fit the module of one model."""
        raise NotImplementedError(f"{type(self).__name__}.fit")


def principal_axes(
    x: Float[Tensor, "n d_in"], count: int
) -> tuple[Float[Tensor, " d_in"], Float[Tensor, "count d_in"], Float[Tensor, " count"]]:
    """Compute, in float64, the mean of the rows, the directions of largest variance, and the variance along each."""
    mean = x.double().mean(dim=0)
    centred = x.double() - mean
    sums, axes = torch.linalg.eigh(centred.mT @ centred)
    return mean, axes.flip(1)[:, :count].mT, sums.flip(0)[:count] / len(x)


def stack(coders: Sequence[TrainedCoder], d_in: int, d_code: int) -> CoderModule:
    """Build coders that differ only in their `columns` as one module: such an option is a tensor with a models axis."""
    first = coders[0]
    fixed = {f.name: getattr(first, f.name) for f in fields(first) if f.name not in first.columns}
    for coder in coders:
        assert type(coder) is type(first), f"{coder} and {first} cannot be one module"
        assert fixed == {name: getattr(coder, name) for name in fixed}, f"{coder} and {first} differ in more"
    # On the CPU even where a module is built on the meta device: some read their columns' values.
    columns = {name: torch.tensor([getattr(coder, name) for coder in coders], device="cpu") for name in first.columns}
    made: Any = type(first).module
    return made(len(coders), d_in, d_code, **fixed, **columns)


def pick(coder: TrainedCoder, module: CoderModule, place: int) -> CoderModule:
    """Take one model out of a module."""
    alone = coder.build(1, module.d_in, module.d_code)
    state = {name: value[place : place + 1].detach().clone() for name, value in module.state_dict().items()}
    some = next(module.parameters())
    alone.to(device=some.device, dtype=some.dtype).load_state_dict(state)
    return alone


def project(x: Rows, weight: Directions, bias: Float[Tensor, "models d_code"]) -> Codes:
    """weight x + bias: on a CPU one product per group; on CUDA one per model, whose code then lies in one piece, as all
    that follows wants it."""
    if x.is_cuda:
        rows = repeat(x, "g b d -> (g m) b d", m=len(weight) // len(x))
        return torch.baddbmm(bias[:, None], rows, weight.mT)
    stacked = rearrange(weight, "(g m) k d -> g (m k) d", g=len(x))
    z = torch.bmm(x, stacked.mT)
    return rearrange(z, "g b (m k) -> (g m) b k", k=weight.shape[1]) + bias[:, None]


def steady(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply exp or log with bits that do not depend on the number of models: vector loops leave a tensor's last
    elements to scalar code, which rounds differently. Padding makes each model end where a vector does."""
    rest = -x.shape[-1] % VECTOR
    if not rest or x.is_cuda:
        return function(x)
    return function(nn.functional.pad(x, (0, rest), value=1.0))[..., : x.shape[-1]]
