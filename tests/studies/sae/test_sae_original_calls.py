"""Calls, checkpoints and files as a user of the original encoder study has them: order, defaults, names and words."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from assay.core.errors import UserError
from assay.nn.random import stream
from assay.studies import sae
from assay.studies.sae.config import load_config, parse_config

BENCHMARK = """
models:
  - {name: ours, type: encoder_lse_infomax}
  - {name: baseline_sae, type: standard_sae, l1_weight: 0.01}
model: {input_dim: 784, hidden_dim: 64, activation: relu}
loss: {lambda_lse: 1.0, lambda_var: 1.0, lambda_tc: 1.0, lambda_wr: 0.0, variance_eps: 1.0e-6}
training: {epochs: 100, batch_size: 128, lr: 0.001, optimizer: adam}
data: {dataset: mnist, data_dir: "E:/ml_datasets"}
seeds: [1, 2, 3, 4, 5]
"""
"""The words of the original's config/benchmark.yaml."""


def rows(*shape: int, name: str = "x") -> torch.Tensor:
    return torch.randn(*shape, generator=stream(0, name))


class TestMetrics:
    def test_the_input_comes_first_where_a_code_is_turned_back(self) -> None:
        x, a, W = rows(20, 9), rows(20, 4, name="a"), rows(4, 9, name="W")
        assert sae.reconstruction_mse(x, a, W) == pytest.approx((x - a @ W).square().mean().item())
        guess = a / a.norm(dim=1, keepdim=True) @ W
        guess = guess / guess.norm(dim=1, keepdim=True) * x.norm(dim=1, keepdim=True)
        found = sae.normalized_reconstruction_mse(x, a, W)
        assert found == pytest.approx((x - guess).square().mean().item(), rel=1e-5)
        everything = sae.compute_all_metrics(a, W, x, torch.softmax(-a, dim=1))
        assert everything["reconstruction_mse"] == sae.reconstruction_mse(x, a, W)

    def test_the_threshold_of_dead_units_is_an_argument(self) -> None:
        a = rows(500, 3, name="a") * torch.tensor([1.0, 0.5, 0.01])
        assert sae.dead_units(a) == 1
        assert sae.dead_units(a, 0.5) == sae.dead_units(a, threshold=0.5) == 2
        assert sae.dead_units(a, threshold=0.0) == 0

    def test_sparsity_is_the_count_and_the_share(self) -> None:
        l0, density = sae.sparsity_l0(torch.tensor([[0.0, 0.2], [0.3, 0.4]]))
        assert (l0, density) == (1.5, 0.75)

    @pytest.mark.parametrize(
        ("name", "wanted"),
        [
            ("reconstruction_mse", "x, a, W"),
            ("normalized_reconstruction_mse", "x, a, W"),
            ("dead_units", "a, threshold=0.01"),
            ("sparsity_l0", "a, threshold=0.01"),
            ("compute_all_metrics", "a, W, x, r"),
            ("linear_probe_accuracy", "train_features, train_labels, test_features, test_labels"),
            ("variance_loss", "a, eps=1e-06"),
            ("combined_loss", "a, W, config=None"),
            ("sae_loss", "x, recon, a, l1_weight=0.01"),
            ("train_epoch", "model, loader, optimizer, loss_config=None, device='cpu'"),
            ("evaluate", "model, loader, loss_config=None, device='cpu'"),
            (
                "train",
                "model, train_loader, test_loader, config, device=None, checkpoint_dir=None, verbose=True",
            ),
            (
                "get_synthetic_loader",
                "n_samples=10000, n_features=784, n_components=10, batch_size=128, noise_std=0.1, seed=42",
            ),
        ],
    )
    def test_arguments_have_the_originals_order_and_defaults(self, name: str, wanted: str) -> None:
        found = inspect.signature(getattr(sae, name)).parameters.values()
        said = (p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in found)
        assert ", ".join(said) == wanted


class TestModels:
    def test_an_encoder_says_its_activation(self) -> None:
        model = sae.Encoder(5, 3, activation="softplus")
        assert model.activation_name == "softplus" and sae.Encoder(5, 3).activation_name == "relu"
        z = rows(4, 3)
        assert torch.equal(model.activation(z), torch.nn.functional.softplus(z))
        with pytest.raises(ValueError, match="Unknown activation"):
            sae.Encoder(5, 3, activation="tanh")  # type: ignore[arg-type]

    def test_checkpoints_of_the_original_load(self) -> None:
        """Its keys: linear.* of an encoder; encoder.0.* and decoder.* of an autoencoder."""
        W, b, out, c = rows(3, 5, name="W"), rows(3, name="b"), rows(5, 3, name="out"), rows(5, name="c")
        encoder = sae.Encoder(5, 3)
        encoder.load_state_dict({"linear.weight": W, "linear.bias": b})
        assert torch.equal(encoder.get_weights(), W)
        model = sae.StandardSAE(5, 3)
        original = {"encoder.0.weight": W, "encoder.0.bias": b, "decoder.weight": out, "decoder.bias": c}
        model.load_state_dict(original)
        x = rows(4, 5)
        torch.testing.assert_close(model.encode(x), (x @ W.T + b).relu())
        assert torch.equal(model.encoder[0].weight, W) and list(model.state_dict()) == list(original)
        ours = {key.replace("encoder.0.", "encoder."): value for key, value in original.items()}
        older = sae.StandardSAE(5, 3)
        older.load_state_dict(ours)
        assert torch.equal(older.get_encoder_weights(), W), "what assay wrote before loads too"


