"""The building blocks of the modular-addition experiments, under the spec's names: this file is the list of them."""

# ruff: noqa: F403, F405
from assay.studies.modular.bilinear import Bilinear, Model, ModelConfig, constructive_model, init_model
from assay.studies.modular.metrics.distances import *
from assay.studies.modular.metrics.spectra import JS_divergence
from assay.studies.modular.metrics.tensor_similarity import symmetric_inner, symmetric_similarity
from assay.studies.modular.spec.comparison import *
from assay.studies.modular.spec.compression import load_sweep_results
from assay.studies.modular.spec.frequency import *
from assay.studies.modular.spec.frequency import compute_interaction_matrices
from assay.studies.modular.spec.training import *

__all__ = [
    "Bilinear",
    "JS_divergence",
    "Model",
    "ModelConfig",
    "compare_metrics",
    "components_for_variance_threshold",
    "compute_accuracy",
    "compute_act_similarity_matrix",
    "compute_activation_similarity",
    "compute_all_frequency_heatmaps",
    "compute_all_logits",
    "compute_average_js_divergence",
    "compute_continuity",
    "compute_effective_rank",
    "compute_eigen_data",
    "compute_eigendecomposition",
    "compute_eigenvector_fft",
    "compute_frequency_distribution",
    "compute_frequency_heatmap",
    "compute_interaction_matrices",
    "compute_interaction_matrices_from_state",
    "compute_interaction_matrix",
    "compute_interaction_matrix_stack",
    "compute_jaccard_index",
    "compute_js_divergence_matrix",
    "compute_knn_overlap",
    "compute_optimal_scale",
    "compute_stress",
    "compute_tn_inner_product_matrix",
    "compute_tn_similarity_matrix",
    "compute_trustworthiness",
    "constructive_model",
    "cosine_similarity_to_metric",
    "create_full_dataset",
    "create_labels",
    "create_train_val_split",
    "cumulative_explained_variance",
    "divergence_to_metric",
    "entropy_effective_rank",
    "extract_remainder_matrix",
    "get_device",
    "get_knn_indices",
    "get_upper_triangular",
    "init_model",
    "inner_product_to_metric",
    "load_model_for_dim",
    "load_sweep_results",
    "make_dataloaders",
    "pairwise_cosine_similarity",
    "pearson_correlation",
    "print_comparison_results",
    "ratio_effective_rank",
    "symmetric_inner",
    "symmetric_similarity",
    "train_model",
    "train_step",
]

compute_interaction_matrices_from_state = compute_interaction_matrices
