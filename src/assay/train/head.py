"""A bank trains many heads of the retrieval probe: Linear(d, hidden) - ReLU - Linear(hidden, r) on cached codes.

See DESIGN, "Cohorts and banks": every tensor has a leading `models` axis, gradients are written out, and one Adam
updates all parameters, packed as (models, parameters). No operation mixes models, so a head is the same whatever it is
trained with, and one that diverges turns to NaN alone. The encoder is frozen, so its codes are computed once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import pack, rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.errors import UserError
from assay.metrics.probes import Split, ridge_r2, standardiser
from assay.nn.random import stream
from assay.train.adamw import FusedAdamW


@dataclass(frozen=True)
class _Weights:
    """Views into one packed row per model, which the optimizer sees whole."""

    packed: Float[Tensor, "models parameters"]
    first: Float[Tensor, "models d_1 hidden"]  # the bias is the last row: codes carry a column of ones
    second: Float[Tensor, "models r hidden"]
    bias: Float[Tensor, "models 1 r"]


@dataclass(frozen=True)
class HeadBank:
    """Trained heads, one per model, each with the standardisation of its own codes."""

    centre: Float[Tensor, "models 1 d"]
    gain: Float[Tensor, "models 1 d"]
    weights: _Weights

    def inputs(self, codes: Float[Tensor, "models n d"]) -> Float[Tensor, "models n d_1"]:
        """Standardise codes and add a column of ones; in float64, so that a gain of the code cancels."""
        z = ((codes.double() - self.centre) * self.gain).to(codes.dtype)
        return pack([z, z.new_ones(z.shape[:2])], "models n *")[0]

    @torch.no_grad()
    def predict(self, codes: Float[Tensor, "models n d"]) -> Float[Tensor, "models n r"]:
        # Model by model: a batched product of one model may take another kernel, and other last bits, than one of many.
        w = self.weights
        models = zip(self.inputs(codes), w.first, w.second, w.bias, strict=True)
        return torch.stack([torch.addmm(bias, (x @ first).relu_(), second.mT) for x, first, second, bias in models])


@torch.no_grad()
def train_heads(
    codes: Float[Tensor, "models n d"],
    targets: Float[Tensor, "..."],
    *,
    hidden: int,
    steps: int,
    seeds: Sequence[int],
    batch: int = 256,
    lr: float = 1e-3,
) -> HeadBank:
    """Minimise each model's mean squared error by Adam; targets are (models, n, r), or (n, r) for all.

    Model k's first weights and batches come from seeds[k] alone. They are drawn on the CPU, so that a head starts
    and reads the same on every device.
    """
    models, n, _ = codes.shape
    assert len(seeds) == models, f"{len(seeds)} seeds for {models} models"
    if targets.ndim == 2:
        targets = repeat(targets, "n r -> models n r", models=models)
    if n < batch:
        raise UserError(f"{n} codes do not fill a batch of {batch}; cache more codes or lower batch")
    bank = _initial(codes, targets.shape[-1], hidden, seeds)
    # With the targets scaled once here, and the product in _descend, an error is already the gradient of the mean.
    scale = 2 / (batch * targets.shape[-1])
    rows, _ = pack([bank.inputs(codes), targets.to(codes) * scale], "models n *")
    _descend(bank.weights, rows, _orders(n, batch, steps, seeds).to(codes.device), lr=lr, scale=scale)
    return bank


def head_r2(split: Split, *, hidden: int, steps: int, seed: int, batch: int = 256, lr: float = 1e-3) -> float:
    """Compute the held-out R2 of one model's head.

    Its answers pass through a linear map fitted on an eighth of the fit part that the head did not see. A head that
    learned nothing but its training codes' noise then answers with the mean and scores 0, where it would score less.
    """
    own = len(split.z_fit) // 8
    codes = rearrange(split.z_fit[own:], "n d -> 1 n d")
    bank = train_heads(codes, split.y_fit[own:], hidden=hidden, steps=steps, seeds=[seed], batch=batch, lr=lr)
    seen, unseen = (bank.predict(rearrange(z, "n d -> 1 n d"))[0] for z in (split.z_fit[:own], split.z_test))
    return ridge_r2(Split(seen, split.y_fit[:own], unseen, split.y_test))


def batch_order(n: int, batch: int, steps: int, rng: torch.Generator) -> Int[Tensor, "steps batch"]:
    """Draw the rows of each step: a new permutation per epoch, of which the rows that fill no batch are left out."""
    per_epoch = n // batch
    epochs = [torch.randperm(n, generator=rng)[: per_epoch * batch] for _ in range(math.ceil(steps / per_epoch))]
    return rearrange(torch.cat([torch.empty(0, dtype=torch.long), *epochs]), "(s b) -> s b", b=batch)[:steps]


def _orders(n: int, batch: int, steps: int, seeds: Sequence[int]) -> Int[Tensor, "steps rows"]:
    """Draw every model's batches, as rows of the flattened (models n) data, before the loop: no transfers inside it."""
    orders = [k * n + batch_order(n, batch, steps, stream(seed, "head", "order")) for k, seed in enumerate(seeds)]
    return rearrange([order.int() for order in orders], "models s b -> s (models b)")


