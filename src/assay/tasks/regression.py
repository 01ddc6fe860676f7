"""In-context regression (Garg et al. 2022) asks for y_i at x_i, given the pairs before it.

    d = 2, w = (1, -1):   (3, 1) (2, 0) (0, 4) (-4, 0) (1, 1) ?  ->  0       x1 y1 x2 y2 x3: w.x3 = 0

x ~ N(0, I) of `input_dim`, one w ~ N(0, I) per sequence, n = `input_seq_len` pairs:

    linear          y = scale w.x
    sparse_linear   the same with all but `sparsity` random coordinates of w at 0
    quadratic       y = scale w.x^2 / sqrt(3)
    noisy           y = scale w.x + noise_std N(0, 1); `renormalize_noisy` brings its variance to input_dim
    outlier         linear, but with probability `outlier_prob` a pair is x = (1, ..., 1), y = 1

Differs from the paper: no curriculum over dimensions and pairs; 5 coordinates of sparse_linear are kept, the paper's 3.
From the spec's code: there `sparsity` counts the coordinates that are dropped; `renormalize_noisy` divides by the
standard deviation of the sequence itself, so that early answers depend on later pairs (here: of the law); and
`outlier_prob` is .9, so that nearly all pairs are outliers (here .1).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, assert_never

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from assay.tasks import tasks
from assay.tasks.base import Batch, Loss
from assay.tasks.pairs import PairTask, X, Y, before, interleave, separate
from assay.tasks.subsets import distinct

# A ridge that stands for none: the minimum-norm solution to about 1e-5, far above the rounding of float64.
LEAST = 1e-9
ROWS = 128  # sequences solved at once: 128 x 40 Gram matrices of 20 x 20 in float64 are 16 MB

Predictor = Callable[[X, Y], Y]


@tasks.register("regression")
@dataclass(frozen=True, kw_only=True)
class Regression(PairTask):
    """Fit a random function in context, pair after pair."""

    loss: ClassVar[Loss] = "mse"

    regression_type: Literal["linear", "quadratic", "sparse_linear", "noisy", "outlier"] = "linear"
    """Law by which y follows from x; every sequence has its own w."""
    scale: float = 1.0
    """Standard deviation of each entry of w."""
    sparsity: int = 5
    """Entries of w that are not 0; for sparse_linear alone."""
    noise_std: float = 1.0
    """Standard deviation of what is added to y; for noisy alone."""
    renormalize_noisy: bool = False
    """Whether y is scaled to a variance of input_dim; for noisy alone."""
    outlier_prob: float = 0.1
    """Probability that a pair is x = (1, ..., 1), y = 1, whatever w is; for outlier alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 < self.scale < math.inf, f"scale={self.scale} must be positive and finite. Use scale=1.")
        self.require(
            self.regression_type != "sparse_linear" or 1 <= self.sparsity <= self.input_dim,
            f"sparsity={self.sparsity} coordinates cannot be kept of input_dim={self.input_dim}. "
            f"Use a sparsity from 1 to {self.input_dim}.",
        )
        self.require(
            0 <= self.noise_std < math.inf,
            f"noise_std={self.noise_std} is not a standard deviation. Use a finite noise_std of 0 or more.",
        )
        self.require(
            0 <= self.outlier_prob <= 1,
            f"outlier_prob={self.outlier_prob} is not a probability. Use a number from 0 to 1.",
        )

    def sample(self, batch: int, rng: torch.Generator) -> Batch:
        size, device = (batch, self.input_seq_len, self.input_dim), rng.device
        x = torch.randn(size, generator=rng, device=device)
        w = self.scale * torch.randn(batch, self.input_dim, generator=rng, device=device)
        match self.regression_type:
            case "linear":
                y = _apply(w, x)
            case "quadratic":
                y = _apply(w, x.square()) / math.sqrt(3)
            case "sparse_linear":
                (kept,) = distinct(batch, self.sparsity, (self.input_dim,), rng)
                y = _apply(torch.zeros_like(w).scatter(1, kept, w), x)
            case "noisy":
                noise = torch.randn(size[:2], generator=rng, device=device)
                y = self._gain() * (_apply(w, x) + self.noise_std * noise)
            case "outlier":
                outlying = torch.rand(size[:2], generator=rng, device=device) < self.outlier_prob
                x = x.masked_fill(rearrange(outlying, "b n -> b n 1"), 1.0)
                y = _apply(w, x).masked_fill(outlying, 1.0)
            case other:
                assert_never(other)
        return interleave(x, y, targets=y)

    @property
    def error_unit(self) -> float:
        """Variance of y, not counting outliers."""
        match self.regression_type:
            case "sparse_linear":
                return self.scale**2 * self.sparsity
            case "noisy":
                return self._gain() ** 2 * (self.scale**2 * self.input_dim + self.noise_std**2)
            case "linear" | "quadratic" | "outlier":
                return self.scale**2 * self.input_dim
            case other:
                assert_never(other)

    def _gain(self) -> float:
        """Return the factor that brings the variance of a noisy y to input_dim."""
        variance = self.scale**2 * self.input_dim + self.noise_std**2
        return math.sqrt(self.input_dim / variance) if self.renormalize_noisy else 1.0

    def oracle(self, batch: Batch) -> Y:
        """Return E[y_i | the pairs before, x_i]: minimum-norm least squares on x (linear), on x^2 (quadratic) or on the
        pairs that are not outliers, which are recognisable (outlier); ridge at the noise's own penalty (noisy). For
        sparse_linear the lasso, the best that is cheap, which is no bound: trying all supports would know w after
        sparsity + 1 pairs, and where most coordinates are kept least squares is the better of the two."""
        x, y = separate(batch)
        match self.regression_type:
            case "linear":
                return ols(x, y)
            case "quadratic":
                return ols(x.square(), y)
            case "sparse_linear":
                return lasso(x, y)
            case "noisy":
                return ridge(x, y, penalty=(self.noise_std / self.scale) ** 2)
            case "outlier":
                outlying = (x == 1).all(-1)
                # A pair of zeros teaches nothing: it leaves the solution as it is.
                clean = x.masked_fill(rearrange(outlying, "b n -> b n 1"), 0.0)
                return ols(clean, y.masked_fill(outlying, 0.0)).masked_fill(outlying, 1.0)
            case other:
                assert_never(other)

    def references(self, batch: Batch) -> dict[str, Tensor]:
        x, y = separate(batch)
        return {name: predict(x, y) for name, predict in PREDICTORS.items()}


