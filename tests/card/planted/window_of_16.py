"""Attention with a short convolution that sees the last 16 tokens alone: the field's sliding_window:conv=4, renamed.

o_t = sum_{t - 16 < s <= t} softmax_s(q_t . k_s / sqrt(d)) v_s
"""

from dataclasses import dataclass

from assay.mixers import mixers
from assay.mixers.sliding_window import SlidingWindow


@mixers.register("window_of_16")
@dataclass(frozen=True, kw_only=True)
class WindowOf16(SlidingWindow):
    """Softmax attention to the last 16 tokens."""

    conv: int = 4
    window: int = 16
