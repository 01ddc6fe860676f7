"""Presets of the study, and the coders of each at several levels of sparsity.

Those on data whose atoms are planted, `dictionary` and `concepts`, are judged at the true L0 (studies.sae.planted). A
result is final where twice the epochs change it by less than its interval: `assay sae --preset dictionary --epochs
192`, and the report of both says the change.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def levels(word: str, option: str, values: Sequence[float]) -> tuple[str, ...]:
    """`topk`, `k`, (2, 4) -> topk:k=2, topk:k=4."""
    return tuple(f"{word}:{option}={value}" for value in values)


FIELD = (
    *levels("lse_infomax", "lambda_lse", (0.0, 1.0, 10.0, 30.0, 100.0)),
    *levels("lse_infomax:scale=unit_norm", "lambda_lse", (0.0, 1.0, 10.0, 30.0, 100.0)),
    *levels("lse_infomax:scale=hinge", "lambda_lse", (0.0, 0.1, 1.0, 10.0, 30.0)),
    *levels("relu_l1", "l1", (0.1, 0.3, 1.0, 3.0)), *levels("topk", "k", (2, 4, 8, 16, 32)),
    *levels("batch_topk", "k", (2, 4, 8, 16, 32)), *levels("jump_relu", "l0", (0.01, 0.03, 0.1, 0.3, 1.0)),
    *levels("gated", "l1", (0.1, 0.3, 1.0, 3.0)), *levels("matryoshka", "k", (2, 4, 8, 16, 32)),
)  # fmt: skip
"""Each kind of coder at several levels of sparsity."""
CONTROLS = ("pca", "fast_ica", "fast_ica:rectified=true", "kmeans", "random_relu")
DEMO = (
    "lse_infomax:lambda_lse=0.0", "lse_infomax", "lse_infomax:lambda_lse=10.0", "topk:k=4", "topk:k=8", "topk:k=16",
    "relu_l1:l1=0.1", "relu_l1", "pca", "fast_ica", "random_relu",
)  # fmt: skip
FINDINGS = (
    *levels("lse_infomax", "lambda_lse", (0.0, 0.3, 1.0, 3.0, 10.0)), "lse_infomax:lambda_tc=0.0",
    *levels("topk", "k", (2, 4, 8, 16, 32, 48)), *levels("relu_l1", "l1", (0.03, 0.1, 0.3, 1.0)),
    "relu_l1:l1=0.01:form=spec", "pca", "fast_ica", "random_relu",
)  # fmt: skip
SYNTHETIC = (
    *levels("lse_infomax", "lambda_lse", (0.0, 1.0, 10.0, 30.0, 100.0, 300.0, 1000.0)),
    *levels("lse_infomax:scale=unit_norm", "lambda_lse", (0.0, 1.0, 10.0, 30.0, 100.0, 300.0, 1000.0)),
    *levels("lse_infomax:scale=hinge", "lambda_lse", (0.0, 1.0, 3.0, 10.0, 30.0)),
    *(word for name in ("topk", "batch_topk", "matryoshka") for word in levels(name, "k", (4, 8, 16, 32, 64, 128))),
    *levels("relu_l1", "l1", (0.1, 0.3, 0.6, 1.0, 1.5)), *levels("gated", "l1", (0.1, 0.3, 1.0, 1.7, 2.5)),
    *levels("jump_relu", "l0", (0.003, 0.01, 0.03, 0.1, 0.3)),
)  # fmt: skip
"""For 512 units: every kind from about 4 or 8 active units to 64 or 128, so that curves can be compared."""
ACTIVATIONS = (
    *levels("lse_infomax", "lambda_lse", (1e3, 1e4, 1e5, 1e6)), *levels("topk", "k", (12, 32, 80, 160)),
    *levels("relu_l1", "l1", (0.75, 1.5, 3.0, 6.0)), *levels("gated", "l1", (2.0, 4.0, 8.0, 16.0)),
    *levels("jump_relu:bandwidth=1.0:threshold=1.0", "l0", (0.03, 0.3, 3.0, 30.0)),
    *levels("lse_infomax:scale=unit_norm", "lambda_lse", (1e4, 1e5, 1e6)),
    *levels("lse_infomax:scale=hinge", "lambda_lse", (1e4, 1e5, 1e6)),
    *levels("batch_topk", "k", (12, 32, 80)), *levels("matryoshka", "k", (12, 32, 80)),
    "random_relu",
)  # fmt: skip
"""For 4608 units on rows with |x|^2 = 576, chosen on a small sample to have some 10 to 300 active units; above 1e5 the
log-sum-exp dominates, and units die. The most important come first, in case a session ends early. The controls that
are fitted on a CPU (fast_ica, dictionary_learning, kmeans) take hours at that width, pca has no more than 576
components, and the log-determinant needs batches of 18,432 rows."""
STREAM = (
    "topk:k=32:dead_after=1000", "batch_topk:k=32:dead_after=1000", "relu_l1:l1=2.0", "gated:l1=3.5",
    "jump_relu:l0=0.7:bandwidth=1.0:threshold=1.0", "lse_infomax:lambda_lse=1000.0", "random_relu",
)  # fmt: skip
"""One level of each kind among 4608 units, with 15 to 35 active, on rows with |x|^2 = 576. A unit is silent after
1,000 steps of 2,560 rows, a quarter of the 10 million tokens that the TopK paper waits in its longer training."""
OVERCOMPLETE_CONTROLS = ("kmeans", "kmeans:code=triangle", "random_relu", "dictionary_learning:k=8")

RATES = (1e-3, 3e-3, 1e-2, 3e-2)
SEEDS = (0, 1, 2, 3, 4)
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "demo": {},  # the defaults: the embedded digits, half a minute on two cores
    "synthetic": {
        "data": "dictionary", "coders": (*SYNTHETIC, *OVERCOMPLETE_CONTROLS), "d_code": 512,
        "epochs": 30, "batch": 512, "lrs": RATES, "seeds": SEEDS,
    },
    "findings": {"coders": FINDINGS, "d_code": 64, "epochs": 100, "seeds": SEEDS},  # on any data set
    "activations": {
        "data": "activations:model=smollm2-135m:hook=model.layers.15:sequences=2000", "coders": ACTIVATIONS,
        "d_code": 4608, "epochs": 1, "batch": 512, "lrs": (1e-3, 3e-3, 1e-2), "seeds": SEEDS,
    },
    "stream": {  # for one large GPU, after `assay data pull library`, or with --data.text FOLDER
        "data": "stream:model=smollm2-135m:hook=model.layers.15:text=library"
        ":tokens=53000000:batch=512:buffer=512000",
        "coders": STREAM, "d_code": 4608, "steps": 20_000, "batch": 2560, "warmup": 0.05, "decay": 0.2,
        "lrs": (3e-4, 1e-3, 3e-3), "seeds": (0, 1, 2),
    },
    "stream_demo": {  # the same on a laptop: Python's own documentation, and six layers of a model without the hub
        "data": "stream:model=smollm2-135m:hook=model.layers.5:tokens=100000:buffer=16384:held_out=8192",
        "coders": ("topk:k=16", "relu_l1:l1=5.0", "lse_infomax:lambda_lse=100.0", "random_relu"),
        "d_code": 576, "steps": 400, "batch": 256, "warmup": 0.05, "decay": 0.2, "lrs": (1e-3,), "seeds": (0,),
    },
    "mnist": {
        "data": "mnist", "coders": (*FIELD, *CONTROLS), "d_code": 64,
        "epochs": 20, "lrs": (3e-4, 1e-3, 3e-3), "seeds": SEEDS,
    },
    # 8 of 1,024 atoms in 256 inputs: 8 units of an untrained frame reconstruct nothing here. 20,000 rows are learnt by
    # heart: the more coders are trained, the more they leave unexplained of other rows.
    "dictionary": {
        "data": "dictionary:d_in=256:atoms=1024:rows=100000",
        "coders": (
            *levels("topk", "k", (4, 8, 16, 32)), *levels("batch_topk", "k", (4, 8, 16, 32)),
            *levels("relu_l1", "l1", (0.15, 0.3, 0.6, 1.0)),
            *levels("lse_infomax", "lambda_lse", (100.0, 300.0, 1000.0, 3000.0)), "random_relu",
        ),
        # TopK is best at 3e-4 after 96 epochs, the log-sum-exp at 3e-2 after 24.
        "d_code": 1024, "epochs": 96, "batch": 512, "lrs": (1e-4, 3e-4, *RATES), "seeds": SEEDS,
    },
    "concepts": {  # parents and children: absorption, TPP, SCR and what few units tell
        "data": "concepts",
        "coders": (
            *levels("topk", "k", (4, 8, 16, 32)), *levels("matryoshka", "k", (4, 8, 16, 32)),
            *levels("relu_l1", "l1", (0.1, 0.3, 0.6, 1.0)),
            *levels("lse_infomax", "lambda_lse", (1.0, 10.0, 30.0, 100.0)), "random_relu",
        ),
        "d_code": 136, "epochs": 60, "batch": 512, "lrs": RATES, "seeds": SEEDS,
    },
}  # fmt: skip
