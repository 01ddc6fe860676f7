"""Where the Triton kernels of nn/ can be tested: a GPU, or their interpreter on a CPU (TRITON_INTERPRET=1)."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from assay.nn.whole import has_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
needs_triton = pytest.mark.skipif(
    not (INTERPRETED or has_kernels(torch.device(DEVICE))), reason="needs CUDA and Triton, or Triton's interpreter"
)


def round_to_bf16() -> None:
    """Let the interpreter round float32 to the nearest bf16, as a GPU does: by itself it cuts the digits off."""
    from triton.runtime import interpreter

    cut = interpreter._convert_float

    def convert(x: Any, source: Any, target: Any, mode: Any) -> Any:
        if (str(source), str(target)) != ("fp32", "bf16"):
            return cut(x, source, target, mode)
        bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

    interpreter._convert_float = convert


def round_to_tf32() -> None:
    """Let the interpreter round what a product of TF32 takes, to nearest: by itself it multiplies float32."""
    from triton.runtime import interpreter

    whole = interpreter.InterpreterBuilder.create_dot

    def rounded(x: Any) -> Any:
        bits = np.ascontiguousarray(x.data, dtype=np.float32).view(np.uint32).astype(np.uint64)
        kept = ((bits + 0x0FFF + ((bits >> 13) & 1)) >> 13 << 13).astype(np.uint32).view(np.float32)
        return interpreter.TensorHandle(np.where(np.isfinite(x.data), kept, x.data), x.dtype)

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, *others: Any) -> Any:
        if str(precision).rpartition(".")[2] == "TF32":
            a, b = rounded(a), rounded(b)
        return whole(self, a, b, d, precision, *others)

    interpreter.InterpreterBuilder.create_dot = create_dot


if INTERPRETED:
    round_to_bf16()
    round_to_tf32()


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator(DEVICE).manual_seed(seed), device=DEVICE)


def worst(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """Return the largest norm of an error over the norm of what is wanted."""
    return max(((a.double() - b).norm() / (b.norm() + 1e-12)).item() for a, b in zip(found, wanted, strict=True))


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    """Products are near float32 at first, and afterwards as they were; for modules that import this."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)
