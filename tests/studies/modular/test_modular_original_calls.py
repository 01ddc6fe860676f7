"""The spec's `core` as its users call it: order and names of arguments, defaults, and the shape of what comes back."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from assay.core.errors import UserError
from assay.studies.modular import core
from assay.studies.modular.files import State

P = 7
SIGNATURES = {
    "create_full_dataset": "P=64, device=None",
    "create_labels": "P=64, device=None",
    "create_train_val_split": "P=64, train_fraction=0.5, seed=0, device=None",
    "make_dataloaders": "P=64, train_fraction=0.75, batch_size=64, seed=0, shuffle_train=True, drop_last=True",
    "compute_accuracy": "model, data, labels",
    "train_step": "model, optimizer, data, labels, loss_fn=None",
    "train_model": (
        "model, train_data, train_labels, val_data=None, val_labels=None, epochs=1000, lr=0.01, weight_decay=0.0001, "
        "verbose=True, log_every=100"
    ),
    "init_model": "p=64, d_hidden=None, bias=False",
    "load_model_for_dim": "d, models_state, P=64, device=None",
    "load_sweep_results": "path, seed=None",
    "compute_interaction_matrix": "model, remainder=None",
    "compute_interaction_matrix_stack": "model",
    "compute_interaction_matrices_from_state": "models_state, P, device=None, show_progress=True",
    "extract_remainder_matrix": "int_mat_stack, remainder",
    "compute_effective_rank": "int_mat, method='entropy'",
    "compute_eigendecomposition": "int_mat",
    "compute_eigen_data": "int_mats, P, show_progress=True",
    "compute_eigenvector_fft": "evec, P",
    "compute_frequency_distribution": "eigenvalues, eigenvectors, P, n_evecs=4",
    "compute_frequency_heatmap": "eigen_data, d_hidden, P, n_evecs=4",
    "compute_all_frequency_heatmaps": "eigen_data, P, n_evecs=4, show_progress=True",
    "entropy_effective_rank": "eigenvalues",
    "ratio_effective_rank": "eigenvalues",
    "cumulative_explained_variance": "eigenvalues",
    "components_for_variance_threshold": "eigenvalues, threshold=0.99",
    "symmetric_inner": "model1, model2",
    "symmetric_similarity": "model1, model2",
    "compute_tn_inner_product_matrix": "models_state, P=None, device=None, show_progress=True",
    "compute_tn_similarity_matrix": "models_state, P=None, device=None, show_progress=True",
    "compute_act_similarity_matrix": "models_state, P=None, device=None, show_progress=True",
    "compute_all_logits": "model, dataset=None",
    "pairwise_cosine_similarity": "logits1, logits2",
    "compute_activation_similarity": "model1, model2, dataset=None",
    "JS_divergence": "p, q",
    "compute_average_js_divergence": "heatmap1, heatmap2",
    "compute_js_divergence_matrix": "heatmaps, P=None, show_progress=True",
    "inner_product_to_metric": "inner_mat",
    "cosine_similarity_to_metric": "sim_mat",
    "divergence_to_metric": "div_mat",
    "get_upper_triangular": "mat, k=1",
    "pearson_correlation": "D1, D2",
    "compute_optimal_scale": "D, D_prime",
    "compute_stress": "D, D_prime, normalize=True",
    "get_knn_indices": "D, k",
    "compute_knn_overlap": "D1, D2, k",
    "compute_jaccard_index": "D1, D2, k",
    "compute_trustworthiness": "D_high, D_low, k",
    "compute_continuity": "D_high, D_low, k",
    "compare_metrics": "D1, D2, name1='D1', name2='D2', k_values=None",
    "print_comparison_results": "results",
    "get_device": "",
}
"""What may be given in order; options of assay's own are given by name alone."""


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_have_the_originals_order_names_and_defaults(name: str) -> None:
    found = inspect.signature(getattr(core, name)).parameters.values()
    ordered = [p for p in found if p.kind is p.POSITIONAL_OR_KEYWORD]
    said = (p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in ordered)
    assert ", ".join(said) == SIGNATURES[name]


