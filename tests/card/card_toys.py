"""A tier that takes seconds, and a mixer in a file: a GRU under another name."""

from assay.card.question import Question, Tier

TINY = {"model_dim": 16, "num_layers": 1, "state_mixer": "none", "positions": "auto", "tied": True}
TOY = Tier(
    "smoke", "toy", (0, 1),
    (Question("recall", "recalls", "mqar:vocab_size=32:input_seq_len=8:num_kv_pairs=2:power_a=1",
              model=TINY, steps=12, batch=16, eval_size=50, rates=(1e-7, 1e-2, 30.0), margin=0.5, resolution=0.07),),
)  # fmt: skip
TRIED = (1e-3, 1e-2, 1e-1)
"""The rates behind an answer that is given: those used lie between."""
TWIN = """
from dataclasses import dataclass
from assay.mixers import mixers
from assay.mixers.gru import GRU

@mixers.register("twin")
@dataclass(frozen=True, kw_only=True)
class Twin(GRU):
    aliases = ()
"""
