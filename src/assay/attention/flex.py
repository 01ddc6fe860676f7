"""Attention on CUDA skips the keys that are not attended to: FlexAttention, with masks that are never written out.

A block-shaped method (cab_v3, cab_v4) gives lists of the blocks of keys that each block of queries reads, and nothing
else is read: by a kernel made for it (block_kernels.py), or by FlexAttention where that does not fit. An eviction
history is one number per key, its last query, from which the mask follows inside the kernel, and from its extremes over
a block of keys, whether that block is read whole or not at all:

    key j is attended to by query i   <=>   j <= i <= last_j

FlexAttention compiles for CUDA alone; elsewhere masks go to scaled_dot_product_attention (lanes.py).
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from einops import reduce, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from assay.attention.layer import Blocks, Layer
from assay.core.on_use import Later
from assay.nn.whole import has_kernels

block_kernels: Any = Later("assay.attention.block_kernels")  # Triton, which is on CUDA alone
curvature_kernels: Any = Later("assay.attention.curvature_kernels")
BLOCK = 128
"""Queries and keys per block: the size that FlexAttention's CUDA kernels are made for."""


def usable(layer: Layer) -> bool:
    """Return whether FlexAttention applies: on CUDA, the model itself hides nothing of the past and leaves scores as
    they are, sequences are longer than a block, and heads are as wide as tensor cores need."""
    fits = layer.time > BLOCK and layer.q.shape[-1] >= 16
    return layer.q.is_cuda and layer.mask is None and layer.plain and fits


SHAPES = 64
"""Sequence shapes that one process may compile attention for."""


@cache
def compiled() -> Callable[..., Any]:
    """Return FlexAttention compiled to one kernel per shape, cached for the process."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def attention(layer: Layer, mask: Any) -> Float[Tensor, "rows heads time e"]:
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v = (x.contiguous() for x in (layer.q, layer.k, layer.v))
    options = {"block_mask": mask, "scale": layer.scale, "enable_gqa": layer.group > 1}
    if not q.is_cuda:  # uncompiled it is slow, but runs on every device
        return flex_attention(q, k, v, **options)
    # One program per shape; beyond dynamo's limit of 8 it would run uncompiled, with every score in memory.
    with torch._dynamo.config.patch(recompile_limit=SHAPES):
        return compiled()(q, k, v, **options)


def takes_blocks(layer: Layer, size: int) -> bool:
    """Return whether blocks of this size can be read from lists."""
    return usable(layer) and (size % BLOCK == 0 or _has_kernel(layer, size))


def blocks_attention(layer: Layer, chosen: Blocks, *, size: int) -> Float[Tensor, "rows heads time e"]:
    """Compute attention to the chosen blocks of keys."""
    if _has_kernel(layer, size):
        return block_kernels.attention(layer, *listed(chosen & _earlier(chosen)), size=size)
    return attention(layer, block_mask(chosen, size=size, time=layer.time))


def block_weights(layer: Layer, size: int, queries: int = 0) -> Float[Tensor, "rows heads block block"] | None:
    """Return the highest weight of any query of a block, or any of its last few, for any key of another; None without
    a kernel for it."""
    if not (usable(layer) and _has_kernel(layer, size) and block_kernels.weighs(size, queries)):
        return None
    return block_kernels.weights(layer, size=size, queries=queries)


def block_longest(x: Float[Tensor, "rows h time d"], layer: Layer, size: int) -> Float[Tensor, "rows h block d"] | None:
    """Return the longest vector of each block of a layer's queries or keys; None without a kernel for it."""
    if not (usable(layer) and _has_kernel(layer, size)):
        return None
    return block_kernels.longest(x, size=size)


def chooses(layer: Layer, size: int) -> bool:
    """Return whether the blocks of a layer are chosen by kernels."""
    return usable(layer) and _has_kernel(layer, size) and layer.time <= size * curvature_kernels.MOST


def _has_kernel(layer: Layer, size: int) -> bool:
    if not _reads_by_copy_engine(layer.q.device):
        return False
    return block_kernels.fits(layer, size)


@cache
def _reads_by_copy_engine(device: torch.device) -> bool:
    """Return whether there is Hopper's copy engine, which the kernels use through Triton 3.4. Cached per device."""
    known = has_kernels(device) and find_spec("triton.tools.tensor_descriptor") is not None
    return known and torch.cuda.get_device_capability(device) >= (9, 0)


def block_mask(chosen: Blocks, *, size: int, time: int) -> Any:
    """Return the mask of causal attention to the chosen blocks of keys: a block's own is masked inside, earlier ones
    are read whole."""
    own = torch.eye(chosen.shape[-1], dtype=torch.bool, device=chosen.device).expand_as(chosen)
    inside = lambda b, h, query, key: query >= key  # noqa: E731 - see below
    return _mask(own, chosen & _earlier(chosen), inside, size=size, time=time)


def _earlier(chosen: Blocks) -> Bool[Tensor, "block block"]:
    return torch.ones_like(chosen[0, 0]).tril(-1)


def lifetime_mask(last: Int[Tensor, "rows kv_heads key"], *, group: int) -> Any:
    """Return the mask of the keys that an eviction history has kept."""
    per_head = repeat(last, "r h k -> r (h g) k", g=group).contiguous()

    time = last.shape[-1]
    filled = pad(per_head, (0, -time % BLOCK), value=-1)
    latest, earliest = (reduce(filled, "r h (m s) -> r h 1 m", kind, s=BLOCK) for kind in ("max", "min"))
    first = torch.arange(0, filled.shape[-1], BLOCK, device=last.device)[:, None]
    before = first > first.mT
    some = (latest >= first) & (first >= first.mT)
    whole = before & (earliest >= first + BLOCK - 1)
    # A lambda, since the compiler rejects functions that tests have wrapped in checks of shapes.
    kept = lambda b, h, query, key: (query >= key) & (query <= per_head[b, h, key])  # noqa: E731
    return _mask(some & ~whole, whole, kept, size=BLOCK, time=time)


def _mask(partial: Blocks, whole: Blocks, inside: Callable[..., Tensor], *, size: int, time: int) -> Any:
    from torch.nn.attention.flex_attention import BlockMask

    lists = (*listed(partial), *listed(whole))
    return BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=size, mask_mod=inside, seq_lengths=(time, time))


def listed(chosen: Blocks) -> tuple[Int[Tensor, "rows heads block"], Int[Tensor, "rows heads block block"]]:
    """Return how many blocks each row has, and their indices in order, before those not chosen."""
    order = chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), order.to(torch.int32).contiguous()