@pytest.fixture(scope="module")
def models_state() -> dict[int, State]:
    torch.manual_seed(0)
    return {d: core.init_model(P, d).state_dict() for d in (1, 3, 5)}


def test_matrices_are_made_from_a_sweeps_state_dicts(models_state: dict[int, State]) -> None:
    models = [core.load_model_for_dim(d, models_state, P) for d in models_state]
    assert not models[0].training and models[1].cfg.d_hidden == 3
    older = core.load_model_for_dim(models_state, 3, P)  # type: ignore[arg-type]
    assert torch.equal(older.w_p, models[1].w_p), "the order that assay had before works too"
    dataset = core.create_full_dataset(P=P)
    for compute, one in (
        (core.compute_tn_inner_product_matrix, core.symmetric_inner),
        (core.compute_tn_similarity_matrix, core.symmetric_similarity),
        (core.compute_act_similarity_matrix, lambda a, b: core.compute_activation_similarity(a, b, dataset)),
    ):  # type: ignore[assignment]
        found = compute(models_state, P, torch.device("cpu"), False)
        np.testing.assert_allclose(found, [[float(one(a, b)) for b in models] for a in models], atol=2e-6)
        np.testing.assert_allclose(compute(models), found, atol=1e-6, err_msg="a list of models does as well")
    assert torch.is_grad_enabled()
    with pytest.raises(UserError, match="give P too"):
        core.compute_tn_similarity_matrix(models_state)


def test_logits_of_a_dataset_are_the_models_own(models_state: dict[int, State]) -> None:
    model = core.load_model_for_dim(d=5, models_state=models_state, P=P)
    dataset = core.create_full_dataset(P)
    logits = core.compute_all_logits(model, dataset)
    torch.testing.assert_close(logits, model(dataset).detach())
    torch.testing.assert_close(core.compute_all_logits(model).float(), logits)
    assert core.compute_all_logits(model, dataset[:3]).shape == (3, P)
    assert core.pairwise_cosine_similarity(logits, logits) == pytest.approx(1)


def test_from_state_dicts_to_divergences_with_plain_arrays(models_state: dict[int, State]) -> None:
    int_mats = core.compute_interaction_matrices_from_state(models_state, P, None, False)
    assert {d: mats.shape for d, mats in int_mats.items()} == dict.fromkeys((1, 3, 5), (P, 2 * P, 2 * P))
    model = core.load_model_for_dim(3, models_state, P)
    np.testing.assert_allclose(core.compute_interaction_matrix(model), int_mats[3], atol=1e-6)
    assert all(isinstance(mats, np.ndarray) for mats in int_mats.values())
    eigen_data = core.compute_eigen_data(int_mats, P, show_progress=False)
    values, vectors = core.compute_eigendecomposition(int_mats[5][2])
    assert values.shape == (2 * P,) and vectors.shape == (2 * P, 2 * P)
    np.testing.assert_allclose(eigen_data[5]["eigenvalues"][2], values, atol=1e-6)
    assert (np.diff(np.abs(values)) <= 1e-6).all()
    heatmaps = core.compute_all_frequency_heatmaps(eigen_data, P, 4, False)
    matrix = core.compute_js_divergence_matrix(heatmaps, P, False)
    assert matrix.shape == (3, 3) and (np.diag(matrix) == 0).all()
    assert matrix[0, 1] == pytest.approx(P * core.compute_average_js_divergence(heatmaps[1], heatmaps[3]))
    np.testing.assert_allclose(core.compute_js_divergence_matrix(np.stack(list(heatmaps.values()))), matrix)
    with pytest.raises(UserError, match="7 rows, where P=8"):
        core.compute_js_divergence_matrix(heatmaps, 8)


