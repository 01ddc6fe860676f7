"""The spec's names, each loaded on first use (PEP 562), so that listing studies stays instant."""

from assay.core.on_use import on_use

_HOME = {
    "spec.model": ("Encoder", "StandardSAE"),
    "spec.losses": (
        "combined_loss", "correlation_loss", "lse_loss", "sae_loss", "variance_loss", "weight_redundancy_loss",
    ),
    "spec.metrics": (
        "activation_correlation_matrix", "compute_all_metrics", "dead_units", "effective_rank",
        "feature_similarity_matrix", "linear_probe_accuracy", "normalized_reconstruction_mse", "reconstruction_mse",
        "redundancy_score", "responsibility_entropy", "sparsity_l0", "usage_distribution", "weight_redundancy",
    ),
    "spec.data": ("get_llm_activations", "get_mnist", "get_synthetic", "get_synthetic_loader"),
    "spec.training": ("evaluate", "set_seed", "train", "train_epoch"),
    "saelens": ("load_saelens", "save_saelens"),
}  # fmt: skip

__getattr__, __dir__ = on_use(__name__, _HOME)
