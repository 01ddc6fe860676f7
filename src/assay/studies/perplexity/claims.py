"""What others measured of language models with less attention, and what has to come out here."""

from assay.report.claims import Check, Claim

CLAIMS = {
    "sinks": Claim(
        claim=(
            "A window alone loses far more than the same cache with 4 sinks and positions inside the cache (256 "
            "slots, 1024 tokens, SmolLM2-135M on Python 3.11's language reference)."
        ),
        source=(
            "Xiao et al., ICLR 2024 (arXiv 2309.17453), Table 1: Llama-2-13B on a book of PG-19, window of 1024 "
            "5158.07, 4 sinks and 1020 5.40"
        ),
        study="perplexity",
        options={
            "model": "smollm2-135m",
            "datasets": ["pydoc"],
            "methods": ["dense", "window", "streaming_llm"],
            "positions": "cache",
            "budgets": [256],
            "context_lengths": [1024],
            "context_sweep": False,
            "sparsity_sweep": False,
            "max_samples": 4,
            "max_windows": 1,
        },
        tables=("perplexity_table_3",),
        checks=(
            Check(
                what="dense, perplexity on the first half of the documents",
                metric="perplexity",
                rows={"method": "dense", "shard": 0},
                target=11.8,
                tolerance=0.2,
            ),
            Check(what="window of 256, there", metric="perplexity", rows={"method": "window", "shard": 0}, at_least=18),
            Check(
                what="4 sinks and 252, positions inside the cache, there",
                metric="perplexity",
                rows={"method": "streaming_llm", "shard": 0},
                at_most=13.5,
            ),
        ),
    ),
    "smollm2-llamacpp": Claim(
        claim=(
            "llama.cpp and this study give the same GGUF file of SmolLM2-135M the same perplexity on the same "
            "windows, to 1 %."
        ),
        source=(
            "llama-cpp-python 0.3.36 on tests/golden/make_smollm2_llamacpp.py: 8 windows of 256 tokens, the first of "
            "each document of Python 3.11's language reference"
        ),
        study="perplexity",
        options={
            "model": "smollm2-135m",
            "datasets": ["pydoc"],
            "methods": ["dense"],
            "sparsity_levels": [0.0],
            "context_lengths": [256],
            "context_sweep": False,
            "max_samples": 8,
            "max_windows": 1,
        },
        checks=(
            Check(
                what="perplexity on the first half of the windows",
                metric="perplexity",
                rows={"shard": 0},
                target=17.5937,
                tolerance=0.176,
            ),
            Check(
                what="perplexity on the second half",
                metric="perplexity",
                rows={"shard": 1},
                target=19.0162,
                tolerance=0.19,
            ),
        ),
    ),
}
