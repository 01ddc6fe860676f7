"""The spec's names, each loaded on first use (PEP 562), so that listing studies stays instant."""

from assay.core.on_use import on_use

_HOME = {
    "spec.config": (
        "ContextLengthSweepConfig", "DATASET_CONFIGS", "DatasetConfig", "METHOD_CONFIGS", "MethodConfig", "MethodName",
        "ModelConfig", "PerplexityDataset", "SparsitySweepConfig", "get_dataset_config", "get_method_config",
    ),
    "spec.experiment": ("BenchmarkConfig", "ExperimentConfig", "create_icml_benchmark", "create_quick_test"),
    "spec.runner": (
        "PerplexityBenchmarkRunner", "PerplexityResult", "aggregate_results", "analyze_context_scaling",
        "analyze_sparsity_tradeoff", "compute_perplexity_statistics", "format_perplexity_result", "run_benchmark",
    ),
    "spec.chunks": (
        "C4Dataset", "PG19Dataset", "PerplexityDatasetLoader", "PerplexityEvaluator", "TextChunk", "WikiTextDataset",
        "compute_perplexity", "compute_sliding_window_perplexity", "create_dataloader", "create_perplexity_dataset",
        "get_dataset_stats", "load_all_datasets",
    ),
    "report": ("generate_summary_table",),
    "figures": ("figure_4", "figure_8", "table_3"),
}  # fmt: skip

__getattr__, __dir__ = on_use(__name__, _HOME)
