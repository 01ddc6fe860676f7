"""The Triton kernels of flash-linear-attention (Yang and Zhang 2024) compute the recurrences of nn/scan.py on CUDA.

    recurrence               kernel of fla.ops         mixers it serves
    outer, decay per channel chunk_gla                 gated_linear_attn
    outer, decay per head    chunk_simple_gla          retention, mamba2, mlstm, mesa
    delta                    chunk_delta_rule          delta_net
    delta, decay per head    chunk_gated_delta_rule    gated_delta_net, delta_product

Chosen by `--backend fla`. Every other mixer (kda, rwkv7, based, attention, gru, ...) runs as always, and so does
`step`, which takes one token at a time. What a kernel cannot do is an error, never another kernel.

Queries, keys and values go in as autocast has them, bf16 in training; decays, write strengths and states in float32.
Without autocast they are float32, whose products Triton takes in TF32 whatever the matmul precision of the run. A
decay is the difference of two cumulative sums: one near 1 after one near 0 loses digits which nn/scan.py keeps.
"""

from collections.abc import Callable
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from einops import rearrange
from torch import Tensor
from torch.nn.functional import pad
from torch.torch_version import TorchVersion

from assay.core.errors import UserError
from assay.nn import scan
from assay.nn.scan import Decay, Keys, PerHead, Scanned, Start, Values

SMALLEST_HEAD = 16
"""Triton multiplies no smaller matrices."""
LARGEST_DELTA_KEY = 256
"""fla/ops/common/chunk_delta_h.py holds a state's keys in four blocks of 64."""
INSTEAD = "or leave out --backend fla."


def check(device: str) -> None:
    """Raise UserError if the kernels cannot run, before anything is computed."""
    if device != "cuda":
        raise UserError("--backend fla runs on CUDA alone: leave it out, or use --device cuda.")
    if find_spec("fla") is None:
        raise UserError(f"--backend fla needs flash-linear-attention: pip install 'assay-bench[fla]', {INSTEAD}")


def outer_scan(q: Keys, k: Keys, v: Values, log_decay: Decay, *, state: Start = None, scale: float = 1.0) -> Scanned:
    """Return what `scan.outer_loop` gives, to TF32 or bf16 precision."""
    if log_decay.ndim == 4:
        return _run("gla", q, k, v, state, scale, g=log_decay)
    _refuse_wrong_gradients("chunk_simple_gla", q, k, v, log_decay)
    return _run("simple_gla", q, k, v, state, scale, g=log_decay)


def delta_scan(
    q: Keys, k: Keys, v: Values, beta: PerHead, log_decay: Decay | None = None, *, state: Start = None,
    scale: float = 1.0,
) -> Scanned:  # fmt: skip
    """Return what `scan.delta_loop` gives, to TF32 or bf16 precision; with a decay per channel as always."""
    if log_decay is not None and log_decay.ndim == 4:
        return scan.general_scan(*scan.as_general(q, k, v, beta, log_decay), state=state, scale=scale)
    if k.shape[-1] > LARGEST_DELTA_KEY:
        raise UserError(
            f"--backend fla: its delta rule takes keys of at most {LARGEST_DELTA_KEY} channels, here {k.shape[-1]}. "
            f"Use more heads, {INSTEAD}"
        )
    if log_decay is not None:
        _refuse_wrong_gradients("chunk_gated_delta_rule", q, k, v, beta, log_decay)
        return _run("gated_delta_rule", q, k, v, state, scale, g=log_decay, beta=beta)
    if _precision(q, k, v) == torch.float32:
        raise UserError(f"--backend fla: chunk_delta_rule takes no float32. Run it under bf16 autocast, {INSTEAD}")
    return _run("delta_rule", q, k, v, state, scale, beta=beta)


def _run(op: str, q: Keys, k: Keys, v: Values, state: Start, scale: float, **gates: Decay) -> Scanned:
    """Call a kernel in its layout, (batch, time, heads, ...), with our scale: its default is attention's."""
    dtype, kernel, width = _precision(q, k, v), f"chunk_{op}", v.shape[-1]
    if width % 2:  # the kernels take an even number of channels, and one of zeros changes no other
        v, state = pad(v, (0, 1)), None if state is None else pad(state, (0, 1))
    d_key, d_value = k.shape[-1], v.shape[-1]
    # Odd sizes in half precision read outside shared memory: chunk_bwd_dv of fla 0.6 asserts that there are none.
    if min(d_key, d_value) < SMALLEST_HEAD or d_key % 2 or d_value % 2:
        raise UserError(
            f"--backend fla: {kernel} takes heads of {SMALLEST_HEAD} channels or more, an even number of them; here "
            f"keys have {d_key} and values {d_value}. Use fewer or wider heads, {INSTEAD}"
        )
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise UserError(f"--backend fla: {kernel} takes no {dtype}. Use float32 or bf16, {INSTEAD}")
    chunked: Callable[..., Any] = getattr(import_module(f"fla.ops.{op}"), kernel)
    q, k = (x.expand(-1, v.shape[1], -1, -1) for x in (q, k))  # mamba2's heads share them
    o, end = chunked(
        *(rearrange(x, "b h t d -> b t h d").to(dtype) for x in (q, k, v)),
        **{name: rearrange(x, "b h t ... -> b t h ...").float() for name, x in gates.items()},
        scale=scale,
        initial_state=None if state is None else state.float(),
        output_final_state=True,
    )
    return rearrange(o, "b t h d -> b h t d").float()[..., :width], end[..., :width]


def _precision(q: Keys, k: Keys, v: Values) -> torch.dtype:
    """Return one dtype for all three, as the kernels require: mixers normalise some in float32 under autocast."""
    if torch.is_autocast_enabled(v.device.type):
        return torch.get_autocast_dtype(v.device.type)
    return reduce(torch.promote_types, (q.dtype, k.dtype, v.dtype))


def _refuse_wrong_gradients(kernel: str, *tensors: Tensor) -> None:
    """Triton 3.4 to 3.7.0 miscompiles the backward pass with a decay per head on Hopper (fla issue 640): fla raises
    there as well, but after the forward pass."""
    if not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        return
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        return
    version = TorchVersion(import_module("triton").__version__)
    if version >= "3.4.0" and version < "3.7.1":
        raise UserError(
            f"--backend fla: Triton {version} computes wrong gradients of {kernel} on Hopper GPUs. "
            f"Use a torch that brings Triton 3.7.1 or later, {INSTEAD}"
        )
