"""Multinomial logistic regression on a frozen code: what a linear reader makes of it, on rows it was not fitted to.

    C sum_i loss(W z_i + b, y_i) + 1/2 |W|^2        z standardised on the training rows; b is not penalised

The objective of scikit-learn's LogisticRegression, minimised by L-BFGS in float64, on whatever device the code is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from assay.metrics.probes import standardiser

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""C, from the strongest penalty to the weakest: the choice a probe has."""
STEPS = 200


@dataclass(frozen=True)
class Probe:
    """Logits (z - centre) gain W + b."""

    centre: Float[Tensor, " d"]
    gain: Float[Tensor, " d"]
    W: Float[Tensor, "d classes"]
    b: Float[Tensor, " classes"]
    C: float

    def accuracy(self, z: Float[Tensor, "n d"], y: Int[Tensor, " n"]) -> float:
        logits = (z.double() - self.centre) * self.gain @ self.W + self.b
        return float((logits.argmax(dim=1) == y).double().mean())


def fit(
    z: Float[Tensor, "n d"],
    y: Int[Tensor, " n"],
    C: float = 1.0,
    *,
    start: Probe | None = None,
    standardise: bool = True,
    floored: bool = True,
    steps: int = STEPS,
) -> Probe:
    """The probe of one penalty; `start` is where to begin, not what to end with. Without `floored`, units that hardly
    move are brought to unit variance as all others are: scikit-learn's StandardScaler."""
    centre, gain = standardiser(z, floored=floored)
    if not standardise:
        centre, gain = torch.zeros_like(centre), torch.ones_like(gain)
    rows, classes = (z.double() - centre) * gain, int(y.max()) + 1
    W = (start.W if start else rows.new_zeros(rows.shape[1], classes)).clone().requires_grad_(True)
    b = (start.b if start else rows.new_zeros(classes)).clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS(
        [W, b], max_iter=steps, history_size=10, tolerance_grad=1e-5, tolerance_change=1e-9,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def objective() -> Tensor:
        # Over n: L-BFGS's first step is then of a size with the data.
        optimizer.zero_grad()
        loss = cross_entropy(rows @ W + b, y) + W.square().sum() / (2 * C * len(y))
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(objective)
    return Probe(centre, gain, W.detach(), b.detach(), C)


def fit_as_scikit_learn(z: Float[Tensor, "n d"], y: Int[Tensor, " n"], *, start: Probe | None = None) -> Probe:
    """What StandardScaler and LogisticRegression(C=1, max_iter=5000) come to: the spec's probe."""
    return fit(z, y, 1.0, start=start, floored=False, steps=5000)


def fit_path(z: Float[Tensor, "n d"], y: Int[Tensor, " n"], penalties: Sequence[float] = PENALTIES) -> list[Probe]:
    """A probe for each penalty, each begun where the one before ended."""
    probes: list[Probe] = []
    for C in penalties:
        probes.append(fit(z, y, C, start=probes[-1] if probes else None))
    return probes


def choose(probes: Sequence[Probe], z: Float[Tensor, "n d"], y: Int[Tensor, " n"]) -> Probe:
    """The one that does best on these rows; of equals, that of the strongest penalty."""
    return max(probes, key=lambda probe: (probe.accuracy(z, y), -probe.C))
