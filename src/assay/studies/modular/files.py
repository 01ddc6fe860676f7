"""Saves and loads a sweep: safetensors with a JSON manifest beside it, or the spec's pickle.

    sweep.safetensors   "32/0/bi_linear.weight", "32/0/projection.weight", ...: width, seed, name
    sweep.json          P, the models with their accuracies, how they were trained, the sha256 of the tensors
    sweep.pkl           {"P": 64, "val_accs": {d: accuracy}, "models": {d: state dict}}: one model per width

A pickle may run any code when Python reads it. Here it is read as data (studies/modular/pickles.py): tensors and the
plain containers around them; anything else is refused, by name.
"""

import hashlib
import json
import pickle
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from assay import __version__
from assay.core.errors import UserError
from assay.core.files import DAMAGE, TEXT, is_there, read_file, reason
from assay.core.store import disk_errors, write_file
from assay.studies.modular import pickles

Key = int | tuple[int, int]
"""A width; or a width and a seed, in a sweep with several seeds."""
State = Mapping[str, Tensor]
NAMES = ("bi_linear.weight", "projection.weight")
FORMAT = 1
LARGEST = 2**31
"""The largest modulus or width to accept from a file: they are printed and multiplied before they can be checked."""
FLOATS = {"torch.float16", "torch.bfloat16", "torch.float32", "torch.float64"}


@dataclass(frozen=True)
class SweepResults:
    """Trained models by width, or by (width, seed) where there are several seeds."""

    P: int
    models: dict[Key, State]
    val_accs: dict[Key, float]
    recipe: dict[str, Any] = field(default_factory=dict)
    """How the models were trained, where known."""
    seed: int | None = None
    """The seed of all models, where keys are widths and it is known."""

    def seed_of(self, key: Key) -> int | None:
        return key[1] if isinstance(key, tuple) else self.seed

    @property
    def labels(self) -> list[dict[str, int | None]]:
        """The width and seed of each row of a matrix over these models."""
        return [{"d_hidden": width_of(key), "seed": self.seed_of(key)} for key in self.models]

    def only(self, keys: Iterable[Key]) -> "SweepResults":
        """Keep some of the models."""
        kept = list(keys)
        return replace(
            self, models={key: self.models[key] for key in kept}, val_accs={key: self.val_accs[key] for key in kept}
        )

    @property
    def sha256(self) -> str:
        """The hash of every weight and of the model and name it belongs to, in any order of the models."""
        found = hashlib.sha256()
        for key in sorted(self.models, key=_order):
            for name in NAMES:
                weight = self.models[key][name].detach().cpu().contiguous()
                found.update(f"{key} {name} {tuple(weight.shape)} {weight.dtype}".encode())
                found.update(weight.view(torch.uint8).numpy().data)  # numpy has no bfloat16
        return found.hexdigest()

    def of_seed(self, seed: int | None) -> "SweepResults":
        """Keep the models of one seed, keyed by width; the whole sweep where seed is None."""
        if seed is None:
            return self
        chosen = [key for key in self.models if self.seed_of(key) == seed]
        if not chosen:
            known = sorted({s for key in self.models if (s := self.seed_of(key)) is not None})
            listed = ", ".join(map(str, known)) or "not known, as a .pkl holds none"
            raise UserError(f"no model of seed {seed} in this sweep. Its seeds: {listed}.")
        return replace(
            self,
            models={width_of(key): self.models[key] for key in chosen},
            val_accs={width_of(key): self.val_accs[key] for key in chosen},
            seed=seed,
        )


def collect(P: int, found: Iterable[tuple[int, int, float, State]], recipe: Mapping[str, Any]) -> SweepResults:
    """Build a sweep from (width, seed, accuracy, weights), by width and seed."""
    return _keyed(P, sorted(found, key=lambda one: one[:2]), recipe)


