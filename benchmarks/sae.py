"""Measures CPU time of training sparse coders on MNIST against the obvious way of writing it, on one thread.

    python benchmarks/sae.py bank --data shared/data    the bank against two plain loops (MNIST's IDX files or wheel)
    python benchmarks/sae.py bank                       without MNIST: rows of the same size, as sparse as its pixels
    python benchmarks/sae.py full --device cuda         the spec's whole ablation (4 x 3 x 100 epochs), seconds of a GPU

Each measurement prints a ratio, or seconds, and its goal; the exit code is 1 if any goal is missed. A goal that was
asked for and could not be measured is missed. Without a name it is `bank`, and with `--device cuda` both.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from measuring import asked, parser_of, verdict
from torch import Tensor

from assay.core.errors import UserError
from assay.core.run import Numerics
from assay.data.places import FOLDER
from assay.nn.random import initialised_from, stream
from assay.sparse_coders.lse_infomax import LseInfomax
from assay.studies.sae.spec.data import ResidentLoader
from assay.studies.sae.spec.model import Encoder
from assay.studies.sae.spec.training import train_epoch
from assay.train.coder_bank import CoderBank, CoderRecipe
from assay.train.device import activate
from assay.vectors.mnist import Mnist

CONFIG = {"lambda_lse": 1.0, "lambda_var": 1.0, "lambda_tc": 1.0, "lambda_wr": 0.0}
BATCH, STEPS, ROUNDS = 128, 40, 4
ABLATIONS = {
    "lse_only": LseInfomax(lambda_var=0.0, lambda_tc=0.0),
    "lse_var": LseInfomax(lambda_tc=0.0),
    "lse_var_tc": LseInfomax(),
    "var_tc_only": LseInfomax(lambda_lse=0.0),
}
"""A, B, C and D of the paper."""


def rows(count: int) -> tuple[Tensor, str]:
    """Load MNIST, or draw rows of its size with as many dark columns."""
    try:
        return Mnist(validation=0).load().train.x[:count], "MNIST"
    except UserError as error:
        print(f"({error} Rows like MNIST's instead.)")
        rng = stream(0, "rows")
        x = torch.rand(count, 784, generator=rng) * (torch.rand(count, 784, generator=rng) < 0.2)
        x[:, torch.randperm(784, generator=rng)[:67]] = 0
        return x, "random rows"


def per_image(x: Tensor) -> Iterator[Tensor]:
    """Yield batches as torchvision's transforms and a DataLoader without workers do: an image at a time."""
    images, labels = (255 * x).round().to(torch.uint8).view(-1, 28, 28).numpy(), torch.zeros(len(x))

    class Images(torch.utils.data.Dataset[tuple[Tensor, int]]):
        def __len__(self) -> int:
            return len(images)

        def __getitem__(self, place: int) -> tuple[Tensor, int]:
            from PIL import Image

            # The steps of torchvision's MNIST, ToTensor and a flattening Lambda for one image.
            picture = Image.fromarray(images[place])
            pixels = torch.from_numpy(np.array(picture, copy=True)).view(28, 28, 1)
            return pixels.permute((2, 0, 1)).contiguous().to(torch.float32).div(255).view(-1), int(labels[place])

    loader = torch.utils.data.DataLoader(Images(), batch_size=BATCH, shuffle=True)
    while True:
        for batch, _ in loader:
            yield batch


def resident(x: Tensor) -> Iterator[Tensor]:
    rng = stream(0, "order")
    while True:
        for some in torch.randperm(len(x), generator=rng).split(BATCH):
            if len(some) == BATCH:
                yield x[some]


def spec_loss(a: Tensor, W: Tensor) -> dict[str, Tensor]:
    """Compute the spec's combined loss by its formula: four terms, each times its weight."""
    lse = -torch.logsumexp(-a, dim=1).sum()
    responsibilities = torch.softmax(-a, dim=1)
    var = -torch.log(a.var(dim=0) + 1e-6).sum()
    centred = a - a.mean(dim=0)
    deviation = a.std(dim=0) + 1e-8
    corr = (centred.T @ centred / (len(a) - 1)) / (deviation[:, None] * deviation)
    tc = (corr - torch.diag(corr.diag())).square().sum()
    rows = W / (W.norm(dim=1, keepdim=True) + 1e-8)
    wr = (rows @ rows.T - torch.eye(len(W))).square().sum()
    terms = {"lse": lse, "var": var, "tc": tc, "wr": wr}
    total = sum((CONFIG[f"lambda_{name}"] * term for name, term in terms.items()), start=torch.zeros(()))
    return {"total": total, **terms, "responsibilities": responsibilities}


