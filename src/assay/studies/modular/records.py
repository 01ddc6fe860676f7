"""Reads models and how they were trained: from a sweep's records, a saved sweep or a results folder."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from assay.core.errors import UserError
from assay.core.files import is_there
from assay.core.grouping import grouped
from assay.core.run import Record, Run, canonical
from assay.core.store import Store
from assay.studies.modular.bilinear import Model, model_of
from assay.studies.modular.bilinear_bank import Recipe
from assay.studies.modular.files import SweepResults, collect, load
from assay.train.artifacts import saved_tensors

WEIGHTS = "weights.safetensors"


def setting(run: Run) -> str:
    """The options that runs of all widths and seeds share."""
    return canonical({key: value for key, value in run.options.items() if key != "d_hidden"})


def recipe_of(options: Mapping[str, Any]) -> Recipe:
    """The training recipe in a run's options."""
    return Recipe(**{f.name: options[f.name] for f in fields(Recipe) if f.name in options})


def saved_sweep(records: Sequence[Record]) -> SweepResults:
    """Collect the models of one setting, to be saved together; those that diverged have no weights."""
    done = [record for record in records if record.status == "done"]
    settings = {setting(record.run) for record in done}
    if not done:
        raise UserError("no model was trained to its end: there is nothing to save.")
    if len(settings) > 1:
        raise UserError(f"--save holds one setting, and there are {len(settings)}: leave the grid out. All are stored.")
    options = done[0].run.options
    models = [
        (record.run.options["d_hidden"], record.run.seed, record.metrics["val_acc"], saved_tensors(record, WEIGHTS))
        for record in done
    ]
    return collect(options["P"], models, recipe_of(options).recipe())


def saved_model(record: Record) -> Model:
    """Load the model of a record."""
    return model_of(saved_tensors(record, WEIGHTS))


def read_sweep(path: Path) -> SweepResults:
    """Load a file that `--save` wrote, or a results folder with finished models of one setting."""
    if not is_there(path, folder=True):
        return load(path)
    done = [record for record in Store(path).records("modular.sweep") if record.status == "done"]
    if not done:
        raise UserError(f"no finished model under {path}. `assay modular sweep --out {path}` trains some.")
    if len(found := settings(done)) > 1:
        listed = "; ".join(_named(group[0]) for group in found)
        raise UserError(
            f"{path} has models of {len(found)} settings ({listed}). Save one of them with "
            "`assay modular sweep ... --save FILE`, which computes nothing again, and give that file."
        )
    return saved_sweep(done)


def settings(records: Sequence[Record]) -> list[list[Record]]:
    """Group records that differ only in width and seed."""
    return list(grouped(records, lambda record: (setting(record.run), record.run.numerics.device)).values())


def _named(record: Record) -> str:
    return " ".join(f"{key}={record.run.options[key]}" for key in ("P", "epochs", "lr", "weight_decay"))
