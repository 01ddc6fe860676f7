"""The spec's names: each is there, runs as the spec writes it, and leaves gradients on."""

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from assay.core.errors import UserError
from assay.core.run import Numerics
from assay.core.store import Store
from assay.studies import modular
from assay.studies.modular import compression, core
from assay.studies.modular.metrics.spectra import interaction_eigenvalues

QUICK = {"epochs": 3, "batch": 9}
pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def sweep_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "sweep_results_0401.pkl"
    compression.save_sweep_results(compression.run_sweep(P=7, dimensions=[1, 2, 4, 9], **QUICK), path)
    return path


@pytest.mark.parametrize("home", [compression, core], ids=lambda m: m.__name__)
def test_every_name_is_also_one_of_the_study(home: object) -> None:
    names = home.__all__  # type: ignore[attr-defined]
    assert names == sorted(names) and all(getattr(modular, name) is getattr(home, name) for name in names)
    with pytest.raises(AttributeError):
        importlib.import_module("assay.studies.modular").no_such_name  # noqa: B018


def test_the_quick_start_of_the_spec_runs(sweep_path: Path) -> None:
    from assay.studies.modular.compression import (
        load_or_compute_act_similarity,
        load_or_compute_js_divergence,
        load_or_compute_tn_similarity,
        load_sweep_results,
    )
    from assay.studies.modular.core import compare_metrics, cosine_similarity_to_metric

    models_state, val_acc, P = load_sweep_results(sweep_path)
    assert list(models_state) == list(val_acc) == [1, 2, 4, 9] and P == 7
    tn_sim, act_sim = load_or_compute_tn_similarity(sweep_path), load_or_compute_act_similarity(sweep_path)
    js_div = load_or_compute_js_divergence(sweep_path)
    assert tn_sim.shape == act_sim.shape == js_div.shape == (4, 4) and (js_div <= P * np.log(2)).all()
    kept = {path.name for path in sweep_path.parent.glob("*.npy")}
    assert kept == {"tn_similarity.npy", "act_similarity.npy", "js_divergence.npy"}
    D_tn, D_act = cosine_similarity_to_metric(tn_sim), cosine_similarity_to_metric(act_sim)
    results = compare_metrics(D_tn, D_act, name1="TN", name2="Activation")
    assert results["name1"] == "TN" and results["k_values"] == [1, 2, 3]


def test_the_frequency_notebook_of_the_spec_runs(sweep_path: Path) -> None:
    models_state, _, P = compression.load_sweep_results(sweep_path)
    int_mats = compression.compute_interaction_matrices(models_state, P)
    eigen_data = compression.compute_eigen_data(int_mats, P)
    assert int_mats[4].shape == (7, 14, 14) and eigen_data[4]["eigenvalues"].shape == (7, 14)
    heatmap = compression.compute_frequency_heatmap(eigen_data, d_hidden=9, P=7)
    assert heatmap.shape == (7, 4)
    assert core.compute_all_frequency_heatmaps(eigen_data, 7)[9].tolist() == heatmap.tolist()
    with pytest.raises(UserError, match="there are 1, 2, 4, 9"):
        compression.compute_frequency_heatmap(eigen_data, d_hidden=3, P=7)
    one = eigen_data[9]
    row = core.compute_frequency_distribution(one["eigenvalues"][2], one["eigenvectors"][2], 7)
    np.testing.assert_allclose(row, heatmap[2], atol=1e-6)


def test_run_sweep_trains_the_models_of_the_command(cli: object, tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    words = [
        "--preset",
        "spec",
        "--P",
        "7",
        "--dimensions",
        "2",
        "4",
        "--seeds",
        "0",
        "1",
        "--epochs",
        "3",
        "--batch",
        "9",
    ]
    tail = ["--device", "cpu", "--executor", "serial", "--quiet", "--out", tmp_path, "--save", path]
    code, _, err = cli("modular", "sweep", *words, *tail)  # type: ignore[operator]
    assert code == 0, err
    saved, accuracies, P = compression.load_sweep_results(path)
    trained = compression.run_sweep(P=7, dimensions=[4, 2], seeds=[0, 1], **QUICK)
    assert list(saved) == list(trained.models) == [(2, 0), (2, 1), (4, 0), (4, 1)] and accuracies == trained.val_accs
    assert all(torch.equal(saved[k][n], trained.models[k][n]) for k in saved for n in saved[k])
    assert list(compression.load_sweep_results(path, seed=1)[0]) == [2, 4] and P == 7
    assert len(Store(tmp_path).records("modular.sweep")) == 4


def test_what_cannot_be_is_refused_in_words(sweep_path: Path) -> None:
    models, _, _ = compression.load_sweep_results(sweep_path)
    eigen = compression.compute_eigen_data(compression.compute_interaction_matrices(models, 7), 7)
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("one width and one seed", lambda: compression.run_sweep(P=7, dimensions=[], **QUICK)),
        ("one width and one seed", lambda: compression.run_sweep(P=7, dimensions=[2], seeds=[], **QUICK)),
        ("lr=0", lambda: compression.run_sweep(P=7, dimensions=[2], lr=0.0, **QUICK)),
        ("weight_decay=-1", lambda: compression.run_sweep(P=7, dimensions=[2], weight_decay=-1.0, **QUICK)),
        ("P=7, not of P=8", lambda: compression.compute_interaction_matrices(models, 8)),
        ("no weight 'bi_linear.weight'", lambda: compression.compute_interaction_matrices({1: {}}, 7)),
        ("eigen, power, diagonal", lambda: compression.load_or_compute_js_divergence(sweep_path, kind="foo")),  # type: ignore[arg-type]
        ("n_evecs=0", lambda: compression.load_or_compute_js_divergence(sweep_path, n_evecs=0)),
        ("n_evecs=-1", lambda: compression.compute_frequency_heatmap(eigen, 4, 7, n_evecs=-1)),
    ]  # fmt: skip
    for said, call in wrong:
        with pytest.raises(UserError, match=said):
            call()
    assert list(compression.run_sweep(P=7, dimensions=[2, 2], seeds=[1, 1], **QUICK).models) == [2]


