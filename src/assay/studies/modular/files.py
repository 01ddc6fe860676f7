"""A sweep as files: safetensors with a JSON manifest beside it, or the spec's pickle.

    sweep.safetensors   "32/0/bi_linear.weight", "32/0/projection.weight", ...: width, seed, name
    sweep.json          P, the models with their accuracies, how they were trained, the sha256 of the tensors
    sweep.pkl           {"P": 64, "val_accs": {d: accuracy}, "models": {d: state dict}}: one model per width

A pickle may run any code when it is read. Here it is read by an unpickler that knows tensors and the plain containers
around them, and refuses whatever else a file asks for.
"""

import hashlib
import io
import json
import pickle
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from assay.core.errors import UserError
from assay.core.store import disk_errors, write_file

Key = int | tuple[int, int]
"""A width; or a width and a seed, in a sweep with several seeds."""
State = Mapping[str, Tensor]
NAMES = ("bi_linear.weight", "projection.weight")
FORMAT = 1


@dataclass(frozen=True)
class SweepResults:
    """Trained models by width, or by (width, seed) where there are several seeds."""

    P: int
    models: dict[Key, State]
    val_accs: dict[Key, float]
    recipe: dict[str, Any] = field(default_factory=dict)
    """How they were trained, where that is known."""

    @property
    def labels(self) -> list[dict[str, int | None]]:
        """What the rows of a matrix of these models stand for."""
        return [dict(zip(("d_hidden", "seed"), _parts(key), strict=True)) for key in self.models]

    @property
    def sha256(self) -> str:
        """Of every weight, and of whose it is."""
        found = hashlib.sha256()
        for key, state in self.models.items():
            for name in NAMES:
                weight = state[name].detach().cpu().contiguous()
                found.update(f"{key} {name} {tuple(weight.shape)} {weight.dtype}".encode())
                found.update(weight.numpy().tobytes())
        return found.hexdigest()

    def of_seed(self, seed: int | None) -> "SweepResults":
        """The replicate of one seed, by width; the whole sweep where no seed is asked for."""
        if seed is None:
            return self
        chosen = {key: _parts(key)[0] for key in self.models if _parts(key)[1] == seed}
        if not chosen:
            known = sorted({s for _, s in map(_parts, self.models) if s is not None})
            raise UserError(f"no model of seed {seed} in this sweep. Its seeds: {', '.join(map(str, known)) or 'one'}.")
        return SweepResults(
            self.P,
            {d: self.models[key] for key, d in chosen.items()},
            {d: self.val_accs[key] for key, d in chosen.items()},
            self.recipe,
        )


def collect(P: int, found: Iterable[tuple[int, int, float, State]], recipe: Mapping[str, Any]) -> SweepResults:
    """A sweep from (width, seed, accuracy, weights), in order; keys have the seed where there are several."""
    ordered = sorted(found, key=lambda one: one[:2])
    several = len({seed for _, seed, _, _ in ordered}) > 1
    keys: list[Key] = [(width, seed) if several else width for width, seed, _, _ in ordered]
    return SweepResults(
        P,
        {key: state for key, (_, _, _, state) in zip(keys, ordered, strict=True)},
        {key: accuracy for key, (_, _, accuracy, _) in zip(keys, ordered, strict=True)},
        dict(recipe),
    )


def check_path(path: Path, seeds: Sequence[int]) -> None:
    """Whether a sweep can be saved there, before anything is trained for it."""
    if path.suffix not in (".pkl", ".safetensors"):
        raise UserError(f"--save {path}: the name ends in .safetensors, or in .pkl for the spec's layout.")
    if path.suffix == ".pkl" and len(set(seeds)) > 1:
        raise UserError(
            f"--save {path}: a .pkl holds one model per width, and there are {len(set(seeds))} seeds. "
            "Give one seed, or a name that ends in .safetensors."
        )


