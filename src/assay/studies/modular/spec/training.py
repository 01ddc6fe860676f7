"""Modular addition as a data set, sweeps over widths, and a plain training loop of one model, under the spec's names.

    save_sweep_results(run_sweep(P=64, dimensions=[8, 16, 32]), "sweep.pkl")
    models_state, val_acc, P = load_sweep_results("sweep.pkl")

    train_data, train_labels, val_data, val_labels = create_train_val_split(64, train_fraction=0.5, seed=0)
    history = train_model(init_model(64, 32), train_data, train_labels, val_data, val_labels)

The models of a sweep are keyed by width, or by (width, seed) where there are several seeds; matrices have a row per
model, in that order, and the sidecar of a matrix says which row is which. Nothing touches a global generator, unless
the seed is None.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from assay.core.drive import Event
from assay.core.errors import UserError
from assay.core.plan import labels
from assay.core.run import Record
from assay.core.study import Context
from assay.nn.random import stream
from assay.report.progress import shown
from assay.studies.modular.bilinear import Model, addition_table, model_of, one_hot
from assay.studies.modular.bilinear_bank import Recipe
from assay.studies.modular.files import Key, State, SweepResults, collect, load
from assay.studies.modular.matrices import Device
from assay.studies.modular.records import WEIGHTS
from assay.studies.modular.sweep import Sweep
from assay.train.numerics import numerics_for

Loss = Callable[[Tensor, Tensor], Tensor]


def get_device() -> torch.device:
    """Return CUDA where it is available, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def run_sweep(
    P: int = 64,
    dimensions: Sequence[int] | None = None,
    *,
    seeds: Sequence[int] = (0,),
    device: str | torch.device = "cpu",
    show_progress: bool = True,
    **recipe: Any,
) -> SweepResults:
    """Train a model of each width and seed, all as one program; 1 .. P by default. `recipe` are options of `assay
    modular sweep`: epochs, batch, lr, weight_decay, train_share, test_share, settle, anneal; left out, they are the
    spec's. The models are those of that command, with its preset `spec`. Progress goes to standard error."""
    widths = tuple(range(1, P + 1) if dimensions is None else dimensions)
    given = Recipe().recipe() | recipe
    study = Sweep(P=P, dimensions=tuple(dict.fromkeys(widths)), seeds=tuple(dict.fromkeys(seeds)), **given)
    numerics = numerics_for(str(device))
    runs = [replace(run, numerics=numerics) for run in study.plan()]
    found = []
    on = torch.cuda.device(device) if ":" in str(device) else nullcontext()  # numerics know the kind, not which one
    with on, shown(labels(runs), runs, quiet=not show_progress) as show:
        context = Context(numerics, lambda told: show(Event("progress", told.run, progress=told)))
        for outcome in study.execute(runs, context):
            run, width = outcome.run, outcome.run.options["d_hidden"]
            show(Event("stored", run, Record(run, "diverged" if outcome.diverged else "done", outcome.metrics)))
            if outcome.diverged:
                warnings.warn(f"the model of width {width}, seed {run.seed} diverged: left out", stacklevel=2)
            else:
                weights = safetensors.torch.load(outcome.artifacts[WEIGHTS])
                found.append((width, run.seed, outcome.metrics["val_acc"], weights))
    return collect(P, found, study.recipe())


def load_sweep_results(path: str | Path, seed: int | None = None) -> tuple[dict[Key, State], dict[Key, float], int]:
    """Return weights and validation accuracies by width, and P. A sweep with several seeds is keyed by (width, seed),
    unless `seed` chooses one."""
    found = load(path).of_seed(seed)
    return found.models, found.val_accs, found.P


