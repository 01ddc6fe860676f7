"""Presets of the study on data whose atoms are planted.

Both are judged at the true L0 (studies.sae.planted). A result is final where twice the epochs change it by less than
its interval: `assay sae --preset dictionary --epochs 240`, and the report of both says the change.
"""

from collections.abc import Mapping
from typing import Any

RATES = (1e-3, 3e-3, 1e-2, 3e-2)
WIDE_RATES = (3e-4, *RATES, 1e-1)
"""A rate more on either side, so that one chosen among RATES is at no edge."""
SEEDS = (0, 1, 2, 3, 4)
PLANTED: Mapping[str, Mapping[str, Any]] = {
    "dictionary": {  # 8 of 1,024 atoms in 256 inputs: 8 units of an untrained frame reconstruct nothing here
        "data": "dictionary:d_in=256:atoms=1024",
        "coders": (
            "topk:k=4", "topk:k=8", "topk:k=16", "topk:k=32",
            "batch_topk:k=4", "batch_topk:k=8", "batch_topk:k=16", "batch_topk:k=32",
            "relu_l1:l1=0.3", "relu_l1:l1=0.6", "relu_l1:l1=1.0", "relu_l1:l1=1.4",
            "lse_infomax:lambda_lse=100.0", "lse_infomax:lambda_lse=300.0", "lse_infomax:lambda_lse=1000.0",
            "lse_infomax:lambda_lse=3000.0", "random_relu",
        ),
        "d_code": 1024,
        "epochs": 120,
        "batch": 512,
        "lrs": WIDE_RATES,
        "seeds": SEEDS,
    },
    "concepts": {  # parents and children: absorption, TPP, SCR and what few units tell
        "data": "concepts",
        "coders": (
            "topk:k=4", "topk:k=8", "topk:k=16", "topk:k=32", "matryoshka:k=4", "matryoshka:k=8", "matryoshka:k=16",
            "matryoshka:k=32", "relu_l1:l1=0.1", "relu_l1:l1=0.3", "relu_l1:l1=0.6", "relu_l1:l1=1.0",
            "lse_infomax:lambda_lse=1.0", "lse_infomax:lambda_lse=10.0", "lse_infomax:lambda_lse=30.0",
            "lse_infomax:lambda_lse=100.0", "random_relu",
        ),
        "d_code": 136,
        "epochs": 60,
        "batch": 512,
        "lrs": RATES,
        "seeds": SEEDS,
    },
}  # fmt: skip
