"""Writes attention_masks.json: a hash of the mask of every older method, and what it reads and holds, per protocol.

    .venv/bin/python tests/golden/make_attention_masks.py

Recorded before methods could have budgets per layer and head, whose arrival changed none of them. Random queries and
keys in float64, so that rounding decides nothing. A method whose numbers should change raises its `version`.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from assay.attention import attention
from assay.attention.base import Budget
from assay.attention.lanes import Lane, Usage, attend, attended
from assay.attention.layer import Layer
from assay.core.errors import UserError
from assay.nn.random import stream

TIME = 150
WORDS = (
    "dense", "window", "streaming_llm", "local_strided:local_window=9:stride=7", "h2o", "tova", "keydiff", "knorm",
    "random_evict", "oracle_topk", "quest:page_size=8", "cab_v3:block_size=8", "cab_v4:block_size=8", "random",
    "snapkv:window_size=8",
)  # fmt: skip
PROTOCOLS: dict[str, dict[str, int]] = {"online": {}, "chunked": {"chunk": 16}, "prefix": {"prefix": 100}}
GOLDEN = Path(__file__).parent / "attention_masks.json"


def masks() -> dict[str, Any]:
    rng = stream(0, "golden masks")
    q, k, v = (torch.randn(2, heads, TIME, 8, generator=rng, dtype=torch.float64) for heads in (4, 2, 2))
    layer, found = Layer(2 * q, k, v, index=5), dict[str, Any]()
    for word in WORDS:
        for protocol, options in PROTOCOLS.items():
            for budget in (Budget(slots=40), Budget(sparsity=0.6)):
                lane, usage = Lane(attention.parse(word), budget, **options), Usage()
                try:
                    lane.check(TIME)
                except UserError as error:
                    found[f"{word} {protocol} {budget}"] = str(error)
                    continue
                attend([lane], layer, usage=[usage])
                kept = hashlib.sha256(attended([lane], layer).numpy().tobytes()).hexdigest()[:16]
                found[f"{word} {protocol} {budget}"] = {"kept": kept, **vars(usage)}
    return found


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(masks(), indent=0, sort_keys=True) + "\n", encoding="utf-8")
