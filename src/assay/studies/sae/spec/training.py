"""The spec's loop over one model; tests compare it with assay.train.coder_bank, which trains many at a time."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.core.errors import UserError
from assay.core.store import write_file
from assay.studies.sae.spec import metrics
from assay.studies.sae.spec.losses import combined_loss, sae_loss
from assay.studies.sae.spec.model import Encoder, StandardSAE

Loader = Iterable[Tensor | Sequence[Tensor]]
Device = str | torch.device


def set_seed(seed: int) -> None:
    """Seed the global generators of torch and NumPy, for the spec's scripts; assay itself passes generators."""
    torch.manual_seed(seed)
    np.random.seed(seed)


def _rows(loader: Loader, device: Device) -> Iterator[Tensor]:
    """The inputs of each batch: the batch itself, or its first part where it has labels too."""
    for batch in loader:
        yield (batch if isinstance(batch, Tensor) else batch[0]).to(device)


def _losses(model: Encoder | StandardSAE, x: Tensor, config: Mapping[str, float]) -> tuple[dict[str, Tensor], Tensor]:
    """The terms of a model's loss and its code. One `loss` section serves both models: l1_weight is for the second."""
    if isinstance(model, StandardSAE):
        recon, a = model(x)
        return sae_loss(x, recon, a, **({"l1_weight": config["l1_weight"]} if "l1_weight" in config else {})), a
    a, _ = model(x)
    return combined_loss(a, model.W, {name: value for name, value in config.items() if name != "l1_weight"}), a


def train_epoch(
    model: Encoder | StandardSAE,
    loader: Loader,
    optimizer: torch.optim.Optimizer,
    loss_config: Mapping[str, float] | None = None,
    device: Device = "cpu",
) -> dict[str, float]:
    """Train for one pass; return each term's mean over batches. The device is synchronised once, at the end."""
    model.train()
    sums: dict[str, Tensor] = {}
    batches = 0
    for x in _rows(loader, device):
        losses, _ = _losses(model, x, loss_config or {})
        optimizer.zero_grad()
        losses["total"].backward()
        optimizer.step()
        for name, term in losses.items():
            if name != "responsibilities":
                sums[name] = sums.get(name, torch.zeros((), device=device)) + term.detach()
        batches += 1
    means = {name: float(total / batches) for name, total in sums.items()}
    return {"loss": means.pop("total"), **means}


@torch.no_grad()
def evaluate(
    model: Encoder | StandardSAE, loader: Loader, loss_config: Mapping[str, float] | None = None, device: Device = "cpu"
) -> dict[str, Any]:
    """Compute the metrics of all rows in one pass; `sparsity_l0` is a number here."""
    model.eval()
    rows, codes, losses, errors = [], [], [], []
    for x in _rows(loader, device):
        found, a = _losses(model, x, loss_config or {})
        losses.append(found["total"])
        if "mse" in found:
            errors.append(found["mse"] * len(x))
        rows.append(x)
        codes.append(a)
    a, x = torch.cat(codes), torch.cat(rows)
    W = model.get_encoder_weights() if isinstance(model, StandardSAE) else model.get_weights()
    mse = float(torch.stack(errors).sum() / len(x)) if errors else metrics.reconstruction_mse(x, a, W)
    return {
        "loss": float(torch.stack(losses).mean()),
        "dead_units": metrics.dead_units(a),
        "redundancy_score": metrics.redundancy_score(a),
        "sparsity_l0": metrics.sparsity_l0(a)[0],
        "weight_redundancy": metrics.weight_redundancy(W),
        "reconstruction_mse": mse,
        "responsibility_entropy": metrics.responsibility_entropy(torch.softmax(-a, dim=1)),
    }


def train(
    model: Encoder | StandardSAE,
    train_loader: Loader,
    test_loader: Loader,
    config: Mapping[str, Any],
    device: Device | None = None,
    checkpoint_dir: str | Path | None = None,
    verbose: bool = True,
) -> dict[str, list[float]]:
    """Train as `config["training"]` and `config["loss"]` say, on CUDA where there is one unless a device is named;
    writes model.pt and history.json if given a folder."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    training = {"epochs": 100, "lr": 1e-3, "optimizer": "adam", **config.get("training", {})}
    kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    optimizer_name = str(training["optimizer"]).lower()
    if optimizer_name not in kinds:
        raise UserError(f"training.optimizer '{training['optimizer']}': choose adam or sgd.")
    epochs = training["epochs"]
    if not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1:
        raise UserError(f"training.epochs {epochs!r}: a whole number, 1 or more.")
    model.to(device)
    optimizer = kinds[optimizer_name](model.parameters(), lr=training["lr"])
    loss = config.get("loss", {})
    history: dict[str, list[float]] = {}
    for number in range(1, epochs + 1):
        learned = train_epoch(model, train_loader, optimizer, loss, device)
        found = evaluate(model, test_loader, loss, device)
        history.setdefault("train_loss", []).append(learned["loss"])
        history.setdefault("test_loss", []).append(found["loss"])
        for name in ("dead_units", "redundancy_score", "reconstruction_mse", "sparsity_l0"):
            history.setdefault(f"test_{name}", []).append(found[name])
        if verbose:
            print(f"epoch {number}: loss {learned['loss']:.4f}, test {found['loss']:.4f}")
    if checkpoint_dir is not None:
        folder = Path(checkpoint_dir)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), folder / "model.pt")
        write_file(folder / "history.json", json.dumps(history, indent=1).encode())
    return history
