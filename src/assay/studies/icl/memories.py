"""What a memory of d_k x d_v numbers holds without any training: ceilings and floors beside the trained mixers.

    hebbian          S = sum_i k_i v_i^T;                 answer: the value whose vector is nearest in angle to S^T k
    least squares    S = argmin sum_i |S^T k_i - v_i|^2   (of minimum norm), exact for up to d_k pairs

Keys are random directions, drawn anew for every sequence, and values random normal vectors. Heads have keys and values
of their own, and an answer counts the evidence of all. A trained mixer of the same size that falls short of the first
has not learned to use its state; to pass the second, it has to write better keys than random ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from assay.core.errors import UserError
from assay.core.seeds import derive
from assay.mixers import mixers

Rule = Literal["hebbian", "least squares"]
QUESTIONS = 1024
"""Questions asked per size: the standard error of an accuracy is at most .016."""


@dataclass(frozen=True, order=True)
class MemoryShape:
    """The matrices that a mixer writes its values to: one of d_k x d_v per head."""

    heads: int
    d_k: int
    d_v: int

    def __str__(self) -> str:
        return f"{self.heads} x {self.d_k} x {self.d_v}" if self.heads > 1 else f"{self.d_k} x {self.d_v}"

    def scalars(self, rule: Rule) -> int:
        """Return what the memory carries: least squares needs the sums of k k^T beside those of k v^T."""
        return self.heads * self.d_k * (self.d_v + (self.d_k if rule == "least squares" else 0))


def memory_shape(mixer: Mapping[str, Any], d_model: int) -> MemoryShape | None:
    """Return the matrices of a mixer by its spec; None where it has none, or is not installed as it was recorded."""
    try:
        found = mixers.load(mixer).matrices(d_model)
    except UserError:
        return None
    return MemoryShape(*found) if found else None


@lru_cache(maxsize=256)
def memory_curve(rule: Rule, shape: MemoryShape, sizes: Sequence[int], values: int) -> tuple[float, ...]:
    """Return the accuracy at each size, where `values` values could be the answer."""
    return tuple(_accuracy(rule, shape, size, values) for size in sizes)


def _accuracy(rule: Rule, shape: MemoryShape, pairs: int, values: int) -> float:
    import numpy as np

    rng = np.random.default_rng(derive(0, "memory", rule, str(shape), pairs, values))
    table = rng.standard_normal((shape.heads, values, shape.d_v), dtype=np.float32)
    lengths = np.sqrt((table**2).sum((0, 2)))
    reads, asked = [], []
    for _ in range(max(1, QUESTIONS // pairs)):
        keys = rng.standard_normal((shape.heads, pairs, shape.d_k), dtype=np.float32)
        keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
        answers = rng.choice(values, size=pairs, replace=False)
        written = np.linalg.pinv(keys) if rule == "least squares" else keys.swapaxes(1, 2)
        reads.append(keys @ (written @ table[:, answers]))
        asked.append(answers)
    read = np.concatenate(reads, axis=1)  # all sequences meet the table in one product
    evidence = sum(r @ v.T for r, v in zip(read, table, strict=True)) / lengths
    return float((evidence.argmax(-1) == np.concatenate(asked)).mean())
