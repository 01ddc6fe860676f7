"""The spec's names, each loaded on first use (PEP 562), so that listing studies stays instant."""

import importlib
from typing import Any

_HOME = {
    "config": (
        "BenchmarkConfig", "ContextLengthSweepConfig", "DATASET_CONFIGS", "DatasetConfig", "ExperimentConfig",
        "METHOD_CONFIGS", "MethodConfig", "MethodName", "ModelConfig", "PerplexityDataset", "SparsitySweepConfig",
        "create_icml_benchmark", "create_quick_test", "get_dataset_config", "get_method_config",
    ),
    "runner": (
        "PerplexityBenchmarkRunner", "PerplexityResult", "aggregate_results", "analyze_context_scaling",
        "analyze_sparsity_tradeoff", "compute_perplexity_statistics", "format_perplexity_result", "run_benchmark",
    ),
    "chunks": (
        "C4Dataset", "PG19Dataset", "PerplexityDatasetLoader", "PerplexityEvaluator", "TextChunk", "WikiTextDataset",
        "compute_perplexity", "compute_sliding_window_perplexity", "create_dataloader", "create_perplexity_dataset",
        "get_dataset_stats", "load_all_datasets",
    ),
    "report": ("generate_summary_table",),
    "figures": ("figure_4", "figure_8", "table_3"),
}  # fmt: skip
_MODULE = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_MODULE)
