"""Measures CPU time of the modular-addition study against the obvious way of writing it, on one thread.

    python benchmarks/modular.py                 every measurement
    python benchmarks/modular.py training        one of them
    python benchmarks/modular.py sweep           on a GPU: the whole sweep of the spec with five seeds

Each measurement prints a ratio and its goal; the exit code is 1 if any goal is missed. `sweep` has to be named.
"""

import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from measuring import main, verdict
from torch import Tensor, nn

from assay.core.run import Numerics
from assay.studies.modular import core
from assay.studies.modular.bilinear import Model, addition_table, one_hot
from assay.studies.modular.bilinear_bank import BilinearBank, Recipe, fresh_models
from assay.studies.modular.metrics.frequency_law import frequency_law
from assay.studies.modular.metrics.spectra import js_divergence_matrix
from assay.studies.modular.metrics.tensor_similarity import activation_similarity_matrix, symmetric_similarity_matrix
from assay.train.device import activate

P = 64
WIDTHS = list(range(1, P + 1))


def cpu_seconds(work: Callable[[], object], *, rounds: int = 3) -> float:
    """Measure the best of some rounds after a warm-up, so that other processes matter little. Both sides of a ratio are
    timed by this, in as many rounds."""
    work()
    return min(once(work) for _ in range(rounds))