def encoded(results: SweepResults, path: Path) -> list[tuple[Path, bytes]]:
    """What a sweep is on disk, in the order of writing: the manifest last, as its presence means the rest is there."""
    check_path(path, [seed or 0 for _, seed in map(_parts, results.models)])
    if path.suffix == ".pkl":
        models = {_parts(key)[0]: OrderedDict(state) for key, state in results.models.items()}
        accuracies = {_parts(key)[0]: accuracy for key, accuracy in results.val_accs.items()}
        return [(path, pickle.dumps({"P": results.P, "val_accs": accuracies, "models": models}))]
    tensors = {
        f"{place}/{name}": state[name].detach().cpu().contiguous()
        for place, state in zip(_places(results), results.models.values(), strict=True)
        for name in NAMES
    }
    data = safetensors.torch.save(tensors)
    manifest = {
        "format": FORMAT,
        "P": results.P,
        "models": [
            {**label, "val_acc": results.val_accs[key]}
            for label, key in zip(results.labels, results.models, strict=True)
        ],
        "recipe": results.recipe,
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    return [(path, data), (path.with_suffix(".json"), (json.dumps(manifest, indent=1) + "\n").encode())]


def save(results: SweepResults, path: str | Path) -> None:
    for file, data in encoded(results, Path(path)):
        with disk_errors(file):
            write_file(file, data)


def load(path: str | Path) -> SweepResults:
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"cannot read the sweep {path}: {error.strerror}. `assay modular sweep --save {path}` makes one."
        ) from None
    return _unpickled(path, data) if path.suffix == ".pkl" else _from_tensors(path, data)


def _from_tensors(path: Path, data: bytes) -> SweepResults:
    beside = path.with_suffix(".json")
    try:
        manifest = json.loads(beside.read_bytes())
        if manifest["format"] > FORMAT:
            raise UserError(f"{beside} was written by a newer assay (format {manifest['format']}): upgrade to read it.")
        if manifest["sha256"] != hashlib.sha256(data).hexdigest():
            raise UserError(f"{beside} is not the manifest of {path}: one of them was changed. Save the sweep again.")
        tensors, entries = safetensors.torch.load(data), manifest["models"]
        several = len({entry["seed"] for entry in entries}) > 1
        keys: list[Key] = [(e["d_hidden"], e["seed"]) if several else e["d_hidden"] for e in entries]
        places = [f"{entry['d_hidden']}/{entry['seed'] or 0}" for entry in entries]
        states: list[State] = [{name: tensors[f"{place}/{name}"] for name in NAMES} for place in places]
        accuracies = [float(entry["val_acc"]) for entry in entries]
        found = SweepResults(
            manifest["P"],
            dict(zip(keys, states, strict=True)),
            dict(zip(keys, accuracies, strict=True)),
            manifest["recipe"],
        )
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise UserError(f"{path} with its manifest {beside.name} is no saved sweep: {error}.") from None
    return _checked(found, path)


def _unpickled(path: Path, data: bytes) -> SweepResults:
    try:
        found = _Unpickler(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise UserError(f"{path} is no saved sweep: {error}.") from None
    models = found.get("models", found.get("models_state")) if isinstance(found, dict) else None
    if not isinstance(models, dict):
        raise UserError(f"{path} is no saved sweep: it has no 'models'.")
    accuracies = found.get("val_accs", found.get("val_acc", {}))
    known = {d: float(accuracies.get(d, float("nan"))) for d in models}
    return _checked(SweepResults(int(found.get("P", 64)), models, known), path)


def _checked(results: SweepResults, path: Path) -> SweepResults:
    """Weights of the shapes that P and the widths ask for, or an error that names the model."""
    for key, state in results.models.items():
        d = _parts(key)[0]
        expected = {NAMES[0]: (2 * d, 2 * results.P), NAMES[1]: (results.P, d)}
        found = {name: tuple(weight.shape) for name, weight in state.items() if isinstance(weight, Tensor)}
        if found != expected:
            raise UserError(f"{path}: the model of width {key} has weights {found}, where {expected} belong.")
    return results


def _storage(data: bytes) -> Any:
    """A tensor's numbers, which a pickle holds as a pickle of its own: torch's own reader of weights alone reads it."""
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


_NUMBER = np.float64(0).__reduce__()[0]
ALLOWED: Mapping[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
    ("torch.storage", "_load_from_bytes"): _storage,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "scalar"): _NUMBER,
    ("numpy._core.multiarray", "scalar"): _NUMBER,
}
"""What a saved sweep is made of: tensors, plain containers, numbers."""


class _Unpickler(pickle.Unpickler):
    """Anything that is not allowed is refused by name, before it is called."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise UserError(
                f"the pickle asks for {module}.{name}, which no saved sweep needs: it was not read. "
                "A file like that can run any code; do not open it by other means either."
            )
        return ALLOWED[module, name]


def _parts(key: Key) -> tuple[int, int | None]:
    return key if isinstance(key, tuple) else (key, None)


def _places(results: SweepResults) -> list[str]:
    return [f"{width}/{seed or 0}" for width, seed in map(_parts, results.models)]