def _keyed(P: int, found: Sequence[tuple[int, int, float, State]], recipe: Mapping[str, Any]) -> SweepResults:
    """Key models by width, and by seed too where there are several."""
    seeds = {seed for _, seed, _, _ in found}
    several = len(seeds) > 1
    models, accuracies = dict[Key, State](), dict[Key, float]()
    for width, seed, accuracy, state in found:
        key = (width, seed) if several else width
        models[key], accuracies[key] = state, accuracy
    return SweepResults(P, models, accuracies, dict(recipe), None if several else next(iter(seeds), None))


def check_path(path: Path, seeds: Sequence[int]) -> None:
    """Raise if a sweep cannot be saved there, before anything is trained for it."""
    if path.suffix not in (".pkl", ".safetensors"):
        raise UserError(f"--save {path}: the name ends in .safetensors, or in .pkl for the spec's layout.")
    if path.suffix == ".pkl" and len(set(seeds)) > 1:
        raise UserError(
            f"--save {path}: a .pkl holds one model per width, and there are {len(set(seeds))} seeds. "
            "Give one seed, or a name that ends in .safetensors."
        )


def encoded(results: SweepResults, path: Path) -> list[tuple[Path, bytes]]:
    """Encode a sweep as files in the order of writing: the manifest last, as its presence means the rest is there."""
    check_path(path, [results.seed_of(key) or 0 for key in results.models])
    if path.suffix == ".pkl":
        models = {width_of(key): OrderedDict(state) for key, state in results.models.items()}
        accuracies = {width_of(key): accuracy for key, accuracy in results.val_accs.items()}
        return [(path, pickle.dumps({"P": results.P, "val_accs": accuracies, "models": models}))]
    tensors = {
        f"{width_of(key)}/{results.seed_of(key) or 0}/{name}": state[name].detach().cpu().contiguous()
        for key, state in results.models.items()
        for name in NAMES
    }
    data = safetensors.torch.save(tensors)
    manifest = {
        "format": FORMAT,
        "assay": __version__,
        "P": results.P,
        "models": [
            {**label, "val_acc": results.val_accs[key]}
            for label, key in zip(results.labels, results.models, strict=True)
        ],
        "recipe": results.recipe,
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    return [(path, data), (path.with_suffix(".json"), (json.dumps(manifest, indent=1) + "\n").encode())]


def save_sweep_results(results: SweepResults, path: str | Path) -> None:
    """Write safetensors with a manifest, or the spec's pickle, by the name's ending."""
    for file, data in encoded(results, Path(path)):
        with disk_errors(file):
            write_file(file, data)


def load(path: str | Path) -> SweepResults:
    path = Path(path)
    if path.suffix == ".json" and is_there(path.with_suffix(".safetensors")):
        raise UserError(f"{path} is the manifest of a sweep: give {path.with_suffix('.safetensors')}.")
    try:
        data = read_file(path)
    except OSError as error:
        raise UserError(
            f"cannot read the sweep {path}: {error.strerror}. `assay modular sweep --save {path}` makes one."
        ) from None
    return _unpickled(path, data) if path.suffix == ".pkl" else _from_tensors(path, data)


def _from_tensors(path: Path, data: bytes) -> SweepResults:
    beside = path.with_suffix(".json")
    try:
        manifest = json.loads(read_file(beside, limit=64 * TEXT))
        if manifest["format"] > FORMAT:
            newer = _shown(manifest["format"])
            raise UserError(f"{beside} was written by a newer assay (format {newer}): upgrade to read it.")
        if manifest["sha256"] != hashlib.sha256(data).hexdigest():
            raise UserError(f"{beside} is not the manifest of {path}: one of them was changed. Save the sweep again.")
        tensors, models = safetensors.torch.load(data), []
        for entry in manifest["models"]:
            width, seed = entry["d_hidden"], entry["seed"]
            state = {name: tensors[f"{width}/{seed or 0}/{name}"] for name in NAMES}
            models.append((width, seed, float(entry["val_acc"]), state))
        found = _keyed(manifest["P"], models, manifest["recipe"])
    except OSError as error:
        raise UserError(f"cannot read {beside}, the manifest of {path}: {error.strerror}.") from None
    except (*DAMAGE, safetensors.SafetensorError) as error:
        raise UserError(f"{path} with its manifest {beside.name} is no saved sweep: {reason(error)}.") from None
    return _checked(found, path)


def _unpickled(path: Path, data: bytes) -> SweepResults:
    try:
        found = pickles.read(data)
    except pickles.Unknown as error:
        raise UserError(
            f"{path} was not read: {error}, which no saved sweep needs. "
            "A file like that can run any code; do not open it by other means either."
        ) from None
    except ValueError as error:
        raise UserError(f"{path} is no saved sweep: {reason(error)}.") from None
    models = found.get("models", found.get("models_state")) if isinstance(found, dict) else None
    if not isinstance(models, dict):
        raise UserError(f"{path} is no saved sweep: it has no 'models'.")
    accuracies = found.get("val_accs", found.get("val_acc", {}))
    if not isinstance(accuracies, dict):
        raise UserError(f"{path} is no saved sweep: its accuracies are a {type(accuracies).__name__}, not a dict.")
    try:
        known = {d: _number(accuracies.get(d, float("nan"))) for d in models}
        P = int(_number(found.get("P", 64)))
    except (ValueError, OverflowError) as error:
        raise UserError(f"{path} is no saved sweep: {reason(error)}.") from None
    return _checked(SweepResults(P, models, known), path)


def _checked(results: SweepResults, path: Path) -> SweepResults:
    """Return the models by width and seed: row i of a matrix is width i + 1 where all widths are there, however the
    file is ordered. Raise unless all weights have the shapes that P and the widths ask for; the error names the model.
    """
    if not results.models:
        raise UserError(f"{path} is a sweep without models.")
    if not _is_width(results.P) or results.P < 2:
        raise UserError(f"{path} is no saved sweep: P={_shown(results.P)} is no modulus.")
    if not (all(map(_is_width, results.models)) or all(map(_is_replicate, results.models))):
        shown = ", ".join(map(_shown, list(results.models)[:4]))
        raise UserError(f"{path}: models are named {shown}, where widths belong, or (width, seed) for all of them.")
    for key, state in results.models.items():
        d = width_of(key)
        if not isinstance(state, Mapping):
            raise UserError(f"{path}: the model of width {key} is a {type(state).__name__}, where its weights belong.")
        weights = {_shown(name): weight for name, weight in state.items() if isinstance(weight, Tensor)}
        expected = {repr(NAMES[0]): (2 * d, 2 * results.P), repr(NAMES[1]): (results.P, d)}
        found = {name: tuple(weight.shape) for name, weight in weights.items()}
        if found != expected:
            listed = ", ".join(f"{name}: {shape}" for name, shape in islice(found.items(), 4)) or "none"
            wanted = ", ".join(f"{name}: {shape}" for name, shape in expected.items())
            raise UserError(f"{path}: the model of width {key} has the weights {listed}, where {wanted} belong.")
        if odd := {str(weight.dtype) for weight in weights.values()} - FLOATS:
            raise UserError(f"{path}: the weights of width {key} are {min(odd)}, where floating-point numbers belong.")
    return results.only(sorted(results.models, key=_order))


def _number(value: Any) -> float:
    """Convert a plain number, or a tensor with one."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if not isinstance(value, int | float):
        raise ValueError(f"it has a {type(value).__name__} where a number belongs")
    return float(value)


def width_of(key: Key) -> int:
    return key[0] if isinstance(key, tuple) else key


def _order(key: Key) -> tuple[int, int]:
    return key if isinstance(key, tuple) else (key, 0)


def _is_width(key: Any) -> bool:
    return type(key) is int and 1 <= key < LARGEST


def _is_replicate(key: Any) -> bool:
    return isinstance(key, tuple) and len(key) == 2 and _is_width(key[0]) and type(key[1]) is int


def _shown(value: Any) -> str:
    """Shorten a name or number from a file to fit a line."""
    if isinstance(value, str):
        return repr(value[:60])
    short = isinstance(value, float) or (isinstance(value, int) and abs(value) < LARGEST) or _is_replicate(value)
    return repr(value) if short else f"a {type(value).__name__}"