def _initial(codes: Float[Tensor, "models n d"], outputs: int, hidden: int, seeds: Sequence[int]) -> HeadBank:
    d = codes.shape[-1]
    # One model at a time: a reduction over a stack may round differently with the number of models in it.
    parts = zip(*map(standardiser, codes), strict=True)
    centre, gain = (rearrange(list(part), "models d -> models 1 d") for part in parts)
    weights = _allocate(codes, d, hidden, outputs)
    for k, seed in enumerate(seeds):
        rng = stream(seed, "head", "init")
        # nn.Linear's own start: weights and biases alike uniform within 1/sqrt(fan in).
        for part, fan_in in ((weights.first, d), (weights.second, hidden), (weights.bias, hidden)):
            draw = torch.rand(part[k].shape, generator=rng, dtype=torch.float64)
            part[k] = (2 * draw - 1) / math.sqrt(fan_in)
    return HeadBank(centre, gain, weights)


def _allocate(like: Float[Tensor, "models n d"], d: int, hidden: int, outputs: int) -> _Weights:
    """Allocate zeros. A row ends on a cache line, so that vector kernels and BLAS meet every model at one alignment."""
    sizes = [(d + 1) * hidden, outputs * hidden, outputs]
    packed = like.new_zeros(len(like), math.ceil(sum(sizes) / 16) * 16)
    first, second, bias, _ = torch.split(packed, [*sizes, packed.shape[1] - sum(sizes)], dim=1)
    return _Weights(
        packed,
        rearrange(first, "models (d hidden) -> models d hidden", hidden=hidden),
        rearrange(second, "models (r hidden) -> models r hidden", hidden=hidden),
        rearrange(bias, "models r -> models 1 r"),
    )


def _descend(
    weights: _Weights,
    rows: Float[Tensor, "models n width"],
    orders: Int[Tensor, "steps rows"],
    *,
    lr: float,
    scale: float,
) -> None:
    """Take gradient steps in place. Buffers are reused and nothing is read back, so a GPU never waits for the host."""
    models, d_1, hidden = weights.first.shape
    gradient = _allocate(rows, d_1 - 1, hidden, weights.bias.shape[-1])
    adam = FusedAdamW([weights.packed], lr=lr)
    data = rearrange(rows, "models n width -> (models n) width")
    picked = data.new_empty(orders.shape[1], data.shape[1])
    by_model = rearrange(picked, "(models b) width -> models b width", models=models)
    x, y = by_model[..., :d_1], by_model[..., d_1:]
    active, back = (x.new_empty(*x.shape[:2], hidden) for _ in range(2))
    error = torch.empty_like(y)
    for order in orders.unbind():
        torch.index_select(data, 0, order, out=picked)
        torch.bmm(x, weights.first, out=active).relu_()
        torch.baddbmm(weights.bias, active, weights.second.mT, beta=scale, alpha=scale, out=error).sub_(y)
        torch.bmm(error.mT, active, out=gradient.second)
        torch.sum(error, dim=1, keepdim=True, out=gradient.bias)
        torch.bmm(error, weights.second, out=back)
        # ReLU's derivative in one pass; a comparison and a product take four times as long.
        torch.ops.aten.threshold_backward.grad_input(back, active, 0, grad_input=back)
        torch.bmm(x.mT, back, out=gradient.first)
        adam.step([gradient.packed])
