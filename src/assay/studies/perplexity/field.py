"""The methods that a card compares, at three budgets each: the presets `methods` and `methods-prefix`.

Each method has its published form and its own defaults, except where these ask for longer contexts than 512 tokens:
CAB in blocks of 8, SnapKV and what is built on it with a window of 16, LagKV in partitions of 8.

    methods           online; 152, 72 and 32 slots of 512 tokens, which realise sparsities of .49, .74 and .88
    methods-prefix    128, 64 and 32 keys of a prefix of 256 tokens: half of it, a quarter, an eighth

Each has two more for docs/methods.md, with the same methods: `methods-probes` scores the answers of three probes at the
same budgets, `methods-decode` generates at the middle one; so do `methods-prefix-probes` and `methods-prefix-decode`.
"""

from collections.abc import Mapping
from typing import Any

from assay.data.text import PYDOC, SPEECHES

CLUSTERS = 24
SHORT = "(snapkv:window_size=16)"
ONLINE = (
    "dense", "window", "streaming_llm", "local_strided",
    "h2o", "tova", "keydiff", "knorm", "random_evict", "per_layer", "duo",
    "oracle_topk", "quest", "cab_v3:block_size=8", "cab_v4:block_size=8", "random",
)  # fmt: skip
PREFIX = (
    "dense", "window", "streaming_llm", "h2o", "tova", "keydiff", "knorm", "random_evict",
    "snapkv:window_size=16", "observed", "expected_attention", "qfilter", "lagkv:lag_size=8", "leverage", "finch",
    "simlayerkv", f"chunkkv:method={SHORT}", f"pyramid:method={SHORT}", f"ada:method={SHORT}",
)  # fmt: skip
MEASURED: Mapping[str, Any] = {
    "model": "smollm2-135m",
    "datasets": (SPEECHES, PYDOC),
    "dtype": "float32",
    "context_lengths": (512,),
    "sparsity_levels": (),
    "max_samples": (str(CLUSTERS),),
    "max_windows": 1,
}
"""One window of 24 documents each, which are the clusters. Every machine has the speeches; pydoc is another text under
another Python."""
ASKED: Mapping[str, Mapping[str, Any]] = {
    # Positions inside the cache are for streaming_llm and window alone: so StreamingLLM was published.
    "methods": {**MEASURED, "methods": ONLINE, "budgets": (152, 72, 32), "positions": "cache"},
    "methods-prefix": {**MEASURED, "methods": PREFIX, "budgets": (128, 64, 32), "protocol": "prefix"},
}
FIELDS: Mapping[str, Mapping[str, Any]] = {
    **ASKED,
    **{
        # Five texts at each of five depths: as many clusters as an interval needs. Decoding each answer for each method
        # would take most of the time.
        f"{name}-probes": {**asked, "datasets": (), "probes": ("passkey", "needle", "multi_key"), "probe_decode": False}
        for name, asked in ASKED.items()
    },
    **{
        # The losses of its texts are runs of the preset itself, and are stored where that has run.
        f"{name}-decode": {**asked, "datasets": (SPEECHES,), "budgets": asked["budgets"][1:2], "generate": 64}
        for name, asked in ASKED.items()
    },
}