def plain(batches: Iterator[Tensor]) -> Iterator[None]:
    """Train one model the obvious way: autograd, every term of the loss, losses read after every step."""
    with initialised_from(0, "init"):
        model = Encoder(784, 64)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x in batches:
        a, _ = model(x)
        losses = spec_loss(a, model.W)
        optimizer.zero_grad()
        losses["total"].backward()
        optimizer.step()
        [losses[name].item() for name in ("total", "lse", "var", "tc")]
        yield


def shipped(x: Tensor) -> Iterator[None]:
    """Train by the spec's loop as assay ships it (studies.sae.spec.training.train_epoch), an epoch at a time."""
    with initialised_from(0, "init"):
        model = Encoder(784, 64)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = ResidentLoader(x, torch.zeros(len(x), dtype=torch.long), BATCH, shuffle=True)
    while True:
        train_epoch(model, loader, optimizer, CONFIG)
        yield


def bank_of_twelve(x: Tensor, epochs: int = 10**6) -> CoderBank:
    coders = [coder for _ in range(3) for coder in ABLATIONS.values()]
    seeds = [seed for seed in range(3) for _ in ABLATIONS]
    return CoderBank(coders, seeds, [1e-3] * 12, x, 64, CoderRecipe(epochs=epochs, batch=BATCH))


def cpu_ms(work: Iterator[object], steps: int) -> float:
    start = time.process_time()
    for _ in range(steps):
        next(work)
    return 1e3 * (time.process_time() - start) / steps


def bank(device: str) -> bool:
    """Compare a bank of 12 models (4 ablations x 3 seeds) with one model at a time, per step and model."""
    x, what = rows(BATCH * STEPS)
    try:
        import PIL  # noqa: F401

        slow = plain(per_image(x))
    except ImportError:
        slow = None
    middle, own = plain(resident(x)), shipped(x)
    epochs = bank_of_twelve(x).run()
    found = []
    with activate(Numerics()):
        for _ in range(ROUNDS):  # in turn, so that other processes slow all alike
            times = [cpu_ms(slow, STEPS) if slow else float("nan"), cpu_ms(middle, STEPS)]
            found.append([*times, cpu_ms(own, 1) / STEPS, cpu_ms(epochs, 1) / STEPS / 12])
    loader, loop, epoch, ours = (min(column) for column in zip(*found[1:], strict=True))
    print(
        f"{what}, ms per step and model: per-image loader {loader:.2f}, resident loop {loop:.2f}, "
        f"assay's train_epoch {epoch:.2f}, bank {ours:.2f}"
    )
    print(f"bank: {epoch / ours:.1f}x less CPU than the train_epoch that ships with assay (no goal)")
    met = [
        verdict(
            f"bank: {loop / ours:.1f}x less CPU than the plain loop on resident rows",
            goal="4.5x",
            met=loop / ours >= 4.5,
        )
    ]
    if slow is None:
        met.append(verdict("bank: no Pillow, so no per-image loader", goal="18x, not measured", met=False))
    else:
        met.append(
            verdict(
                f"bank: {loader / ours:.1f}x less than with a per-image loader", goal="18x", met=loader / ours >= 18
            )
        )
    return all(met)


def full(device: str) -> bool:
    """Time the spec's whole ablation on MNIST: 4 configurations x 3 seeds x 100 epochs of 60,000 rows."""
    if device != "cuda" or not torch.cuda.is_available():
        return verdict("full: needs --device cuda and a GPU", goal="at most 30 s, not measured", met=False)
    x, what = rows(60_000)
    with activate(Numerics(device="cuda")):
        trained = bank_of_twelve(x.cuda(), epochs=100)
        torch.cuda.synchronize()
        start = time.perf_counter()
        *_, last = trained.run()
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    losses = [round(value, 1) for value in last.terms["total"][: len(ABLATIONS)]]
    print(f"{what} on {torch.cuda.get_device_name()}: losses after 100 epochs {losses}")
    return verdict(f"full ablation: {seconds:.1f} s", goal="at most 30 s", met=seconds <= 30)


MEASUREMENTS = {function.__name__: function for function in (bank, full)}


def main() -> int:
    parser = parser_of(__doc__, MEASUREMENTS)
    parser.add_argument("--data", type=Path, help="the folder that has MNIST; the environment variable ASSAY_DATA too")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args()
    names = args.names or ["bank", *(["full"] if args.device == "cuda" else [])]
    asked(parser, names, MEASUREMENTS)
    if args.data:
        os.environ[FOLDER] = str(args.data)
    torch.set_num_threads(1)
    met = [MEASUREMENTS[name](args.device) for name in names]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