def once(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def times(what: str, ratio: float, *, goal: float) -> bool:
    return verdict(f"{what}: {ratio:.1f}x less CPU than the obvious loop", goal=f"{goal:g}x", met=ratio >= goal)


def models() -> list[Model]:
    return fresh_models(P, WIDTHS, [0] * P)


def plain_epoch(width: int) -> float:
    """Time one epoch of `Model.fit`: batches from a DataLoader, autograd, torch's AdamW, one model."""
    (model,) = fresh_models(P, [width], [0])
    train, val = core.make_dataloaders(P)
    return cpu_seconds(lambda: model.fit(train, val, epochs=1, verbose=False))


def indexed_epoch(width: int) -> float:
    """Time an epoch without a DataLoader: rows of a tensor, picked by a permutation."""
    (model,) = fresh_models(P, [width], [0])
    a, b, target = addition_table(P)
    inputs, rows = one_hot(a, b, P), torch.arange(3072)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)

    def epoch() -> None:
        for batch in rows[torch.randperm(len(rows))].split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[batch]), target[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            model(inputs[3072:]).argmax(dim=1)

    return cpu_seconds(epoch)


class AutogradBank(nn.Module):
    """All widths padded to the widest and trained as one program, with gradients left to autograd."""

    def __init__(self, given: Sequence[Model]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(len(given), 2 * P, 2 * P))
        self.readout = nn.Parameter(torch.zeros(len(given), P, P))
        with torch.no_grad():
            for place, model in enumerate(given):
                d = model.config.width
                self.table[place, :, :d], self.table[place, :, P : P + d] = model.w_l.T, model.w_r.T
                self.readout[place, :d] = model.w_p.T

    def forward(self, picks: Tensor) -> Tensor:
        sides = nn.functional.embedding_bag(picks, self.table.flatten(0, 1), mode="sum")
        left, right = sides.view(len(self.table), -1, 2, P).unbind(dim=2)
        return (left * right) @ self.readout

    def epoch(self, optimizer: torch.optim.Optimizer) -> Tensor:
        """Train on all but the validation pairs, as the plain loop does; return accuracies on these by model."""
        train, val = torch.arange(P * P).split([3072, P * P - 3072])
        for rows in train[torch.randperm(len(train))].split(64):
            answers = ((rows // P + rows % P) % P).repeat(len(self.table))
            optimizer.zero_grad()
            logits = self(self.picks(rows)).flatten(0, 1)
            (nn.functional.cross_entropy(logits, answers, reduction="sum") / 64).backward()
            optimizer.step()
        with torch.no_grad():
            return (self(self.picks(val)).argmax(dim=-1) == (val // P + val % P) % P).double().mean(dim=1)

    def picks(self, rows: Tensor) -> Tensor:
        start = 2 * P * torch.arange(len(self.table))[:, None]
        return torch.stack([start + rows // P, start + P + rows % P], dim=-1).flatten(0, 1)


def training() -> bool:
    """Compare an epoch of 64 widths at P = 64: 48 steps of 64 pairs, and validation."""
    some = WIDTHS[::9]
    plain, indexed = (np.mean([epoch(width) for width in some]) * P for epoch in (plain_epoch, indexed_epoch))
    with activate(Numerics()):
        epochs = BilinearBank(models(), [0] * P, Recipe()).run()
        written = cpu_seconds(lambda: next(epochs))
        bank = AutogradBank(models())
        optimizer = torch.optim.AdamW(bank.parameters(), lr=3e-3, weight_decay=1e-4, fused=True)
        autograd = cpu_seconds(lambda: bank.epoch(optimizer))
    print(
        f"epoch of 64 widths: obvious {plain:.2f} s (without a DataLoader {indexed:.2f} s), one program with autograd "
        f"{autograd:.2f} s, with written gradients {written:.2f} s"
    )
    print(f"against the loop without a DataLoader: {indexed / autograd:.1f}x and {indexed / written:.1f}x")
    met = times("training, one program, autograd", plain / autograd, goal=5)
    return times("training, one program, written gradients", plain / written, goal=8) and met


def plain_tn(given: Sequence[Model]) -> np.ndarray:
    """Compute inner products of the factors pair by pair, and norms again for every pair."""

    def inner(one: Model, other: Model) -> Tensor:
        straight = (one.w_l @ other.w_l.T) * (one.w_r @ other.w_r.T)
        crossed = (one.w_l @ other.w_r.T) * (one.w_r @ other.w_l.T)
        return torch.trace(0.5 * (straight + crossed) @ (other.w_p.T @ one.w_p))

    found = np.eye(len(given))
    for i, one in enumerate(given):
        for j, other in enumerate(given[:i]):
            cosine = inner(one, other) / torch.sqrt(inner(one, one) * inner(other, other))
            found[i, j] = found[j, i] = cosine.item()
    return found


@torch.no_grad()
def tn() -> bool:
    given = models()
    plain = cpu_seconds(lambda: plain_tn(given))
    met = True
    for dtype, goal in ((torch.float32, 40), (torch.float64, 20)):
        ours = cpu_seconds(lambda dtype=dtype: symmetric_similarity_matrix(given, dtype=dtype))
        what = f"TN matrix of 64 models, {str(dtype)[6:]} ({plain:.2f} s, {ours:.3f} s)"
        met &= times(what, plain / ours, goal=goal)
    np.testing.assert_allclose(symmetric_similarity_matrix(given[:16]), plain_tn(given[:16]), atol=1e-5)
    return met


def plain_activation(given: Sequence[Model]) -> np.ndarray:
    """Compute all logits of each model from its one-hot inputs, then the mean cosine of each pair."""
    a, b, _ = addition_table(P)
    inputs = one_hot(a, b, P).to(given[0].w_p.dtype)
    logits = [model(inputs) for model in given]
    found = np.eye(len(given))
    for i, one in enumerate(logits):
        for j, other in enumerate(logits[:i]):
            scale = (one.norm(dim=1) + 1e-8) * (other.norm(dim=1) + 1e-8)
            found[i, j] = found[j, i] = ((one * other).sum(dim=1) / scale).mean().item()
    return found


@torch.no_grad()
def activation() -> bool:
    """Compare activation matrices. The goal was set in float32, as the obvious loop computes. The study's float64 has
    no goal: it is compared with the same loop, and with that loop in float64."""
    given, doubled = models(), [model.double() for model in models()]
    plain, plain_double = (cpu_seconds(lambda own=own: plain_activation(own)) for own in (given, doubled))
    single, double = (
        cpu_seconds(lambda dtype=dtype: activation_similarity_matrix(given, dtype=dtype))
        for dtype in (torch.float32, torch.float64)
    )
    met = times(f"activation matrix of 64 models, float32 ({plain:.2f} s, {single:.3f} s)", plain / single, goal=8)
    print(
        f"activation matrix of 64 models, float64, as the study has it ({plain:.2f} s, {double:.3f} s): "
        f"{plain / double:.1f}x less CPU than the obvious loop, {plain_double / double:.1f}x less than that loop in "
        f"float64 ({plain_double:.2f} s) (no goal)"
    )
    for dtype in (torch.float32, torch.float64):
        found = activation_similarity_matrix(given[:16], dtype=dtype)
        np.testing.assert_allclose(found, plain_activation(given[:16]), atol=1e-4)
    return met


def plain_js(given: Sequence[Model], dtype: torch.dtype) -> np.ndarray:
    """Follow the spec's steps: whole forms, their eigenvectors, a heatmap per model, divergences pair by pair and
    remainder by remainder."""
    laws = []
    for model in given:
        half = torch.einsum("ph,hi,hj->pij", *(w.to(dtype) for w in (model.w_p, model.w_l, model.w_r))) / 2
        values, vectors = torch.linalg.eigh(half + half.mT)
        law = []
        for value, vector in zip(values, vectors, strict=True):
            top = value.abs().argsort(descending=True)[:4]
            spectrum = torch.fft.rfft(vector[:P, top], dim=0).abs() @ value[top].abs()
            law.append(spectrum / spectrum.sum())
        laws.append(torch.stack(law).numpy().astype(np.float64))
    found = np.zeros((len(laws), len(laws)))
    for i, one in enumerate(laws):
        for j, other in enumerate(laws[:i]):
            for p, q in zip(one, other, strict=True):
                m = (p + q) / 2
                kl = [np.sum(x * np.log((x + 1e-12) / (m + 1e-12))) for x in (p, q)]
                found[i, j] += sum(kl) / 2
            found[j, i] = found[i, j]
    return found


@torch.no_grad()
def js() -> bool:
    given, met = models(), True
    for dtype, goal in ((torch.float32, 5.0), (torch.float64, 3.5)):

        def ours(dtype: torch.dtype = dtype) -> np.ndarray:
            return js_divergence_matrix(np.stack([frequency_law(model, dtype=dtype) for model in given]))

        plain = cpu_seconds(lambda dtype=dtype: plain_js(given, dtype), rounds=2)
        fast = cpu_seconds(ours, rounds=2)
        what = f"JS matrix of 64 models from weights, {str(dtype)[6:]} ({plain:.2f} s, {fast:.2f} s)"
        met &= times(what, plain / fast, goal=goal)
    np.testing.assert_allclose(
        js_divergence_matrix(np.stack([frequency_law(model) for model in given[40:48]])),
        plain_js(given[40:48], torch.float64),
        atol=1e-4,
    )
    return met


def sweep() -> bool:
    """Measure the wall time of a sweep on a GPU with all metrics: 64 widths, 5 seeds, 500 epochs at P = 64."""
    from assay.studies.modular import run_sweep

    start = time.perf_counter()
    found = run_sweep(P=P, dimensions=WIDTHS, seeds=range(5), device="cuda")
    seconds = time.perf_counter() - start
    print(f"sweep of {len(found.models)} models: {seconds:.0f} s (goal: at most 180 s)")
    return seconds <= 180


MEASUREMENTS = {function.__name__: function for function in (training, tn, activation, js)}
ALL = MEASUREMENTS | {"sweep": sweep}


if __name__ == "__main__":
    sys.exit(main(__doc__, ALL, default=list(MEASUREMENTS)))
