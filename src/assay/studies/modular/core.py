"""The names of the spec's `modular_addition.core`, each loaded on first use (PEP 562)."""

from assay.core.on_use import on_use

_HOMES = {
    "bilinear": ("Bilinear", "Model", "ModelConfig", "constructive_model", "init_model"),
    "metrics.distances": (
        "compare_metrics", "compute_continuity", "compute_jaccard_index", "compute_knn_overlap",
        "compute_optimal_scale", "compute_stress", "compute_trustworthiness", "cosine_similarity_to_metric",
        "divergence_to_metric", "get_knn_indices", "get_upper_triangular", "inner_product_to_metric",
        "pearson_correlation", "print_comparison_results",
    ),
    "metrics.spectra": ("JS_divergence",),
    "metrics.tensor_similarity": ("symmetric_inner", "symmetric_similarity"),
    "spec.analysis": (
        "components_for_variance_threshold", "compute_act_similarity_matrix", "compute_activation_similarity",
        "compute_all_frequency_heatmaps", "compute_all_logits", "compute_average_js_divergence",
        "compute_effective_rank", "compute_eigen_data", "compute_eigendecomposition", "compute_eigenvector_fft",
        "compute_frequency_distribution", "compute_frequency_heatmap", "compute_interaction_matrices",
        "compute_interaction_matrices_from_state", "compute_interaction_matrix", "compute_interaction_matrix_stack",
        "compute_js_divergence_matrix", "compute_tn_inner_product_matrix", "compute_tn_similarity_matrix",
        "cumulative_explained_variance", "entropy_effective_rank", "extract_remainder_matrix",
        "pairwise_cosine_similarity", "ratio_effective_rank",
    ),
    "spec.training": (
        "compute_accuracy", "create_full_dataset", "create_labels", "create_train_val_split", "get_device",
        "load_model_for_dim", "load_sweep_results", "make_dataloaders", "train_model", "train_step",
    ),
}  # fmt: skip

__getattr__, __dir__ = on_use("assay.studies.modular", _HOMES)
__all__ = __dir__()
