"""A sparse code is scored by what it keeps, how few units it uses, how many are alive, and whether they are the true
ones.

Everything here judges a frozen code, (rows, units), so that coders with and without a decoder are judged alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from assay.core.errors import UserError
from assay.metrics.probes import Split, ridge, ridge_chosen

Code = Float[Tensor, "n units"]
Rows = Float[Tensor, "n d"]
Directions = Float[Tensor, "units d"]
Atoms = Float[Tensor, "atoms d"]
Fired = Float[Tensor, "n atoms"]
FIRES = 1e-6
"""Below this share of its root mean square a unit is silent. Exact zeros are at any scale; dense codes never are."""


def fraction_unexplained(x: Rows, guess: Rows) -> float:
    """Return sum |x - guess|^2 / sum |x - mean|^2, with the mean of these rows: 0 if perfect, 1 for the mean."""
    x, guess = x.double(), guess.double()
    total = (x - x.mean(dim=0)).square().sum()
    return float((x - guess).square().sum() / total)


@dataclass(frozen=True)
class RidgeDecoder:
    """Predicts guess = code W + b."""

    W: Directions
    b: Float[Tensor, " d"]

    def decode(self, code: Code) -> Rows:
        return (code.double() @ self.W.double() + self.b.double()).to(code.dtype)


def ridge_decoder(
    code: Code, x: Rows, *, chosen_on: tuple[Float[Tensor, "m units"], Float[Tensor, "m d"]] | None = None
) -> RidgeDecoder:
    """Fit the linear decoder of a frozen code. Its penalty is the best for other rows, or, if there are none, chosen by
    generalised cross-validation, which rare units lead astray (metrics.probes has the formulas)."""
    found = ridge(Split(code, x, code[:1], x[:1])) if chosen_on is None else ridge_chosen(Split(code, x, *chosen_on))
    b = found.intercept - found.centre @ found.weights
    return RidgeDecoder(found.weights.to(code.dtype), b.to(code.dtype))


def fires(code: Code) -> Bool[Tensor, "n units"]:
    """Return where a unit is active, relative to its own scale: a fixed threshold would depend on the code's."""
    return code.abs() > FIRES * code.square().mean(dim=0).sqrt()


def l0(code: Code) -> float:
    """Return the mean number of active units of a row."""
    return float(fires(code).sum(dim=1).double().mean())


def dead(code: Code, *, share: float = 0.0) -> int:
    """Return how many units fire in at most this share of the rows."""
    return int((fires(code).double().mean(dim=0) <= share).sum())


def k_sparse_accuracy(
    train: tuple[Code, Int[Tensor, " n"]],
    test: tuple[Float[Tensor, "m units"], Int[Tensor, " m"]],
    ks: Sequence[int] = (1, 2, 5),
) -> dict[int, float]:
    """Score k-sparse probing (Gurnee et al. 2023): for each class against the rest, the k units whose means differ the
    most, a logistic probe on those alone, and its balanced accuracy; the mean over classes."""
    (z, y), (z_test, y_test) = train, test
    labels = y.unique()
    found = k_sparse_of_concepts((z, (y == labels[:, None]).mT), (z_test, (y_test == labels[:, None]).mT), ks)
    if not found:
        raise UserError("k-sparse probing needs rows of at least two classes, in training and test.")
    return found


def k_sparse_of_concepts(
    train: tuple[Code, Bool[Tensor, "n concepts"]],
    test: tuple[Float[Tensor, "m units"], Bool[Tensor, "m concepts"]],
    ks: Sequence[int] = (1, 2, 5),
) -> dict[int, float]:
    """Score the same where a row may have several concepts, or none. Empty where no concept tells two rows apart."""
    z, z_test = train[0], test[0]
    is_it, is_it_test = train[1].mT, test[1].mT
    told = is_it.any(dim=1) & ~is_it.all(dim=1) & is_it_test.any(dim=1) & ~is_it_test.all(dim=1)
    is_it, is_it_test = is_it[told].double(), is_it_test[told].double()
    if not len(is_it):
        return {}
    share, share_test = even(is_it), even(is_it_test)
    wide = z.double()
    means = is_it @ wide / is_it.sum(dim=1, keepdim=True)
    others = (1 - is_it) @ wide / (1 - is_it).sum(dim=1, keepdim=True)
    ranked = ((means - others).abs() / wide.std(dim=0).clamp_min(1e-12)).argsort(dim=1, descending=True)
    found = []
    for k in ks:
        units = ranked[:, :k]
        W = newton(_picked(z, units), is_it, share)
        right = (torch.einsum("cnk,ck->cn", _picked(z_test, units), W) > 0) == (is_it_test > 0)
        found.append((right * share_test).sum(dim=1).mean())
    return dict(zip(ks, torch.stack(found).tolist(), strict=True))


