"""Multinomial logistic regression is fitted to a frozen code and scored on held-out rows.

    C sum_i loss(W z_i + b, y_i) + 1/2 |W|^2        z standardised on the training rows; b is not penalised

The objective of scikit-learn's LogisticRegression, minimised by L-BFGS in float64, on whatever device the code is, for
many codes of the same rows at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from assay.metrics.lbfgs import minimise
from assay.metrics.probes import standardiser

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Values of C, from the strongest penalty to the weakest, that a probe chooses from."""
EVALUATIONS, SPECS_EVALUATIONS = 250, 6250
"""Most evaluations of the objective for each penalty; typical codes of MNIST take 20 to 80 and 100."""


@dataclass(frozen=True)
class Probe:
    """Predicts logits (z - centre) gain W + b."""

    centre: Float[Tensor, " d"]
    gain: Float[Tensor, " d"]
    W: Float[Tensor, "d classes"]
    b: Float[Tensor, " classes"]
    C: float

    def accuracy(self, z: Float[Tensor, "n d"], y: Int[Tensor, " n"]) -> float:
        logits = (z.double() - self.centre) * self.gain @ self.W + self.b
        return float((logits.argmax(dim=1) == y).double().mean())


@dataclass(frozen=True)
class _Loss:
    """The objective over n of each model, so that the first step of L-BFGS fits the data's scale. Points are (W, b) by
    class, a row of weights each and the threshold last."""

    rows: Float[Tensor, "models width n"]
    """Standardised features, then a row of ones."""
    y: Int[Tensor, " n"]
    is_it: Float[Tensor, "classes n"]
    penalty: Float[Tensor, " width"]

    def __call__(
        self, x: Float[Tensor, "models size"]
    ) -> tuple[Float[Tensor, " models"], Float[Tensor, "models size"]]:
        n, W = len(self.y), x.unflatten(1, (len(self.is_it), -1))
        logits = W @ self.rows
        right = logits.gather(1, self.y.expand(len(x), 1, n))
        highest = logits.amax(dim=1, keepdim=True)
        p = (logits - highest).exp_()
        total = p.sum(dim=1, keepdim=True)
        loss = (total.log() + highest - right).mean(dim=(1, 2))
        error = p.div_(total).sub_(self.is_it)
        pull = self.penalty * W
        return loss + (pull * W).sum(dim=(1, 2)) / 2, (error @ self.rows.mT / n + pull).flatten(1)

    def only(self, places: Int[Tensor, " some"]) -> "_Loss":
        return replace(self, rows=self.rows[places])


@torch.no_grad()
def fit_paths(
    z: Float[Tensor, "models n d"],
    y: Int[Tensor, " n"],
    penalties: Sequence[float] = PENALTIES,
    *,
    floored: bool = True,
    evaluations: int = EVALUATIONS,
) -> list[list[Probe]]:
    """Fit for each model a probe per penalty, each started where the one before ended; all models at once. Without
    `floored`, units that hardly move are brought to unit variance as all others are: scikit-learn's StandardScaler."""
    centre, gain = standardiser(z, floored=floored)
    models, n, d = z.shape
    rows = centre.new_ones(models, d + 1, n)
    rows[:, :d] = (z - centre[:, None]).mul_(gain[:, None]).mT
    is_it = one_hot(y).to(rows).T.contiguous()
    free = torch.arange(d + 1, device=z.device) == d
    x = rows.new_zeros(models, len(is_it) * (d + 1))
    paths: list[list[Probe]] = [[] for _ in range(models)]
    for C in penalties:
        x = minimise(_Loss(rows, y, is_it, (~free).to(rows) / (C * n)), x, evaluations)
        for path, c, g, W in zip(paths, centre, gain, x.unflatten(1, (-1, d + 1)).mT, strict=True):
            path.append(Probe(c, g, W[:d], W[d], C))
    return paths


def fit_all_as_scikit_learn(z: Float[Tensor, "models n d"], y: Int[Tensor, " n"]) -> list[Probe]:
    """Fit what StandardScaler and LogisticRegression(C=1, max_iter=5000) give, for each model: the spec's probe."""
    return [probe for (probe,) in fit_paths(z, y, (1.0,), floored=False, evaluations=SPECS_EVALUATIONS)]


def fit_as_scikit_learn(z: Float[Tensor, "n d"], y: Int[Tensor, " n"]) -> Probe:
    """Fit the spec's probe of one model."""
    return fit_all_as_scikit_learn(z[None], y)[0]


def choose(probes: Sequence[Probe], z: Float[Tensor, "n d"], y: Int[Tensor, " n"]) -> Probe:
    """Return the probe that does best on these rows; among equals, that of the strongest penalty."""
    return max(probes, key=lambda probe: (probe.accuracy(z, y), -probe.C))
