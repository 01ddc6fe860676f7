"""The spec's names, each loaded on first use (PEP 562), so that listing studies stays instant."""

import importlib
from typing import Any

_HOME = {
    "model": ("Encoder", "StandardSAE"),
    "losses": (
        "combined_loss", "correlation_loss", "lse_loss", "sae_loss", "variance_loss", "weight_redundancy_loss",
    ),
    "metrics": (
        "activation_correlation_matrix", "compute_all_metrics", "dead_units", "effective_rank",
        "feature_similarity_matrix", "linear_probe_accuracy", "normalized_reconstruction_mse", "reconstruction_mse",
        "redundancy_score", "responsibility_entropy", "sparsity_l0", "usage_distribution", "weight_redundancy",
    ),
    "data": ("get_llm_activations", "get_mnist", "get_synthetic", "get_synthetic_loader"),
    "training": ("evaluate", "set_seed", "train", "train_epoch"),
    "saelens": ("load_saelens", "save_saelens"),
}  # fmt: skip
_MODULE = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_MODULE)