def test_ranks_of_one_spectrum_are_numbers() -> None:
    eigenvalues = np.array([3.0, -3.0, 0.0])
    assert core.entropy_effective_rank(eigenvalues) == pytest.approx(2)
    assert core.ratio_effective_rank(eigenvalues) == pytest.approx(2)
    assert core.components_for_variance_threshold(eigenvalues, threshold=0.99) == 2
    assert core.cumulative_explained_variance(eigenvalues).tolist() == [0.5, 1.0, 1.0]
    assert core.compute_effective_rank(np.diag(eigenvalues), method="ratio") == pytest.approx(2)
    assert core.entropy_effective_rank(np.stack([eigenvalues] * 2)).shape == (2,)
    with pytest.raises(UserError, match="entropy, ratio"):
        core.compute_effective_rank(np.eye(2), method="other")  # type: ignore[arg-type]


def test_stress_is_by_the_best_scale_unless_told_otherwise() -> None:
    D = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 3.0, 0.0]])
    assert core.compute_optimal_scale(D, D_prime=2 * D) == pytest.approx(0.5)
    assert core.compute_stress(D, 2 * D) == pytest.approx(0) and core.compute_stress(D, 2 * D, False) == pytest.approx(
        1
    )
    assert core.compute_stress(D, 2 * D, scale=1.5) == pytest.approx(2)
    assert core.get_upper_triangular(D, k=2).tolist() == [2.0]
    assert core.compare_metrics(D, D, name1="TN", name2="Activation", k=2)["k_values"] == [2]
    assert np.diag(core.divergence_to_metric(D + 1)).tolist() == [0, 0, 0]


def test_data_is_split_and_a_model_trained_on_the_parts() -> None:
    train_data, train_labels, val_data, val_labels = core.create_train_val_split(P, 0.75, 3)
    assert train_data.shape == (36, 2 * P) and val_data.shape == (13, 2 * P)
    whole = torch.cat([train_data, val_data])
    assert whole.unique(dim=0).shape == (P * P, 2 * P), "every pair is on one side"
    assert torch.equal((whole[:, :P].argmax(1) + whole[:, P:].argmax(1)) % P, torch.cat([train_labels, val_labels]))
    history = core.train_model(core.init_model(P, 6), train_data, train_labels, epochs=2, verbose=False)
    assert history["val_acc"] == [] and len(history["train_acc"]) == len(history["train_loss"]) == 2


def test_loaders_are_shuffled_and_cut_as_asked() -> None:
    train, val = core.make_dataloaders(P, batch_size=10)
    assert [len(y) for _, y in train] == [10, 10, 10] and [len(y) for _, y in val] == [10, 3]
    plain, _ = core.make_dataloaders(P, 0.75, 10, 0, shuffle_train=False, drop_last=False)
    assert [len(y) for _, y in plain] == [10, 10, 10, 6]
    assert torch.equal(next(iter(plain))[0], core.create_train_val_split(P, 0.75)[0][:10])
    torch.manual_seed(1)
    drawn = [core.create_train_val_split(P, seed=None)[1] for _ in range(2)]
    assert not torch.equal(*drawn)


def test_a_model_fits_with_the_users_optimizer(capsys: pytest.CaptureFixture[str]) -> None:
    train, val = core.make_dataloaders(P, batch_size=10)
    model = core.init_model(p=P, d_hidden=6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    before = model.w_p.detach().clone()
    history = model.fit(train, val, optimizer, 4, None, torch.device("cpu"), 1.0, True, 2)
    assert torch.equal(model.w_p, before), "a rate of 0 is the optimizer's"
    assert set(history) == {"train_loss", "val_acc", "stopped_epoch"} and history["stopped_epoch"] == 4
    assert capsys.readouterr().out.count("epoch") == 2
    losses: list[Any] = []

    def loss(logits: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
        losses.append(logits)
        return torch.nn.functional.cross_entropy(logits, answers)

    perfect: Callable[..., dict[str, Any]] = core.constructive_model(P).fit
    assert perfect(train, val, epochs=2, loss_fn=loss, early_stop_acc=None, verbose=False)["stopped_epoch"] == 2
    assert len(losses) == 6
