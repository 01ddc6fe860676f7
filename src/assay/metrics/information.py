"""Two lower bounds that share one fitted Gaussian say how many bits a code holds about a target.

    q(g | z) = N(mu(z), Sigma)      mu: ridge on the fit part;  Sigma: its residuals, corrected for the fitting

InfoNCE (van den Oord et al. 2018) asks which of n codes made a target, and can never exceed log2 n; Barber & Agakov
(2003) compares q with the prior, which the generator knows, and has no such cap (Poole et al. 2019 relate the two).
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from assay.metrics.probes import RidgeFit, Split, ridge

# Added to Sigma for targets of unit variance. A code that determines its target holds infinitely many bits; with this
# floor it reads at most log2(e / FLOOR) / 2 = 17.3 bits per output, where float32 codes end anyway.
FLOOR = 1e-10


def nce_bits(split: Split, block: int = 1024) -> float:
    """Return InfoNCE on whole test blocks of n rows, or on one block of all rows if there are fewer than `block`.

        bits = mean_i log2( e^S_ii / mean_j e^S_ij ) <= log2 n,     S_ij = log q(g_i | z_j)

    Contrasting codes, not targets, needs no prior: the mean over j is the mixture that stands in for p(g).
    """
    fit, root = _gaussian(split)
    target, guess = _whiten(split.y_test.double(), root), _whiten(fit.predict(split.z_test), root)
    n = min(len(target), block)
    whole = len(target) // n * n
    blocks = zip(torch.split(target[:whole], n), torch.split(guess[:whole], n), strict=True)
    return sum(_identified(g, mu) for g, mu in blocks) / (whole // n)


def nce_cap(n_test: int, block: int = 1024) -> float:
    """Return the most that nce_bits can report, log2 n; a figure near it is the cap's, not the code's."""
    return math.log2(min(n_test, block))


def barber_agakov_bits(split: Split) -> float:
    """Return mean_i [ log2 q(g_i | z_i) - log2 p(g_i) ] on the test part; p = N(0, I), as targets are drawn."""
    fit, root = _gaussian(split)
    target = split.y_test.double()
    error = _whiten(target - fit.predict(split.z_test), root)
    log_ratio = (target.square() - error.square()).sum(dim=-1).mean() / 2 - root.diagonal().log().sum()
    return float(log_ratio) / math.log(2)


def _gaussian(split: Split) -> tuple[RidgeFit, Float[Tensor, "r r"]]:
    """Return the reader mu and the Cholesky root of Sigma."""
    fit = ridge(split)
    error = split.y_fit.double() - fit.predict(split.z_fit)
    # The same correction as in GCV: in-sample residuals are short by (1 - df/n)^2 of what new data will show.
    shortfall = max(1 - fit.degrees / len(error), 1e-8) ** 2
    covariance = error.mT @ error / len(error) / shortfall
    floor = FLOOR * torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    return fit, torch.linalg.cholesky(covariance + floor)


def _whiten(rows: Float[Tensor, "n r"], root: Float[Tensor, "r r"]) -> Float[Tensor, "n r"]:
    return torch.linalg.solve_triangular(root, rows.mT, upper=False).mT


def _identified(target: Float[Tensor, "n r"], guess: Float[Tensor, "n r"]) -> float:
    """Return the bits of one block; |g_i|^2 is left out of S_ij because it cancels within a row."""
    scores = target @ guess.mT - guess.square().sum(dim=-1) / 2
    gain = scores.diagonal() - scores.logsumexp(dim=1)
    return float(gain.mean()) / math.log(2) + math.log2(len(target))
