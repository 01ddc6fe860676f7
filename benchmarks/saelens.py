"""Compares assay with the real SAELens on raw activations of SmolLM2-135M, both ways, for every coder.

    PYTHONPATH=src .venv-peers/bin/python benchmarks/saelens.py        (`make peers` makes .venv-peers)

Ours are trained on the study's rows, which are centred and scaled, stored, exported with `save_saelens`, and loaded by
SAELens. Theirs are trained by SAELens on raw rows, saved by it, and loaded with `load_saelens`. Both libraries code the
same raw test rows of layer 15: L0 and the fraction of variance unexplained must agree to 1e-3 (L0 as a share of it).
`unfolded` is the FVU of an export that leaves centring and scale out, as exports once did.
"""

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from assay.core.store import Store
from assay.core.study import Outcome
from assay.metrics.sparsity import RidgeDecoder, fraction_unexplained, l0, ridge_decoder
from assay.nn.preparation import Preparation
from assay.nn.random import initialised_from, stream
from assay.sparse_coders.base import CoderModule, FittedCoder, TrainedCoder
from assay.studies.sae import load_saelens, save_saelens
from assay.studies.sae.sae import Sae, parsed
from assay.studies.sae.scoring import codes
from assay.studies.sae.weights import WEIGHTS, encoded, saved_module
from assay.train.coder_bank import CoderBank, CoderRecipe
from assay.vectors.activations import Activations

OURS = (
    "relu_l1:l1=1.5", "relu_l1:l1=0.01:form=spec", "topk:k=32", "batch_topk:k=32", "matryoshka:k=32",
    "jump_relu:bandwidth=1.0:threshold=1.0:l0=0.3", "gated:l1=4.0", "lse_infomax:lambda_lse=1000.0",
    "lse_infomax:scale=unit_norm:lambda_lse=10000.0", "random_relu", "fast_ica:rectified=true:rows=2000:iterations=10",
)  # fmt: skip
THEIRS: dict[str, dict[str, Any]] = {
    "standard": {"l1_coefficient": 1.0},
    "standard, b_dec not subtracted": {"l1_coefficient": 1.0, "apply_b_dec_to_input": False},
    "topk": {"k": 32},
    "topk, a checkpoint": {"k": 32},
    "topk, rows scaled": {"k": 32, "normalize_activations": "expected_average_only_in"},
    "batchtopk": {"k": 32},
    "matryoshka_batchtopk": {"k": 32, "matryoshka_widths": [72, 288, 1152]},
    "jumprelu": {"l0_coefficient": 0.3, "jumprelu_bandwidth": 1.0, "jumprelu_init_threshold": 1.0},
    "gated": {"l1_coefficient": 1.0},
    "gated, b_dec not subtracted": {"l1_coefficient": 1.0, "apply_b_dec_to_input": False},
}
UNITS, BATCH = 1152, 256
AGREES = 1e-3


class Rows(NamedTuple):
    """Raw rows, and those of the study."""

    preparation: Preparation
    train: Tensor
    """Prepared, as our coders see them."""
    test: Tensor
    raw_train: Tensor
    raw_test: Tensor


class Scores(NamedTuple):
    l0: float
    fvu: float


def rows(sequences: int, text: str, folder: Path) -> Rows:
    """Load the study's rows, and the raw ones that they were made from, as the model gave them."""
    data = Activations(model="smollm2-135m", hook="model.layers.15", text=text, sequences=sequences)
    found, tokens = data.load_with("cpu", folder), data.tokens()
    raw, per, tenth = data.rows(tokens, "cpu", folder), data.context - 1, len(tokens) // 10
    parts = raw[: -2 * tenth * per], raw[-tenth * per :]
    assert found.preparation is not None
    raw_train, raw_test = (part[found.preparation.usual(part)] for part in parts)
    assert len(raw_test) == len(found.test)
    return Rows(found.preparation, found.train.x, found.test.x, raw_train, raw_test)


def ours(word: str, x: Rows, units: int, epochs: int) -> CoderModule:
    (coder,) = parsed([word])
    if isinstance(coder, FittedCoder):
        return coder.fit(x.train, units, 0)
    assert isinstance(coder, TrainedCoder)
    bank = CoderBank([coder], [0], [1e-3], x.train, units, CoderRecipe(epochs=epochs, batch=BATCH, partial=False))
    for _ in bank.run():
        pass
    return bank.model(0)


def stored(word: str, module: CoderModule, x: Rows, folder: Path) -> CoderModule:
    """What comes back of a coder that a run stored."""
    run = Sae(coders=parsed([word]), seeds=(0,)).plan()[0]
    kept = {WEIGHTS: encoded(module, torch.zeros(module.d_code), x.preparation)}
    return saved_module(Store(folder / "results").commit(Outcome(run, {}, artifacts=kept)))


