"""The launches of the chunked recurrences share this: precision, the cut of value channels, a bank's models."""

import os
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd import Function

from assay.core.errors import UserError
from assay.nn.scan import Scanned, Start

BUSY = 128
"""Programs that keep a GPU busy."""
LARGEST_KEY, WIDEST_KEY = 128, 256
"""Channels of a key that a program can hold, and those of one that is read block by block."""
MOST_REGISTERS = 255
"""The most registers that a thread can have. Where those do not do, the compiler, left to choose, may give it 32 of
them, and each thread spills 14 kB."""


def products(q: Tensor) -> str:
    """Return how kernels multiply: what comes in bf16 as bf16, the rest as `single_products` says."""
    if q.dtype == torch.bfloat16:
        wait_for_products()
        return "rounded" if os.environ.get("TRITON_INTERPRET") == "1" else "bf16"
    return single_products(q)


def single_products(q: Tensor) -> str:
    """Return how Triton multiplies float32: three products of TF32, near float32, where the run asks for that."""
    wait_for_products()
    return "tf32x3" if q.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest" else "tf32"


def wait_for_products() -> None:
    """Let Triton compile products without Hopper's asynchronous instructions: where one product feeds another, Triton
    3.4 to 3.7 makes wrong gradients of those, and in some shapes an illegal access of memory (flash-linear-attention's
    issues 640 and 984). Triton reads the variable whenever it compiles, and `environment_kept` takes it back."""
    os.environ.setdefault("DISABLE_MMA_V3", "1")


def kept_in(dot: str) -> torch.dtype:
    """Return the dtype of states and of their gradients in memory: bf16 where products round them to that anyway."""
    return torch.bfloat16 if dot in ("bf16", "rounded") else torch.float32


def chunk_of(time: int, most: int = 64) -> int:
    """Return the tokens of a chunk."""
    return 16 if time <= 16 else most


def width_of(channels: int) -> int:
    """Return the width of a tile of so many channels: Triton multiplies nothing smaller than 16."""
    return max(16, triton.next_power_of_2(channels))


def keys_of(channels: int, most: int) -> int:
    """Return the key channels that a program has at a time: `most`, or half of it, where that divides them, else all.
    Tiles are addressed from their first channel on, so that no block may be cut short."""
    return next((block for block in (most, most // 2) if channels % block == 0), width_of(channels))


def warps_of(channels: int, most: int) -> int:
    """Return the warps of a program whose tiles have so many channels: twice as many beyond `most`."""
    return 8 if channels > most else 4


def check_keys(k: Tensor, most: int = LARGEST_KEY) -> None:
    """Raise UserError if programs cannot hold such keys."""
    if k.shape[-1] > most:
        raise UserError(
            f"--backend triton has keys of at most {most} channels, and these have {k.shape[-1]}: "
            "choose more heads, or leave it out."
        )


def ways(heads: int, values: int, block: int) -> int:
    """Return the value channels of a program that goes from chunk to chunk. They go their own ways there: few long
    sequences are cut finer."""
    while block > 16 and heads * triton.cdiv(values, block) < BUSY:
        block //= 2
    return block


class Folded(Function):
    """A function of sequences derives from this; a bank's models are more sequences."""

    @classmethod
    def vmap(cls, info: Any, dims: Sequence[int | None], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        models = info.batch_size

        def flat(x: Any, dim: int | None) -> Any:
            if not isinstance(x, Tensor):
                return x
            x = x.expand(models, *x.shape) if dim is None else x.movedim(dim, 0)
            return x.flatten(0, 1)

        found = cls.apply(*map(flat, inputs, dims))  # type: ignore[no-untyped-call]
        return tuple(x.unflatten(0, (models, -1)) for x in found), (0,) * len(found)


def remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...], count: int) -> None:
    """Keep for the gradients the first `count` inputs, and all outputs after the first two."""
    ctx.dot = inputs[-1]
    _, _, *kept = output
    ctx.mark_non_differentiable(*kept)
    ctx.set_materialize_grads(False)  # zeros for what is kept would be as large as that
    ctx.save_for_backward(*inputs[:count], *kept)


class KernelScan(Folded):
    """A recurrence by kernels derives from this: (q, k, v, two more, ..., S, products) -> (o, S after the last token,
    what is kept for the gradients)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        remember(ctx, inputs, output, 5)

    @classmethod
    def run(
        cls, q: Tensor, k: Tensor, v: Tensor, *others: Tensor | None, log_decay: Tensor, state: Start, scale: float
    ) -> Scanned:
        """Give every tensor its batch and heads (queries and keys may be shared by the heads), and run the kernels."""
        check_keys(k)
        q = q if scale == 1.0 else scale * q
        given = (q, k, v, *others, log_decay.float())
        tensors = (None if x is None else x.expand(*v.shape[:2], *x.shape[2:]) for x in given)
        with torch.autocast(v.device.type, enabled=False):
            o, last, *_ = cls.apply(*tensors, None if state is None else state.float(), products(q))  # type: ignore[no-untyped-call]
        return o, last
