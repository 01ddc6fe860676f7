"""The singular values of J = d code / d input say how many directions of its input a code follows.

Scale-free: entropy, gini, erank, participation. In the units of the code: sv_min, sv_median. In bits at the
generator's noise: logdet_bits, the capacity of the linearised channel (a gain of the code is part of that channel).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from assay.core.errors import UserError


def jacobians(
    module: nn.Module, x: Float[Tensor, "points time d_in"], chunk: int = 16
) -> Float[Tensor, "points d_code inputs"]:
    """Return J of each sequence, with inputs = time * d_in; the module is in evaluation mode meanwhile.

    One vmap over `chunk` points and all code units. An operator without a batching rule falls back to d_code reverse
    passes over the same chunk: the same matrices, for sequences do not mix.
    """
    with _evaluating(module):
        try:
            found = _by_vmap(module, x, chunk)
        except (RuntimeError, NotImplementedError):
            # A real error of the module is not hidden: it is raised again from here.
            found = torch.cat([_by_rows(module, part) for part in torch.split(x.detach(), chunk)])
    return rearrange(found, "p c t d -> p c (t d)")


def spectrum(jacobians: Float[Tensor, "points d_code inputs"], noise: float) -> dict[str, float]:
    """Return means over points, from singular values s in float64:

        p = (s + 1e-12) / sum        entropy = -sum p ln p (nats)        gini = 1 - sum p^2 (Gini-Simpson)
        sv_min, sv_median            the lower median, as torch has it
        erank = exp(-sum q ln q), q = s / sum (Roy & Vetterli 2007)      participation = (sum s^2)^2 / sum s^4
        logdet_bits = 1/2 sum log2(1 + s^2 / noise^2)                    absent at noise 0, where it is infinite

    Three equal singular values and a zero: erank 3, participation 3. A constant code has none of anything: all are 0.
    """
    s = torch.linalg.svdvals(jacobians.double())
    p = (s + 1e-12) / (s + 1e-12).sum(dim=-1, keepdim=True)
    # Relative to the largest, so that no gain of the code can underflow the fourth powers.
    unit = s / s[:, :1].clamp_min(torch.finfo(s.dtype).tiny)
    q, square = unit / unit.sum(dim=-1, keepdim=True).clamp_min(1), unit.square()
    alive = s[:, 0] > 0
    figures = {
        "entropy": alive * -(p * p.log()).sum(dim=-1),
        "gini": alive * (1 - p.square().sum(dim=-1)),
        "sv_min": s[:, -1],
        "sv_median": s.median(dim=-1).values,
        "erank": alive * (-torch.xlogy(q, q).sum(dim=-1)).exp(),
        "participation": square.sum(dim=-1).square() / square.square().sum(dim=-1).clamp_min(1),
    }
    if noise > 0:
        figures["logdet_bits"] = torch.log1p((s / noise).square()).sum(dim=-1) / (2 * torch.log(s.new_tensor(2.0)))
    return {name: float(values.mean()) for name, values in figures.items()}


def _by_vmap(
    module: nn.Module, x: Float[Tensor, "points time d_in"], chunk: int
) -> Float[Tensor, "points d_code time d_in"]:
    state = {name: tensor.detach() for name, tensor in (*module.named_parameters(), *module.named_buffers())}

    def code(sequence: Float[Tensor, "time d_in"]) -> Float[Tensor, " d_code"]:
        return _checked(functional_call(module, state, (rearrange(sequence, "t d -> 1 t d"),)))[0]

    return vmap(jacrev(code), chunk_size=chunk)(x.detach())


def _by_rows(module: nn.Module, x: Float[Tensor, "points time d_in"]) -> Float[Tensor, "points d_code time d_in"]:
    with torch.enable_grad():
        x = x.clone().requires_grad_()
        code = _checked(module(x))
        if not code.requires_grad:
            return x.new_zeros(len(x), code.shape[1], *x.shape[1:])
        units = [unit.sum() for unit in code.unbind(dim=1)]
        rows = [torch.autograd.grad(unit, x, retain_graph=True, materialize_grads=True)[0] for unit in units]
    return torch.stack(rows, dim=1)


def _checked(code: Tensor) -> Float[Tensor, "points d_code"]:
    if code.ndim == 2:
        return code
    raise UserError(
        f"the encoder returned a tensor of shape {tuple(code.shape)}; a code is (batch, d_code). "
        "Pool over time (last, mean or flatten) before returning it"
    )


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode and freeze parameters inside the block."""
    modes = [(part, part.training) for part in module.modules()]
    flags = [(weight, weight.requires_grad) for weight in module.parameters()]
    try:
        module.eval().requires_grad_(False)
        # cuDNN's recurrent kernels have no backward pass in evaluation mode, and fused attention has no batching rule
        # (vmap would loop over it); PyTorch's plain forms have both.
        with torch.backends.cudnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        for part, mode in modes:
            part.training = mode
        for weight, flag in flags:
            weight.requires_grad_(flag)
