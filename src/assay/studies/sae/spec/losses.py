"""The spec's losses for one model, (batch, K) activations; assay.nn.infomax has the formulas.

loss, r = lse_loss(a)                         r = softmax(-a), and d loss / d a = r
losses = combined_loss(a, W, config)          losses["total"].backward()
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.convert import nearest
from assay.core.errors import UserError
from assay.nn import infomax

Codes = Float[Tensor, "batch K"]
Rows = Float[Tensor, "batch d_in"]
DEFAULTS = {"lambda_lse": 1.0, "lambda_var": 1.0, "lambda_tc": 1.0, "lambda_wr": 0.0, "variance_eps": 1e-6}


lse_loss, variance_loss = infomax.lse, infomax.variance
correlation_loss, weight_redundancy_loss = infomax.correlation, infomax.weight_redundancy


def combined_loss(a: Codes, W: Float[Tensor, "K d_in"], config: Mapping[str, float] | None = None) -> dict[str, Tensor]:
    """Return `total` to train on, and `lse`, `var`, `tc`, `wr` and `responsibilities` detached. A term of weight 0
    gives no gradient, however large it is."""
    given = {**DEFAULTS, **(config or {})}
    for key in given:
        if key not in DEFAULTS:
            raise UserError(
                f"combined_loss has no option '{key}'.{nearest(key, DEFAULTS)} It has: {', '.join(DEFAULTS)}."
            )
    lse, r = lse_loss(a)
    terms = {
        "lse": lse,
        "var": variance_loss(a, given["variance_eps"]),
        "tc": correlation_loss(a),
        "wr": weight_redundancy_loss(W),
    }
    used = [given[f"lambda_{name}"] * term for name, term in terms.items() if given[f"lambda_{name}"]]
    total = sum(used, start=torch.zeros((), dtype=a.dtype, device=a.device))
    return {"total": total, **{name: term.detach() for name, term in terms.items()}, "responsibilities": r.detach()}


def sae_loss(x: Rows, recon: Rows, a: Codes, l1_weight: float = 0.01) -> dict[str, Tensor]:
    """mean (recon - x)^2 + l1_weight mean |a|, both over all entries."""
    mse, l1 = (recon - x).square().mean(), a.abs().mean()
    return {"total": mse + l1_weight * l1, "mse": mse.detach(), "l1": l1.detach()}
