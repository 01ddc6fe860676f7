"""The spec's loop (its tests/test_training.py), and the bank against it."""

import json
from pathlib import Path

import pytest
import torch

from assay.core.errors import UserError
from assay.nn.random import initialised_from
from assay.sparse_coders.lse_infomax import LseInfomax
from assay.studies.sae import Encoder, StandardSAE, evaluate, get_synthetic_loader, train, train_epoch
from assay.studies.sae.spec.data import ResidentLoader
from assay.train.coder_bank import CoderBank, CoderRecipe
from assay.vectors import vectors


def loaders(batch: int = 64) -> tuple[ResidentLoader, ResidentLoader]:
    data = vectors.parse("digits").load()
    return (
        ResidentLoader(data.train.x, data.train.labels, batch, shuffle=True),
        ResidentLoader(data.test.x, data.test.labels, batch, shuffle=False),
    )


def fresh(kind: type = Encoder) -> Encoder | StandardSAE:
    with initialised_from(0, "init"):
        return kind(64, 16)


class TestIntegration:
    def test_full_pipeline(self, tmp_path: Path) -> None:
        history = train(fresh(), *loaders(), {"training": {"epochs": 3, "lr": 1e-2}}, checkpoint_dir=tmp_path)
        names = ("dead_units", "redundancy_score", "reconstruction_mse", "sparsity_l0")
        assert set(history) == {"train_loss", "test_loss", *(f"test_{name}" for name in names)}
        assert all(len(values) == 3 for values in history.values())
        assert history["train_loss"][-1] < history["train_loss"][0]
        assert json.loads((tmp_path / "history.json").read_text()) == history, "numbers, no tuples"
        model = Encoder(64, 16)
        model.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))

    def test_standard_sae_pipeline(self) -> None:
        history = train(
            fresh(StandardSAE), *loaders(), {"training": {"epochs": 3, "lr": 1e-2}, "loss": {"l1_weight": 0.01}}
        )
        assert history["test_reconstruction_mse"][-1] < history["test_reconstruction_mse"][0]

    def test_lse_alone_collapses_and_infomax_prevents_it(self) -> None:
        found = {}
        for name, loss in {"A": {"lambda_var": 0.0, "lambda_tc": 0.0}, "C": {}}.items():
            model, (learn, test) = fresh(), loaders()
            train(model, learn, test, {"training": {"epochs": 12, "lr": 1e-2}, "loss": loss})
            found[name] = evaluate(model, test)
        assert found["A"]["dead_units"] == 16 and found["C"]["dead_units"] <= 2

    def test_the_bank_trains_the_same_model(self) -> None:
        """Batch for batch: the spec's loop is the oracle of the program that trains many."""
        data = vectors.parse("digits").load()
        bank = CoderBank([LseInfomax()], [0], [1e-3], data.train.x.double(), 16, CoderRecipe(epochs=2, batch=64))
        model = fresh().double()
        learn = ResidentLoader(data.train.x.double(), data.train.labels, 64, shuffle=True, seed=0)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for epoch in bank.run():
            plain = train_epoch(model, learn, optimizer)
            assert epoch.terms["total"][0] == pytest.approx(plain["loss"], abs=1e-6)
        torch.testing.assert_close(bank.model(0).W_enc[0], model.W, rtol=0, atol=1e-6)


def test_the_optimizer_of_a_config_is_the_one_used() -> None:
    """The original's scripts ignored it."""
    weights = {}
    for name in ("adam", "sgd"):
        model = fresh()
        train(model, *loaders(), {"training": {"epochs": 1, "lr": 1e-3, "optimizer": name}})
        weights[name] = model.get_weights()
    assert not torch.equal(weights["adam"], weights["sgd"])
    with pytest.raises(UserError, match="choose adam or sgd"):
        train(fresh(), *loaders(), {"training": {"optimizer": "adamw"}})


def test_training_does_not_touch_the_global_generator() -> None:
    before = torch.get_rng_state()
    loader, _ = get_synthetic_loader(n_samples=100, n_features=64)
    train_epoch(fresh(), loader, torch.optim.SGD(fresh().parameters(), lr=0.1))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("epochs", [0, -1, 2.5, "3", True])
def test_epochs_must_be_a_positive_whole_number(epochs: object) -> None:
    with pytest.raises(UserError, match="epochs"):
        train(fresh(), *loaders(), {"training": {"epochs": epochs}})


def test_a_rest_of_one_row_leaves_the_model_finite_and_every_row_evaluated() -> None:
    data = vectors.parse("digits").load()
    x, y = data.train.x[:65], data.train.labels[:65]
    learn, test = (ResidentLoader(x, y, 64, shuffle=shuffle) for shuffle in (True, False))
    assert [len(rows) for rows, _ in learn] == [64] and [len(rows) for rows, _ in test] == [65]
    assert len(learn) == len(test) == 1
    model = fresh()
    history = train(model, learn, test, {"training": {"epochs": 2}})
    assert all(p.isfinite().all() for p in model.parameters())
    assert all(torch.tensor(values).isfinite().all() for values in history.values())
