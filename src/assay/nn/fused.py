"""These operations around a recurrence run as one Triton kernel each, under `--backend triton`.

    heads       convolution, SiLU, unit length or rotary positions of q, k and v    nn/head_kernels.py
    gated_norm  RMSNorm of every head's output and the gate                         nn/gated_norm_kernels.py
    mamba2      all around Mamba-2's recurrence                                     nn/mamba2_kernels.py
    rwkv7       all around RWKV-7's recurrence                                      nn/rwkv7_kernels.py
    mlstm       all around the mLSTM's recurrence                                   nn/mlstm_kernels.py
    based       Based's attention, up to 4096 tokens                                nn/based_kernels.py
    window      attention to the last tokens, heads of up to 64 channels            nn/window_kernels.py
    sum         linear attention, up to 128 features                                nn/outer.py
    features    queries and keys of linear attention, as products of projections    nn/feature_kernels.py
    gates       decays and strengths of writing                                     nn/gate_kernels.py
    units       the gate of a gated linear unit                                     nn/gated_unit_kernels.py
    projection  q, k, v and the layer's small projections as one product            nn/joint.py

A part that is not in FUSED runs as written in torch.
"""

from typing import Any, NamedTuple

from assay.core.on_use import Later
from assay.nn import scan

based_kernels: Any = Later("assay.nn.based_kernels")  # Triton, which is on CUDA alone
feature_kernels: Any = Later("assay.nn.feature_kernels")
gate_kernels: Any = Later("assay.nn.gate_kernels")
gated_norm_kernels: Any = Later("assay.nn.gated_norm_kernels")
gated_unit_kernels: Any = Later("assay.nn.gated_unit_kernels")
head_kernels: Any = Later("assay.nn.head_kernels")
mamba2_kernels: Any = Later("assay.nn.mamba2_kernels")
mlstm_kernels: Any = Later("assay.nn.mlstm_kernels")
rotary_kernels: Any = Later("assay.nn.rotary_kernels")
rwkv7_kernels: Any = Later("assay.nn.rwkv7_kernels")
scan_kernels: Any = Later("assay.nn.outer")
window_kernels: Any = Later("assay.nn.window_kernels")

FUSED = {
    "based",
    "features",
    "gated_norm",
    "gates",
    "heads",
    "mamba2",
    "mlstm",
    "projection",
    "rwkv7",
    "sum",
    "units",
    "window",
}
LARGEST = 128
"""Features of a head's keys that a program holds at most."""
WINDOWED = 64
"""Channels of a head in a window's kernels at most: 128 in float32 would need more shared memory than an H200 has."""


def fused(part: str) -> bool:
    """Return whether that runs as one kernel."""
    return scan.backend == "triton" and part in FUSED


class Part(NamedTuple):
    """Says where some heads of the projection stand, from channel `start` on, and what is done to them. A token of
    several `steps` is as many rows of its heads' output: heads of one step after another stand in the channels. With
    `last` they are the last step's alone, and the other rows are zeros."""

    start: int
    heads: int
    d: int
    unit: bool = False
    rotary: bool = False
    scale: float = 1.0
    steps: int = 1
    last: bool = False

    @property
    def heads_out(self) -> int:
        return self.heads if self.last else self.heads // self.steps


class Plan(NamedTuple):
    """Lists all heads of a projection, and says whether a SiLU comes first, and how many channels at its end only fill
    up its rows."""

    parts: tuple[Part, ...]
    swish: bool
    filling: int = 0

    @property
    def channels(self) -> int:
        return sum(part.heads * part.d for part in self.parts)
