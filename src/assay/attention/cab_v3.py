"""CAB V3 ("pure FRC") chooses blocks of keys by curvature alone, in a causal form: see curvature.py for the formula.

F of query block 4:   0: .7   1: .2   2: .9   3: .4   4: its own        3 blocks: 4, 2, 0

Differs from the spec: nothing reads the future (rows say `causal`). A block is chosen for by the longest query of the
block before, not its own; affinities are scaled by the rows so far, not by the whole matrix; detours go through the
blocks between and are divided by the blocks in sight, not by all. A block's own keys are always read, as one of the
blocks that the budget allows of those in sight; the code behind the spec adds them to a budget counted from all blocks.
"""

from dataclasses import dataclass

from assay.attention import attention
from assay.attention.curvature import CurvatureSelect


@attention.register("cab_v3")
@dataclass(frozen=True, kw_only=True)
class CabV3(CurvatureSelect):
    """Chooses blocks of keys by curvature."""