def test_a_sweep_is_trained_on_the_device_that_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without two GPUs: what is chosen is recorded, and the models are trained on the CPU."""
    chosen = list[str]()

    def device(which: object) -> object:
        chosen.append(str(which))
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(
        "assay.studies.modular.spec.training.numerics_for", lambda word: chosen.append(word) or Numerics()
    )
    compression.run_sweep(P=7, dimensions=[2], device=torch.device("cuda:1"), **QUICK)
    compression.run_sweep(P=7, dimensions=[2], device="cuda:1", **QUICK)
    compression.run_sweep(P=7, dimensions=[2], device=torch.device("cpu"), **QUICK)
    assert chosen == ["cuda:1", "cuda:1", "cuda:1", "cuda:1", "cpu"]


def test_a_sweep_in_any_order_has_rows_by_width() -> None:
    assert list(compression.run_sweep(P=7, dimensions=[4, 1, 2], **QUICK).models) == [1, 2, 4]
    assert list(compression.run_sweep(P=5, epochs=1, batch=4).models) == [1, 2, 3, 4, 5], "1 .. P by default"


def test_gradients_are_enabled_after_every_call(sweep_path: Path) -> None:
    models_state, _, P = compression.load_sweep_results(sweep_path)
    for load in ("tn_similarity", "act_similarity", "js_divergence"):
        getattr(compression, f"load_or_compute_{load}")(sweep_path, force_recompute=True)
        assert torch.is_grad_enabled()
    compression.compute_eigen_data(compression.compute_interaction_matrices(models_state, P), P)
    model = core.load_model_for_dim(4, models_state, P)
    core.compute_tn_similarity_matrix([model, model])
    core.compute_all_logits(model)
    core.compute_accuracy(model, core.create_full_dataset(P), core.create_labels(P))
    assert torch.is_grad_enabled()
    model(core.create_full_dataset(P)).sum().backward()
    assert model.w_p.grad_fn is None and model.projection.weight.grad is not None


def test_a_model_fits_by_the_plain_loop() -> None:
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    train, val = core.make_dataloaders(11, batch_size=10)
    model = core.init_model(11, 12)
    torch.random.set_rng_state(state)
    before = core.compute_accuracy(model, core.create_full_dataset(11), core.create_labels(11))
    history = model.fit(train, val, epochs=25, lr=1e-2)
    assert (
        1 <= len(history["val_acc"]) == history["stopped_epoch"] <= 25
        and core.compute_accuracy(model, core.create_full_dataset(11), core.create_labels(11)) > before
    )
    assert core.constructive_model(11).fit(train, val, lr=1e-6)["val_acc"] == [1.0], "it stops where it is perfect"


def test_full_batches_learn_too() -> None:
    history = core.train_model(core.init_model(7, 8), *core.create_train_val_split(7), epochs=30)
    losses = history["train_loss"]
    assert len(losses) == len(history["val_acc"]) == 30 and losses[-1] < losses[0]


def test_single_matrices_and_vectors() -> None:
    model = core.constructive_model(8).double()
    stack = core.compute_interaction_matrix_stack(model)
    form = core.extract_remainder_matrix(stack, 3)
    assert np.array_equal(form, core.compute_interaction_matrix(model, 3)) and np.array_equal(form, form.T)
    values, vectors = core.compute_eigendecomposition(form)
    np.testing.assert_allclose(vectors * values @ vectors.T, form, atol=1e-12)
    np.testing.assert_allclose(np.abs(values[:8]), interaction_eigenvalues(model)[3].abs(), rtol=0, atol=1e-7)
    assert float(core.compute_effective_rank(form)) == pytest.approx(4, rel=1e-5)
    assert float(core.compute_effective_rank(form, "ratio")) == pytest.approx(4, rel=1e-5)
    found = core.compute_eigenvector_fft(vectors[:, 0], 8)
    assert {key: len(value) for key, value in found.items()} == {
        "fft_a": 5, "fft_b": 5, "fft_full": 9, "freqs_a": 5, "freqs_b": 5, "freqs_full": 9,
    }  # fmt: skip
    assert found["fft_a"].argmax() == 1


def test_small_ones(capsys: pytest.CaptureFixture[str]) -> None:
    matrix = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 3.0, 0.0]])
    assert core.get_upper_triangular(matrix).tolist() == [1, 2, 3]
    assert core.pearson_correlation(matrix, -matrix) == core.pearson_correlation([1, 2, 4], [-1, -2, -4]) == -1
    law = np.array([[1.0, 0.0], [0.5, 0.5]])
    assert core.compute_average_js_divergence(law, law[::-1]) == pytest.approx(core.JS_divergence(*law))
    x = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    assert core.pairwise_cosine_similarity(x, x.flip(0)) == pytest.approx(0.5**0.5)
    core.print_comparison_results(core.compare_metrics(matrix, matrix, "one", "other"))
    said = capsys.readouterr().out
    assert said.startswith("one and other") and "pearson          1.0000" in said
    assert core.get_device().type in ("cpu", "cuda")
