"""Modular addition as a data set, and a plain training loop of one model, under the spec's names.

Nothing touches a global generator.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from assay.core.errors import UserError
from assay.nn.random import stream
from assay.studies.modular.bilinear import Model, addition_table, model_of, one_hot
from assay.studies.modular.files import Key, State


def get_device() -> torch.device:
    """Return CUDA where it is available, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_model_for_dim(models_state: Mapping[Key, State], d_hidden: Key, P: int = 64) -> Model:
    """Build the model of one width (and seed) of a loaded sweep."""
    if d_hidden not in models_state:
        raise UserError(f"no model {d_hidden} here; there are {', '.join(map(str, models_state))}.")
    model = model_of(models_state[d_hidden])
    if model.config.p != P:
        raise UserError(f"model {d_hidden} is of P={model.config.p}, not of P={P}.")
    return model


def create_full_dataset(p: int = 64) -> Float[Tensor, "pairs inputs"]:
    """The inputs [onehot(a); onehot(b)] of all P^2 pairs; row aP + b."""
    a, b, _ = addition_table(p)
    return one_hot(a, b, p)


def create_labels(p: int = 64) -> Int[Tensor, " pairs"]:
    """(a + b) mod P of all P^2 pairs."""
    return addition_table(p)[2]


def create_train_val_split(
    p: int = 64, train_fraction: float = 0.5, seed: int = 0
) -> tuple[Int[Tensor, " train"], Int[Tensor, " val"]]:
    """Draw the rows of the full dataset to train and to validate on, from a stream of the seed."""
    order = torch.randperm(p * p, generator=stream(seed, "split"))
    first = round(train_fraction * p * p)
    return order[:first], order[first:]


def make_dataloaders(
    p: int = 64, train_fraction: float = 0.75, batch_size: int = 64, seed: int = 0
) -> tuple[DataLoader, DataLoader]:
    """Return shuffled training batches, dropping one that is not full, and one batch of the validation pairs."""
    inputs, labels = create_full_dataset(p), create_labels(p)
    train, val = create_train_val_split(p, train_fraction, seed)
    batches = DataLoader(
        TensorDataset(inputs[train], labels[train]),
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        generator=stream(seed, "order"),
    )
    return batches, DataLoader(TensorDataset(inputs[val], labels[val]), batch_size=len(val))


@torch.no_grad()
def compute_accuracy(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    return float((model(inputs).argmax(dim=-1) == labels).double().mean())


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, labels: Tensor) -> float:
    """Take one step on cross entropy; return the loss before it."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def train_model(
    model: Model,
    *,
    train_fraction: float = 0.5,
    epochs: int = 1000,
    lr: float = 1e-2,
    weight_decay: float = 1e-4,
    seed: int = 0,
) -> dict[str, list[float]]:
    """Train by AdamW on full batches; return the losses, and the accuracies on the validation pairs."""
    inputs, labels = create_full_dataset(model.config.p), create_labels(model.config.p)
    train, val = create_train_val_split(model.config.p, train_fraction, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
    history: dict[str, list[float]] = {"loss": [], "val_acc": []}
    for _ in range(epochs):
        history["loss"].append(train_step(model, optimizer, inputs[train], labels[train]))
        history["val_acc"].append(compute_accuracy(model, inputs[val], labels[val]))
    return history