@torch.no_grad()
def by_assay(module: CoderModule, x: Tensor, decoder: RidgeDecoder | None = None) -> Scores:
    code = codes(module, x)
    return Scores(l0(code), fraction_unexplained(x, decoder.decode(code) if decoder else module.decode(code[None])[0]))


@torch.no_grad()
def by_saelens(folder: Path, x: Tensor) -> Scores:
    import sae_lens

    peer = sae_lens.SAE.load_from_disk(folder)
    code = peer.encode(x)
    return Scores(l0(code), fraction_unexplained(x, peer.decode(code)))


def theirs(name: str, options: dict[str, Any], x: Rows, steps: int, folder: Path) -> None:
    """Train with SAELens's own trainer on raw rows, and save with its own functions."""
    from sae_lens.config import SAETrainerConfig
    from sae_lens.registry import get_sae_training_class
    from sae_lens.training.sae_trainer import SAETrainer

    made, config = get_sae_training_class(name.partition(",")[0])
    with initialised_from(0, "init"):
        sae = made(config(d_in=x.raw_train.shape[1], d_sae=UNITS, **options))
    rng = stream(0, "order")

    def batches() -> Iterator[Tensor]:
        while True:
            yield x.raw_train[torch.randint(len(x.raw_train), (BATCH,), generator=rng)]

    how = SAETrainerConfig(
        total_training_samples=steps * BATCH, train_batch_size_samples=BATCH, lr=1e-3, lr_end=1e-4,
        n_batches_for_norm_estimate=16,
    )  # fmt: skip
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
        trained = SAETrainer(cfg=how, sae=sae, data_provider=batches()).fit()
    (trained.save_model if name.endswith("checkpoint") else trained.save_inference_model)(folder)


def line(name: str, way: str, real: Scores, mine: Scores, unfolded: float | None) -> bool:
    met = abs(real.fvu - mine.fvu) <= AGREES and abs(real.l0 - mine.l0) <= AGREES * mine.l0
    before = "" if unfolded is None else f"{unfolded:.4f}"
    numbers = f"{real.l0:.3f} | {mine.l0:.3f} | {real.fvu:.4f} | {mine.fvu:.4f} | {before}"
    print(f"| `{name}` | {way} | {numbers} |{'' if met else '  MISSED'}", flush=True)
    return met


def export(word: str, x: Rows, folder: Path, units: int, epochs: int) -> bool:
    module = ours(word, x, units, epochs)
    back = stored(word, module, x, folder)
    decoder = None if module.has_decoder else ridge_decoder(codes(module, x.train), x.train)
    mine = by_assay(module, x.test, decoder)
    save_saelens(back, folder / "folded", decoder=decoder)
    back.preparation = None
    save_saelens(back, folder / "unfolded", decoder=decoder)
    real, unfolded = by_saelens(folder / "folded", x.raw_test), by_saelens(folder / "unfolded", x.raw_test)
    return line(word if units == UNITS else f"{word}, {units} units", "ours to SAELens", real, mine, unfolded.fvu)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sequences", type=int, default=40, help="of 128 tokens; 8 in 10 to train on, 1 to report on")
    parser.add_argument("--text", default="pydoc", help="a text file or a text that has a name")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--way", choices=("both", "ours", "theirs"), default="both", help="whose coders")
    parser.add_argument("--rows", type=Path, help="a folder to keep the activations in")
    given = parser.parse_args()
    torch.set_num_threads(1)
    import sae_lens

    with tempfile.TemporaryDirectory() as temporary:
        x = rows(given.sequences, given.text, given.rows or Path(temporary) / "rows")
        print(f"sae-lens {sae_lens.__version__}, torch {torch.__version__}; layer 15 of SmolLM2-135M, {given.text}: ")
        print(f"{len(x.train):,} rows to train on, {len(x.test):,} to report on, {UNITS} units\n")
        print("| coder | direction | L0 SAELens | L0 assay | FVU SAELens | FVU assay | unfolded |")
        print("|---|---|---|---|---|---|---|")
        met = []
        for number, word in enumerate(OURS if given.way != "theirs" else ()):
            met += [export(word, x, Path(temporary) / f"o{number}", UNITS, given.epochs)]
        if given.way != "theirs":
            met += [export("topk:k=32", x, Path(temporary) / "wide", 4608, given.epochs)]
        for number, (name, options) in enumerate(THEIRS.items() if given.way != "ours" else ()):
            folder = Path(temporary) / f"t{number}"
            theirs(name, options, x, given.epochs * len(x.train) // BATCH, folder)
            real = by_saelens(folder, x.raw_test)
            met += [line(name, "SAELens to ours", real, by_assay(load_saelens(folder), x.raw_test), None)]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