class TestFiles:
    def test_the_originals_benchmark_runs(self, cli: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
        (tmp_path / "benchmark.yaml").write_text(BENCHMARK)
        words = ["--dataset", "digits", "--epochs", "1", "--seeds", "1", "--output-dir", tmp_path / "b", "--l1_weights"]
        place = ["--device", "cpu", "--executor", "serial", "--quiet", "--out", tmp_path]
        code, _, err = cli("sae", "benchmark", "--config", tmp_path / "benchmark.yaml", *words, *place)
        assert code == 0, err
        found = json.loads((tmp_path / "b" / "benchmark_results.json").read_text())
        assert list(found) == ["ours", "baseline_sae", "per_seed", "config"], "named as the file names them"
        state = torch.load(tmp_path / "b/checkpoints/baseline_sae_seed1/model.pt", weights_only=True)
        assert set(state) == {"encoder.0.weight", "encoder.0.bias", "decoder.weight", "decoder.bias"}

    def test_its_types_are_the_coders_of_the_shipped_file(self) -> None:
        theirs, ours = parse_config(BENCHMARK, where="b").models(), load_config("benchmark").models()
        assert list(theirs.values()) == list(ours.values())

    def test_a_windows_folder_in_a_file_is_told_and_the_usual_places_are_searched(
        self, cli: Callable[..., tuple[int, str, str]], tmp_path: Path
    ) -> None:
        file = tmp_path / "benchmark.yaml"
        file.write_text(BENCHMARK)
        code, out, err = cli("sae", "benchmark", "--config", file, "--dry-run", "--device", "cpu", "--l1_weights")
        assert code == 0 and "10 planned" in err + out
        assert (err + out).count("E:/ml_datasets is a folder of Windows") == 1
        file.write_text(BENCHMARK.replace("E:/ml_datasets", "/no/such/folder"))
        code, _, err = cli("sae", "benchmark", "--config", file, "--dry-run", "--device", "cpu")
        assert code != 0 and "'/no/such/folder' does not exist" in err

    @pytest.mark.parametrize("key", ["encoder.0.weight", "encoder.weight"])
    def test_the_sixth_figure_is_drawn_from_checkpoints_old_and_new(
        self, key: str, cli: Callable[..., tuple[int, str, str]], tmp_path: Path
    ) -> None:
        folder = tmp_path / "results/benchmark/checkpoints/standard_sae_seed1"
        folder.mkdir(parents=True)
        torch.save({key: rows(4, 784, name="W")}, folder / "model.pt")
        words: list[Any] = ["--results-dir", tmp_path / "results", "--output-dir", tmp_path, "--figure", "6"]
        code, _, err = cli("sae", "figures", *words, "--quiet")
        assert code == 0 and (tmp_path / "fig6_sae_features.pdf").is_file(), err


class TestTraining:
    CONFIG: ClassVar = {"training": {"epochs": 2, "optimizer": "Adam"}, "loss": {"lambda_tc": 0.5, "l1_weight": 0.01}}

    @pytest.mark.parametrize("kind", [sae.Encoder, sae.StandardSAE])
    def test_batches_with_or_without_labels_and_one_config_for_both_models(
        self, kind: type, capsys: pytest.CaptureFixture[str]
    ) -> None:
        x = rows(64, 10).relu()
        loaders: list[Any] = [[x[:32], x[32:]], [(x[:32],), (x[32:],)], [[x[:32], None], [x[32:], None]]]
        found = []
        for loader in loaders:
            sae.set_seed(0)
            found.append(sae.train(kind(10, 4), loader, loader, self.CONFIG, torch.device("cpu")))
        assert found[0] == found[1] == found[2] and len(found[0]["train_loss"]) == 2
        assert capsys.readouterr().out.count("epoch 2") == 3, "it reports unless told not to"

    def test_a_seed_is_that_of_torch_and_numpy(self) -> None:
        drawn = []
        for seed in (3, 3, 4):
            sae.set_seed(seed)
            drawn.append((torch.rand(()).item(), np.random.rand()))
        assert drawn[0] == drawn[1] != drawn[2]
        sae.set_seed(3)
        first = sae.get_synthetic(5, 4, 3, 0.1, None)[0]
        sae.set_seed(3)
        again = sae.get_synthetic(5, 4, 3, 0.1, None)[0]
        other = sae.get_synthetic(5, 4, 3, 0.1, None)[0]
        assert torch.equal(first, again) and not torch.equal(first, other)

    def test_arrays_are_probed_as_tensors_are(self) -> None:
        y = torch.arange(40) % 2
        z = rows(40, 3, name="z") + y[:, None]
        parts = (z[:20], y[:20], z[20:], y[20:])
        assert sae.linear_probe_accuracy(*(part.numpy() for part in parts)) == sae.linear_probe_accuracy(*parts)
        assert isinstance(sae.feature_similarity_matrix(z), np.ndarray)
        assert isinstance(sae.activation_correlation_matrix(z), np.ndarray)


def test_a_loss_of_an_unknown_name_is_refused() -> None:
    a, W = rows(9, 3, name="a"), rows(3, 5, name="W")
    assert set(sae.combined_loss(a, W, {"lambda_lse": 1.0, "lambda_var": 1.0, "lambda_tc": 1.0})) == {
        "total", "lse", "var", "tc", "wr", "responsibilities",
    }  # fmt: skip
    with pytest.raises(UserError, match="lambda_tc"):
        sae.combined_loss(a, W, {"lambda_t": 1.0})
