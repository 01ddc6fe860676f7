"""Estimates the peak memory of a run of `perplexity`: a model, and a window of the text as two lanes of a pass."""

from collections.abc import Mapping
from functools import lru_cache

from assay.core.run import Run
from assay.data.language_model import DTYPES, is_here, sizes
from assay.studies.perplexity import scoring

LANES = 2
"""The run's own lane, and the dense one that it is compared with."""
HELD = 6
"""Vectors of width d_model that a layer holds per token while it runs."""


def memory(run: Run) -> Mapping[str, int]:
    """Estimate the memory of a run; for a model that is not downloaded yet, only what every model needs."""
    spec, context = run.options["model"], run.options["context"]
    dtype = run.options["dtype"]
    precision = DTYPES[dtype].itemsize if dtype != "auto" else 2 if run.numerics.device == "cuda" else 4
    return _memory(spec["name"], spec["sha256"], spec["revision"], context, precision)


@lru_cache(maxsize=4096)
def _memory(name: str, content: str | None, revision: str | None, context: int, precision: int) -> Mapping[str, int]:
    visible = context**2  # one byte for each pair of a query and a key
    if not is_here(name, revision=revision):
        return {"the keys that each query sees": visible}
    model = sizes(name, content, revision)
    return {
        "the model's weights": precision * model.weights,
        "the hidden states of a window": precision * LANES * HELD * context * model.width,
        "the keys that each query sees": visible * model.heads,
        # For both lanes: as the head gives them, and their logarithms in float32.
        "logits": LANES * (precision + 4) * min(context, scoring.TOKENS_AT_ONCE) * model.vocab,
    }
