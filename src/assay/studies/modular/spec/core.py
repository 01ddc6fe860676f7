"""The building blocks of the modular-addition experiments, under the spec's names.

This file is the list; what only the spec's notebooks need is in training.py and comparison.py beside it. Nothing
switches gradients off for its caller.
"""

from assay.studies.modular.bilinear import Bilinear, Model, ModelConfig, constructive_model, init_model
from assay.studies.modular.metrics.distances import (
    compare_metrics,
    cosine_similarity_to_metric,
    divergence_to_metric,
    inner_product_to_metric,
)
from assay.studies.modular.metrics.distances import continuity as compute_continuity
from assay.studies.modular.metrics.distances import jaccard as compute_jaccard_index
from assay.studies.modular.metrics.distances import knn_overlap as compute_knn_overlap
from assay.studies.modular.metrics.distances import neighbours as get_knn_indices
from assay.studies.modular.metrics.distances import optimal_scale as compute_optimal_scale
from assay.studies.modular.metrics.distances import stress as compute_stress
from assay.studies.modular.metrics.distances import trustworthiness as compute_trustworthiness
from assay.studies.modular.metrics.spectra import (
    JS_divergence,
    components_for_variance_threshold,
    cumulative_explained_variance,
    entropy_effective_rank,
    ratio_effective_rank,
)
from assay.studies.modular.metrics.spectra import eigenpairs as compute_eigendecomposition
from assay.studies.modular.metrics.spectra import interaction_matrices as compute_interaction_matrix_stack
from assay.studies.modular.metrics.spectra import js_divergence_matrix as compute_js_divergence_matrix
from assay.studies.modular.metrics.tensor_similarity import activation_similarity as compute_activation_similarity
from assay.studies.modular.metrics.tensor_similarity import (
    activation_similarity_matrix as compute_act_similarity_matrix,
)
from assay.studies.modular.metrics.tensor_similarity import all_logits, symmetric_inner, symmetric_similarity
from assay.studies.modular.metrics.tensor_similarity import symmetric_inner_matrix as compute_tn_inner_product_matrix
from assay.studies.modular.metrics.tensor_similarity import symmetric_similarity_matrix as compute_tn_similarity_matrix
from assay.studies.modular.spec.comparison import (
    compute_all_frequency_heatmaps,
    compute_average_js_divergence,
    compute_effective_rank,
    compute_eigenvector_fft,
    compute_frequency_distribution,
    compute_interaction_matrix,
    extract_remainder_matrix,
    get_upper_triangular,
    pairwise_cosine_similarity,
    pearson_correlation,
    print_comparison_results,
)
from assay.studies.modular.spec.compression import compute_interaction_matrices
from assay.studies.modular.spec.training import (
    compute_accuracy,
    create_full_dataset,
    create_labels,
    create_train_val_split,
    get_device,
    load_model_for_dim,
    make_dataloaders,
    train_model,
    train_step,
)

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
    "compute_eigendecomposition",
    "compute_eigenvector_fft",
    "compute_frequency_distribution",
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

compute_all_logits = all_logits
compute_interaction_matrices_from_state = compute_interaction_matrices
