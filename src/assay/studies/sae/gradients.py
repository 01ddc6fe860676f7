"""Measures the gradient of the log-sum-exp loss against the responsibility, at the energies and past the activation."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.nn.random import initialised_from, stream
from assay.studies.sae.spec.losses import lse_loss
from assay.studies.sae.spec.model import Encoder


def measured(
    options: Mapping[str, Any], seed: int, device: torch.device
) -> tuple[dict[str, float], dict[str, Float[Tensor, " points"]]]:
    """Compare gradients of the loss with responsibilities, for an untrained encoder on Gaussian rows."""
    with initialised_from(seed, "init"):
        encoder = Encoder(options["input_dim"], options["hidden_dim"], options["activation"]).double().to(device)
    x = torch.randn(options["batch_size"], options["input_dim"], generator=stream(seed, "data"), dtype=torch.float64)
    a, z = encoder(x.to(device))
    loss, r = lse_loss(a)
    to_a, to_z = torch.autograd.grad(loss, [a, z])
    single = a.detach().float().requires_grad_(True)
    loss32, r32 = lse_loss(single)
    (to_single,) = torch.autograd.grad(loss32, single)
    a, r, r32 = a.detach(), r.detach(), r32.detach()
    metrics = {
        "correlation_a": _correlation(to_a, r),
        "largest_error_a": float((to_a - r).abs().max()),
        "correlation_z": _correlation(to_z, r),
        "largest_error_z": float((to_z - r).abs().max()),
        "largest_error_float32": float((to_single - r32).abs().max()),
        "responsibility_off": float((r * (a == 0)).sum() / r.sum()),
    }
    points = {"r": r, "a": to_a, "z": to_z}
    return metrics, {name: value.detach().flatten().cpu().contiguous() for name, value in points.items()}


def _correlation(a: Tensor, b: Tensor) -> float:
    return float(np.corrcoef(a.detach().flatten().cpu().numpy(), b.detach().flatten().cpu().numpy())[0, 1])
