"""Which operations around a recurrence run as one Triton kernel each, under `--backend triton`.

    heads        convolution, SiLU, unit length or rotary positions of q, k and v    nn/head_kernels.py
    reading      RMSNorm of every head's output and the gate                         nn/reading_kernels.py
    projection   q, k, v and the layer's small projections as one product            nn/attention.py

A part that is not in FUSED runs as written in torch.
"""

from assay.nn import scan

FUSED = {"heads", "reading", "projection"}


def fused(part: str) -> bool:
    return scan.backend == "triton" and part in FUSED