def load_model_for_dim(d: Key, models_state: Mapping[Key, State], P: int = 64, device: Device = None) -> Model:
    """Build the model of one width (or width and seed) of a loaded sweep."""
    if isinstance(d, Mapping):  # assay's own order, before it had the original's
        d, models_state = models_state, d
    if d not in models_state:
        raise UserError(f"no model {d} here; there are {', '.join(map(str, models_state))}.")
    model = model_of(models_state[d])
    if model.config.p != P:
        raise UserError(f"model {d} is of P={model.config.p}, not of P={P}.")
    return model.to(device or "cpu").eval()


def create_full_dataset(P: int = 64, device: Device = None) -> Float[Tensor, "pairs inputs"]:
    """The inputs [onehot(a); onehot(b)] of all P^2 pairs; row aP + b."""
    a, b, _ = addition_table(P)
    return one_hot(a, b, P).to(device or "cpu")


def create_labels(P: int = 64, device: Device = None) -> Int[Tensor, " pairs"]:
    """(a + b) mod P of all P^2 pairs."""
    return addition_table(P)[2].to(device or "cpu")


def create_train_val_split(
    P: int = 64, train_fraction: float = 0.5, seed: int | None = 0, device: Device = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return inputs and labels to train on, and inputs and labels to validate on; drawn from a stream of the seed."""
    order = torch.randperm(P * P, generator=stream(_drawn(seed), "split"))
    parts = order[: int(train_fraction * P * P)], order[int(train_fraction * P * P) :]
    inputs, labels = create_full_dataset(P, device), create_labels(P, device)
    (train, train_labels), (val, val_labels) = ((inputs[rows], labels[rows]) for rows in parts)
    return train, train_labels, val, val_labels


def make_dataloaders(
    P: int = 64,
    train_fraction: float = 0.75,
    batch_size: int = 64,
    seed: int | None = 0,
    shuffle_train: bool = True,
    drop_last: bool = True,
) -> tuple[DataLoader, DataLoader]:
    """Return training batches, without one that is not full unless `drop_last` is off, and validation batches."""
    seed = _drawn(seed)
    train, train_labels, val, val_labels = create_train_val_split(P, train_fraction, seed)
    batches = DataLoader(
        TensorDataset(train, train_labels),
        batch_size=batch_size,
        shuffle=shuffle_train,
        drop_last=drop_last,
        generator=stream(seed, "order"),
    )
    return batches, DataLoader(TensorDataset(val, val_labels), batch_size=batch_size)


@torch.no_grad()
def compute_accuracy(model: nn.Module, data: Tensor, labels: Tensor) -> float:
    return float((model(data).argmax(dim=-1) == labels).double().mean())


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Tensor, labels: Tensor, loss_fn: Loss | None = None
) -> float:
    """Take one step on a loss, cross entropy unless another is given; return the loss before it."""
    optimizer.zero_grad()
    loss = (loss_fn or nn.functional.cross_entropy)(model(data), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def train_model(
    model: nn.Module,
    train_data: Tensor,
    train_labels: Tensor,
    val_data: Tensor | None = None,
    val_labels: Tensor | None = None,
    epochs: int = 1000,
    lr: float = 1e-2,
    weight_decay: float = 1e-4,
    verbose: bool = True,
    log_every: int = 100,
) -> dict[str, list[float]]:
    """Train by AdamW on full batches; return losses, and accuracies after each step. Without validation data, val_acc
    stays empty."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
    history: dict[str, list[float]] = {"train_loss": [], "train_acc": [], "val_acc": []}
    for epoch in range(1, epochs + 1):
        history["train_loss"].append(train_step(model, optimizer, train_data, train_labels))
        history["train_acc"].append(compute_accuracy(model, train_data, train_labels))
        if val_data is not None and val_labels is not None:
            history["val_acc"].append(compute_accuracy(model, val_data, val_labels))
        if verbose and epoch % log_every == 0:
            last = (f"{name} {values[-1]:.4f}" for name, values in history.items() if values)
            print(f"epoch {epoch}: {', '.join(last)}")
    return history


def _drawn(seed: int | None) -> int:
    """The seed, or for None one from torch's global generator."""
    return int(torch.randint(2**31, ())) if seed is None else seed