def ols(x: X, y: Y) -> Y:
    """Predict by least squares on the pairs before, of minimum norm while they are fewer than d."""
    return ridge(x, y, penalty=0.0)


def ridge(x: X, y: Y, *, penalty: float = 1.0) -> Y:
    """Return x_i.w for the w that minimises |y - x w|^2 + penalty |w|^2 over the pairs before i."""
    answers = []
    for rows, labels in zip(x.split(ROWS), y.split(ROWS), strict=True):
        gram, moment = _moments(rows, labels)
        gram.diagonal(dim1=-2, dim2=-1).add_(max(penalty, LEAST))
        w = torch.cholesky_solve(rearrange(moment, "b n d -> b n d 1"), torch.linalg.cholesky(gram))
        answers.append(_predict(rearrange(w, "b n d 1 -> b n d"), rows))
    return torch.cat(answers)


def lasso(x: X, y: Y, *, alpha: float = 0.01, steps: int = 200) -> Y:
    """Return x_i.w for the w that minimises |y - x w|^2 / (2 i) + alpha |w|_1 over the i pairs before: proximal
    gradient steps with momentum (FISTA) from 0, on all prefixes together."""
    given, pairs = x, x.shape[1]
    x, y = x.double(), y.double()
    earlier = torch.ones(pairs, pairs, device=x.device, dtype=x.dtype).tril(-1)
    # The Frobenius norm of x x^T bounds its largest eigenvalue; it is 0 for the empty prefix, where any step will do.
    inner = torch.einsum("bnd,bmd->bnm", x, x).square()
    squares = inner.cumsum(1).cumsum(2).diagonal(dim1=1, dim2=2)
    bound = rearrange(before(squares).sqrt().clamp(min=LEAST), "b n -> b n 1")
    shrink = alpha * rearrange(torch.arange(pairs, device=x.device), "n -> n 1") / bound
    w = ahead = torch.zeros_like(x)
    for k in range(steps):
        # One product of matrices per sequence, though half of it is masked: a Gram matrix per prefix is slower.
        residual = (torch.einsum("bpd,bnd->bpn", ahead, x) - rearrange(y, "b n -> b 1 n")) * earlier
        new = ahead - torch.einsum("bpn,bnd->bpd", residual, x) / bound
        new = new - new.clamp(-shrink, shrink)  # the soft threshold
        ahead = new + k / (k + 3) * (new - w)
        w = new
    return _predict(w, given)


def averaging(x: X, y: Y) -> Y:
    """Return x_i.w for w the mean of y x over the pairs before: least squares with the identity for Gram matrix."""
    count = torch.arange(x.shape[1], device=x.device).clamp(min=1).to(x)
    w = before((x * rearrange(y, "b n -> b n 1")).cumsum(1)) / rearrange(count, "n -> n 1")
    return _predict(w, x)


def knn3(x: X, y: Y) -> Y:
    """Return the mean y of the three nearest x before; of all while there are fewer, and 0 for the first."""
    pairs = x.shape[1]
    earlier = torch.ones(pairs, pairs, dtype=torch.bool, device=x.device).tril(-1)
    distance = torch.cdist(x, x).masked_fill(~earlier, torch.inf)
    near = distance.topk(min(3, pairs), dim=-1, largest=False)
    values = rearrange(y, "b n -> b 1 n").expand(-1, pairs, -1).gather(2, near.indices)
    real = near.values.isfinite()
    return (values * real).sum(-1) / real.sum(-1).clamp(min=1)


PREDICTORS: dict[str, Predictor] = {"ols": ols, "ridge": ridge, "lasso": lasso, "averaging": averaging, "knn3": knn3}


def _apply(w: Float[Tensor, "batch d"], x: X) -> Y:
    return torch.einsum("bd,bnd->bn", w, x)


def _predict(w: X, x: X) -> Y:
    """Return each pair's own w applied to its own x."""
    return torch.einsum("bnd,bnd->bn", w, x.to(w)).to(x)


def _moments(x: X, y: Y) -> tuple[Float[Tensor, "batch pairs d d"], X]:
    """Return the sums of x x^T and of y x over the pairs before each, in float64."""
    x, y = x.double(), y.double()
    gram = torch.einsum("bni,bnj->bnij", x, x).cumsum(1)
    return before(gram), before((x * rearrange(y, "b n -> b n 1")).cumsum(1))