def _picked(z: Code, units: Int[Tensor, "classes k"]) -> Float[Tensor, "classes n width"]:
    """Return each class's units, and a one for the threshold."""
    chosen = z.double()[:, units].movedim(0, 1)
    return torch.cat([chosen, torch.ones_like(chosen[..., :1])], dim=2)


def even(labels: Float[Tensor, "fits n"], other: Float[Tensor, "fits n"] | None = None) -> Float[Tensor, "fits n"]:
    """Return weights that sum to 1, the same for rows with and without the concept, and, of two concepts, for each of
    the four combinations."""
    sides = [labels, 1 - labels]
    if other is not None:
        sides = [side * also for side in sides for also in (other, 1 - other)]
    return torch.stack([side / side.sum(dim=1, keepdim=True).clamp_min(1) for side in sides]).mean(dim=0)


def newton(
    z: Float[Tensor, "fits n d"], y: Float[Tensor, "fits n"], weight: Float[Tensor, "fits n"], steps: int = 20
) -> Float[Tensor, "fits d"]:
    """Fit weighted logistic regressions of few features, all at once: Newton's method with a small ridge, which
    separable classes need, in features of one scale. The number of steps is fixed, so that the host never waits."""
    gain = 1 / z.square().mean(dim=1, keepdim=True).sqrt().clamp_min(1e-12)
    z = z * gain
    W = z.new_zeros(len(z), z.shape[2])
    ridge = 1e-4 * torch.eye(z.shape[2], dtype=z.dtype, device=z.device)
    for _ in range(steps):
        p = torch.sigmoid(torch.einsum("fnd,fd->fn", z, W))
        gradient = torch.einsum("fnd,fn->fd", z, weight * (p - y)) + W @ ridge
        curvature = torch.einsum("fnd,fn,fne->fde", z, weight * p * (1 - p), z) + ridge
        # solve would read back whether there is a solution; with the ridge there is.
        W = W - torch.linalg.solve_ex(curvature, gradient).result
    return W * gain[:, 0]


def matched(
    a: Float[Tensor, "n_a d"], b: Float[Tensor, "n_b d"]
) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"], Float[Tensor, " pairs"]]:
    """Match directions one to one with the largest sum of |cosines| (Hungarian); return rows of a, of b, cosines."""
    from scipy.optimize import linear_sum_assignment

    cosines = (normalize(a.double(), dim=1) @ normalize(b.double(), dim=1).mT).abs()
    rows, columns = linear_sum_assignment(cosines.cpu().numpy(), maximize=True)
    left, right = (torch.from_numpy(index).to(a.device) for index in (rows, columns))
    return left, right, cosines[left, right]


def stability(a: Directions, b: Directions, *, most: int | None = None) -> float:
    """Return the mean |cosine| of two coders' directions, matched one to one: 1 where they found the same. `most`: use
    at most so many units of a, evenly spaced, with any of b's."""
    step = 1 if most is None else -(-len(a) // most)
    return float(matched(a[::step], b)[2].mean())


@dataclass(frozen=True)
class Recovery:
    cosine: float
    """Mean cosine of the true atoms with their match."""
    found: float
    """The share of atoms whose match has a cosine above 0.9."""
    f1: float
    """F1 of firing: does the matched unit fire where the atom did? Mean over matched atoms that fired."""


def recovery(directions: Directions, code: Code, dictionary: Atoms, fired: Fired) -> Recovery:
    """Return how much of a known dictionary was found. An atom without a match (more atoms than units) counts as 0."""
    units, atoms, cosines = matched(directions, dictionary)
    truth, guess = fired[:, atoms] > 0, fires(code)[:, units]
    hits = (truth & guess).sum(dim=0).double()
    f1 = 2 * hits / (truth.sum(dim=0) + guess.sum(dim=0)).clamp_min(1)
    share = len(atoms) / len(dictionary)
    occurred = truth.any(dim=0)
    return Recovery(
        cosine=float(cosines.mean()) * share,
        found=float((cosines > 0.9).double().mean()) * share,
        f1=float(f1[occurred].mean()) * share if occurred.any() else 0.0,
    )


def log_inactive(code: Code) -> float:
    """Return the mean of ln(number of silent units): the limit of the entropy of softmax(-code) as the scale of a
    rectified code grows, since silent units share all responsibility evenly. 0 for a row without silent units."""
    silent = (~fires(code)).sum(dim=1).double()
    return float(silent.clamp_min(1).log().mean())
