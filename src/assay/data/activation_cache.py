"""Outputs of modules inside a network are read, cached on disk, or replaced.

Modules are named as `named_modules` names them. A module that gives a tuple, as layers of language models do, means its
first element. Hooks are always taken off again.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.core.convert import nearest
from assay.core.errors import UserError
from assay.core.files import TEXT, read_plain, write_file
from assay.core.locks import locked
from assay.core.reading import parsed

SHARD = 2**18
"""Rows per file."""
PROGRESS, LOCK = "progress.json", ".lock"


class _Seen(Exception):
    """Ends a forward pass early, once every requested output was seen."""


def module_at(model: nn.Module, name: str) -> nn.Module:
    found = dict(model.named_modules())
    if name not in found:
        close = nearest(name, found)
        raise UserError(
            f"the model has no module '{name}'.{close} It has, among others: {', '.join(list(found)[1:9])}."
        )
    return found[name]


@torch.no_grad()
def outputs(model: nn.Module, names: Sequence[str], *args: Any, **kwargs: Any) -> dict[str, Tensor]:
    """Return the outputs of the named modules, from one forward pass that ends when the last of them has run."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        seen[name] = (output[0] if isinstance(output, tuple) else output).detach()
        if len(seen) == len(names):
            raise _Seen

    handles = [module_at(model, name).register_forward_hook(partial(keep, name)) for name in names]
    try:
        model(*args, **kwargs)
    except _Seen:
        return seen
    finally:
        for handle in handles:
            handle.remove()
    missing = ", ".join(name for name in names if name not in seen)
    raise UserError(f"the forward pass went through without calling {missing}.")


@contextmanager
def replaced(model: nn.Module, name: str, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Change the module's output inside the block."""

    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (change(output[0]), *output[1:])
        return change(output)

    handle = module_at(model, name).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


class Shards:
    """Rows of several modules on disk, as memory-mapped .npy files of at most `SHARD` rows, filled in order.

    `progress.json` counts the complete batches and is written last, so that a killed process resumes from there. If it
    is damaged or no plain file, the rows are written anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.progress = _progress(folder / PROGRESS)

    def append(self, rows: Mapping[str, Float[Tensor, "n d"]]) -> None:
        start = self.progress["rows"]
        for name, values in rows.items():
            self._write(name, start, values.float().cpu().numpy())
        self.progress = {"batches": self.progress["batches"] + 1, "rows": start + len(values)}
        write_file(self.folder / PROGRESS, json.dumps(self.progress).encode())

    def _write(self, name: str, start: int, values: np.ndarray) -> None:
        while len(values):
            shard, offset = divmod(start, SHARD)
            now, values = np.split(values, [SHARD - offset])
            path = self._path(name, shard)
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_file():
                np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(SHARD, values.shape[1])).flush()
            file = np.lib.format.open_memmap(path, mode="r+")
            file[offset : offset + len(now)] = now
            file.flush()
            start += len(now)

    def read(self, name: str) -> Float[Tensor, "n d"]:
        """Return all rows of one module, copied out of the files."""
        total, parts = self.progress["rows"], []
        for shard in range(-(-total // SHARD)):
            file = np.load(self._path(name, shard), mmap_mode="r")
            parts.append(torch.from_numpy(np.array(file[: total - shard * SHARD])))
        return torch.cat(parts)

    def _path(self, name: str, shard: int) -> Path:
        return self.folder / f"{name}-{shard:05d}.npy"


def _progress(path: Path) -> dict[str, int]:
    with suppress(OSError, ValueError):
        counts: dict[str, int] = parsed(read_plain(path, TEXT), {"batches": int, "rows": int})
        if min(counts["batches"], counts["rows"]) >= 0:
            return counts
    return {"batches": 0, "rows": 0}


def collect(model: nn.Module, names: Sequence[str], batches: Iterable[Tensor], folder: Path) -> Shards:
    """Cache the named modules' outputs for each token, without the first of each sequence (whose activations are unlike
    all others), one batch in memory at a time. Cached batches are not computed again; of processes that want the same
    folder at once, one computes and the others wait for it."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK):
        shards = Shards(folder)
        for number, batch in enumerate(batches):
            if number >= shards.progress["batches"]:
                seen = outputs(model, names, batch)
                shards.append({name: seen[name][:, 1:].flatten(0, 1) for name in names})
        return shards
