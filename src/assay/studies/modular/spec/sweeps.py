"""Trains and loads sweeps of any widths and number of seeds, under the spec's names.

    save_sweep_results(run_sweep(P=64, dimensions=[8, 16, 32]), "sweep.pkl")
    models_state, val_acc, P = load_sweep_results("sweep.pkl")

Models are keyed by width, or by (width, seed) where a sweep has several seeds; matrices have a row per model, in that
order, and the sidecar of a matrix says which row is which.
"""

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from assay.core.study import Context
from assay.studies.modular.bilinear_bank import Recipe
from assay.studies.modular.files import Key, State, SweepResults, collect, load
from assay.studies.modular.records import WEIGHTS
from assay.studies.modular.sweep import Sweep
from assay.train.device import numerics_for


def run_sweep(
    P: int = 64,
    dimensions: Sequence[int] | None = None,
    *,
    seeds: Sequence[int] = (0,),
    device: str | torch.device = "cpu",
    **recipe: Any,
) -> SweepResults:
    """Train a model of each width and seed, all as one program; 1 .. P by default. `recipe` are options of `assay
    modular sweep`: epochs, batch, lr, weight_decay, train_share, test_share, settle, anneal; left out, they are the
    spec's. The models are those of that command, with its preset `spec`."""
    widths = tuple(range(1, P + 1) if dimensions is None else dimensions)
    given = Recipe().recipe() | recipe
    study = Sweep(P=P, dimensions=tuple(dict.fromkeys(widths)), seeds=tuple(dict.fromkeys(seeds)), **given)
    numerics = numerics_for(str(device))
    runs = [replace(run, numerics=numerics) for run in study.plan()]
    found = []
    with torch.cuda.device(device) if ":" in str(device) else nullcontext():  # numerics know the kind, not which one
        outcomes = list(study.execute(runs, Context(numerics)))
    for outcome in outcomes:
        width = outcome.run.options["d_hidden"]
        if outcome.diverged:
            warnings.warn(f"the model of width {width}, seed {outcome.run.seed} diverged: left out", stacklevel=2)
            continue
        weights = safetensors.torch.load(outcome.artifacts[WEIGHTS])
        found.append((width, outcome.run.seed, outcome.metrics["val_acc"], weights))
    return collect(P, found, study.recipe())


def load_sweep_results(path: str | Path, seed: int | None = None) -> tuple[dict[Key, State], dict[Key, float], int]:
    """Return weights and validation accuracies by width, and P. A sweep with several seeds is keyed by (width, seed),
    unless `seed` chooses one."""
    found = load(path).of_seed(seed)
    return found.models, found.val_accs, found.P
