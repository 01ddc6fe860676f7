"""Loads the models that a command reads, from a saved sweep or a results folder."""

from collections.abc import Sequence
from pathlib import Path

from assay.core.errors import UserError
from assay.core.files import is_there
from assay.core.run import Record
from assay.core.store import Store
from assay.studies.modular.files import SweepResults, load
from assay.studies.modular.records import saved_sweep, setting


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
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(f"{setting(record.run)} {record.run.numerics.device}", []).append(record)
    return list(groups.values())


def _named(record: Record) -> str:
    return " ".join(f"{key}={record.run.options[key]}" for key in ("P", "epochs", "lr", "weight_decay"))
