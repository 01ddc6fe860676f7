"""A linear reader is fitted to a code and scored on held-out data.

Every probe here is ridge regression with an intercept, in float64, from one Gram matrix of the code:

    W(lam) = (G + lam I)^-1 C        G = Z'Z/n,  C = Z'Y/n,  Z standardised and Y centred on the fit part

lam minimises generalised cross-validation, GCV(lam) = RSS/n / (1 - df/n)^2 (Golub, Heath & Wahba 1979), which costs one
eigendecomposition for the whole grid, or, of a wide code, a Cholesky factor for each penalty that is tried: the grid is
searched then. For sparse codes lam minimises the error on rows kept apart for that. Fitted in sample, a code of pure
noise would score k/n; held out it scores 0.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from assay.core.errors import UserError

# On the scale of a correlation matrix: from no shrinkage that float64 can see to weights of nothing.
PENALTIES = tuple(10 ** (quarter / 4) for quarter in range(-40, 17))


WIDE = 1024
"""Coordinates above which eigenvectors cost more than a search over factorisations."""
NO_FACTOR = "no penalty gave a Gram matrix that could be factored: the code is not finite, or too large for float64"
QUIET = 0.1
"""Columns whose spread is below this share of the typical one are not scaled up to it."""


@dataclass(frozen=True)
class Split:
    """Codes and targets, a part to fit on and a part to score on."""

    z_fit: Float[Tensor, "n_fit d"]
    y_fit: Float[Tensor, "n_fit r"]
    z_test: Float[Tensor, "n_test d"]
    y_test: Float[Tensor, "n_test r"]


@dataclass(frozen=True)
class RidgeFit:
    """y = intercept + (z - centre) W, with the penalty that was chosen and the degrees of freedom it leaves."""

    centre: Float[Tensor, " d"]
    weights: Float[Tensor, "d r"]
    intercept: Float[Tensor, " r"]
    penalty: float
    degrees: float

    def predict(self, z: Float[Tensor, "n d"]) -> Float[Tensor, "n r"]:
        return self.intercept + (z.double() - self.centre) @ self.weights


class _Moments(NamedTuple):
    """Moments of the fit part that ridge needs, computed once for every subset of coordinates."""

    centre: Float[Tensor, " d"]
    gain: Float[Tensor, " d"]
    intercept: Float[Tensor, " r"]
    gram: Float[Tensor, "d d"]
    cross: Float[Tensor, "d r"]
    power: Float[Tensor, ""]  # mean square of the centred targets, summed over outputs
    n: int


class _Solution(NamedTuple):
    weights: Float[Tensor, "*sets d r"]
    penalty: Float[Tensor, "*sets"]
    degrees: Float[Tensor, "*sets"]


def r2(prediction: Float[Tensor, "n r"], target: Float[Tensor, "n r"]) -> float:
    """Return 1 - MSE/Var, both pooled over rows and outputs; each output is centred on its own mean, Var is unbiased.

    0.0 for a constant target (Var < 1e-8), which nothing explains.
    """
    return float(_r2(prediction, target))


def _r2(prediction: Float[Tensor, "*sets n r"], target: Float[Tensor, "n r"]) -> Float[Tensor, "*sets"]:
    target = target.double()
    variance = target.var(dim=0).mean()
    error = (prediction.double() - target).square().mean(dim=(-2, -1))
    return torch.where(variance < 1e-8, torch.zeros_like(error), 1 - error / variance)


def standardiser(
    z: Float[Tensor, "*sets n d"], *, floored: bool = True
) -> tuple[Float[Tensor, "*sets d"], Float[Tensor, "*sets d"]]:
    """Return centre and gain per column, so that (z - centre) * gain has unit variance, or less where a column hardly
    moves (not so without `floored`); a dead column's gain is 0.

    A unit that fired once in the fit part would otherwise be blown up, and the next time it fires throw the prediction
    far off: a GRU's R2 at n = 128 was -16 for one such unit. At n = 2048 the floor moves no score by more than .005.
    """
    z = z.double()
    centre, deviation = z.mean(dim=-2), z.std(dim=-2, correction=0)
    # Relative, since the mean of a constant column is only as exact as its last bit; so rescaling changes nothing.
    alive = deviation > 1e-10 * z.square().mean(dim=-2).sqrt()
    power = (deviation * alive).norm(dim=-1, keepdim=True)
    floor = floored * QUIET * power / alive.sum(dim=-1, keepdim=True).clamp_min(1).sqrt()
    return centre, torch.where(alive, 1 / deviation.maximum(floor), torch.zeros_like(deviation))


def ridge(split: Split) -> RidgeFit:
    """Return the linear reader of the whole code, fitted on the fit part."""
    moments = _moments(split)
    gram, cross, power, n = moments.gram, moments.cross, moments.power, moments.n
    if len(gram) <= WIDE:
        return _reader(moments, _solve(gram, cross, power, n))

    def generalised(found: _Solution) -> Tensor:
        weights, penalty, degrees = found
        left = power - (weights * cross).sum() - penalty * weights.square().sum()
        return _gcv(left, degrees, power, n)

    return _reader(moments, _search(gram, cross, generalised))


def ridge_chosen(split: Split) -> RidgeFit:
    """Return the linear reader of the whole code, fitted on one part, at the penalty with the least error on the other.

    For sparse codes. GCV takes every row to be like every other; but a unit that fired in three rows is fitted to those
    three, and throws off the row in which it fires next: codes of SmolLM2's activations that their own decoder left
    .76 of unexplained came out at 1.17.
    """
    moments = _moments(split)
    z, y = (split.z_test.double() - moments.centre) * moments.gain, split.y_test.double() - moments.intercept
    gram, cross, power = z.mT @ z / len(z), z.mT @ y / len(z), _power(y)
    if len(gram) <= WIDE:
        order = _held_out(moments, gram, cross, power).argsort(stable=True).tolist()
        tried = (_factored(moments.gram, moments.cross, PENALTIES[place]) for place in order)
        best = next((solution for solution in tried if solution is not None), None)
        assert best is not None, NO_FACTOR
        return _reader(moments, best)

    def held_out(found: _Solution) -> Tensor:
        return power - 2 * (found.weights * cross).sum() + (found.weights * (gram @ found.weights)).sum()

    return _reader(moments, _search(moments.gram, moments.cross, held_out))


def _held_out(
    fitted: _Moments, gram: Float[Tensor, "d d"], cross: Float[Tensor, "d r"], power: Float[Tensor, ""]
) -> Float[Tensor, " grid"]:
    """Return the error at every penalty on rows with other moments. In the eigenbasis weights are C / (spectrum +
    penalty), so that it is a quadratic form of 1 / (spectrum + penalty)."""
    assert fitted.gram.isfinite().all(), NO_FACTOR
    spectrum, axes = torch.linalg.eigh(fitted.gram)
    own = axes.mT @ fitted.cross
    gains = 1 / (spectrum.clamp_min(0) + rearrange(spectrum.new_tensor(PENALTIES), "g -> g 1"))
    explained = (own * (axes.mT @ cross)).sum(dim=1)
    spent = (axes.mT @ gram @ axes) * (own @ own.mT)
    return power - 2 * gains @ explained + ((gains @ spent) * gains).sum(dim=1)


def _reader(moments: _Moments, found: _Solution) -> RidgeFit:
    weights = rearrange(moments.gain, "d -> d 1") * found.weights
    return RidgeFit(moments.centre, weights, moments.intercept, float(found.penalty), float(found.degrees))


def ridge_r2(split: Split) -> float:
    """Return the held-out R2 of the linear reader."""
    return r2(ridge(split).predict(split.z_test), split.y_test)


def masked_r2(split: Split, keep: float, masks: int, rng: torch.Generator) -> float:
    """Return the mean held-out R2 of readers, refitted for each, of floor(keep * d) random coordinates, at least one.

    The sub-blocks of one Gram matrix are all a mask needs, so the masks are one batched eigendecomposition.
    """
    moments = _moments(split)
    d = len(moments.centre)
    if not 0 < keep <= 1:
        raise UserError(f"keep={keep}: choose a share above 0 and at most 1")
    kept = max(1, int(keep * d + 1e-9))
    draws = torch.rand(masks, d, generator=rng, device=rng.device)
    subsets = draws.argsort(dim=-1)[:, :kept].sort(dim=-1).values.to(moments.centre.device)
    rows, columns = rearrange(subsets, "m k -> m k 1"), rearrange(subsets, "m k -> m 1 k")
    found = _solve(moments.gram[rows, columns], moments.cross[subsets], moments.power, moments.n).weights
    weights = found.new_zeros(masks, d, found.shape[-1])
    weights.scatter_(1, rows.expand_as(found), found)
    z_test = (split.z_test.double() - moments.centre) * moments.gain
    prediction = moments.intercept + einsum(z_test, weights, "n d, m d r -> m n r")
    return float(_r2(prediction, split.y_test).mean())


def principal_r2(split: Split, k_max: int | None = None) -> list[float]:
    """Return held-out R2 of ridge on the code's top-k principal components, k = 1..k_max (default: all).

    The components of the centred code, unstandardised and fitted on the fit part: the curve is the same for any
    rotation and any common gain of the code, which a curve over random coordinates is not.
    """
    centre, mean = split.z_fit.double().mean(dim=0), split.y_fit.double().mean(dim=0)
    z, y = split.z_fit.double() - centre, split.y_fit.double() - mean
    spectrum, axes = torch.linalg.eigh(z.mT @ z / len(z))
    spectrum, axes = spectrum.flip(0).clamp_min(0), axes.flip(1)
    # The penalties are meant for eigenvalues of mean 1, as a correlation matrix has them.
    gain = spectrum.mean().clamp_min(torch.finfo(torch.float64).tiny).rsqrt()
    axes = axes * gain
    d = len(centre)
    sizes = torch.arange(1, min(k_max or d, d) + 1, device=z.device)
    seen = (torch.arange(d, device=z.device) < rearrange(sizes, "k -> k 1")).double()
    cross = axes.mT @ (z.mT @ y) / len(z)
    found = _shrink(spectrum * gain**2 * seen, einsum(seen, cross, "k d, d r -> k d r"), _power(y), len(z)).weights
    prediction = mean + einsum((split.z_test.double() - centre) @ axes, found, "n d, k d r -> k n r")
    return [float(score) for score in _r2(prediction, split.y_test)]


def _moments(split: Split) -> _Moments:
    centre, gain = standardiser(split.z_fit)
    mean = split.y_fit.double().mean(dim=0)
    z, y = (split.z_fit.double() - centre) * gain, split.y_fit.double() - mean
    return _Moments(centre, gain, mean, z.mT @ z / len(z), z.mT @ y / len(z), _power(y), len(z))


def _power(y: Float[Tensor, "n r"]) -> Float[Tensor, ""]:
    return y.square().mean(dim=0).sum()


def _solve(
    gram: Float[Tensor, "*sets d d"], cross: Float[Tensor, "*sets d r"], power: Float[Tensor, ""], n: int
) -> _Solution:
    """Return ridge weights of each Gram matrix at its own best penalty."""
    spectrum, axes = torch.linalg.eigh(gram)
    found = _shrink(spectrum.clamp_min(0), axes.mT @ cross, power, n)
    return found._replace(weights=axes @ found.weights)


def _search(gram: Float[Tensor, "d d"], cross: Float[Tensor, "d r"], error: Callable[[_Solution], Tensor]) -> _Solution:
    """Return ridge at the penalty with the least error, without eigenvectors: from every eighth penalty of the grid to
    the neighbours of the best, halving the distance. GCV in practice falls and then rises, and this ends where the
    whole grid would; a held-out error need not, and then this may be a local minimum."""
    tried: dict[int, tuple[float, _Solution]] = {}

    def attempt(places: Iterable[int]) -> None:
        for place in places:
            found = _factored(gram, cross, PENALTIES[place])
            if found is not None:
                tried[place] = float(error(found)), found

    attempt(range(0, len(PENALTIES), 8))
    assert tried, NO_FACTOR
    for distance in (4, 2, 1):
        best = min(tried, key=lambda place: tried[place][0])
        attempt(place for place in (best - distance, best + distance) if 0 <= place < len(PENALTIES))
    return min(tried.values(), key=lambda found: found[0])[1]


def _factored(gram: Float[Tensor, "d d"], cross: Float[Tensor, "d r"], penalty: float) -> _Solution | None:
    """Return ridge at one penalty, with df = 1 + d - penalty tr (G + penalty)^-1; None if rounding left no factor."""
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    root, failed = torch.linalg.cholesky_ex(gram + penalty * eye)
    if failed or not root.isfinite().all():  # a matrix of NaN has a factor of NaN
        return None
    trace = torch.linalg.solve_triangular(root, eye, upper=False).square().sum()
    degrees = 1 + len(gram) - penalty * trace
    return _Solution(torch.cholesky_solve(cross, root), gram.new_tensor(penalty), degrees)


def _shrink(
    spectrum: Float[Tensor, "*sets d"], cross: Float[Tensor, "*sets d r"], power: Float[Tensor, ""], n: int
) -> _Solution:
    """Return ridge in the eigenbasis, where it is one division per direction: cross / (spectrum + penalty)."""
    grid = rearrange(spectrum.new_tensor(PENALTIES), "g -> g 1")
    values = rearrange(spectrum, "... d -> ... 1 d")
    strength = rearrange(cross.square().sum(dim=-1), "... d -> ... 1 d")
    left = power - (strength * (values + 2 * grid) / (values + grid).square()).sum(dim=-1)
    degrees = 1 + (values / (values + grid)).sum(dim=-1)
    best = _gcv(left, degrees, power, n).argmin(dim=-1, keepdim=True)
    penalty = grid[:, 0][best]
    weights = cross / rearrange(spectrum + penalty, "... d -> ... d 1")
    return _Solution(weights, penalty.squeeze(-1), degrees.gather(-1, best).squeeze(-1))


def _gcv(left: Tensor, degrees: Tensor, power: Float[Tensor, ""], n: int) -> Tensor:
    """Return the GCV error. Both floors make a vanishing penalty, 0/0 with more coordinates than rows, lose."""
    return left.clamp_min(1e-14 * power) / (1 - degrees / n).clamp_min(1e-8).square()
