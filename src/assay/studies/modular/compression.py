"""The names of the spec's `modular_addition.compression`, each loaded on first use (PEP 562)."""

from assay.core.on_use import on_use

_HOMES = {
    "files": ("SweepResults", "save_sweep_results"),
    "matrices": ("load_or_compute_act_similarity", "load_or_compute_js_divergence", "load_or_compute_tn_similarity"),
    "spec.analysis": ("compute_eigen_data", "compute_frequency_heatmap", "compute_interaction_matrices"),
    "spec.training": ("load_sweep_results", "run_sweep"),
}

__getattr__, __dir__ = on_use("assay.studies.modular", _HOMES)
__all__ = __dir__()
