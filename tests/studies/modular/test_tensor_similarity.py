"""Similarity of bilinear models against the obvious: the whole tensors, and loops over pairs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from assay.studies.modular.bilinear import Model, addition_table, init_model, one_hot
from assay.studies.modular.metrics import tensor_similarity as sim
from assay.studies.modular.metrics.automorphisms import automorphism_similarity_matrix
from assay.studies.modular.metrics.spectra import interaction_eigenvalues

P = 7
WIDTHS = [1, 2, 5, 9, 14, 5]


def models(P: int = P, widths: list[int] = WIDTHS) -> list[Model]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [init_model(P, width).double() for width in widths]


def forms(model: sim.Factors) -> torch.Tensor:
    """B_p of all outputs, made symmetric."""
    whole = torch.einsum("hi,hj,ph->pij", model.w_l, model.w_r, model.w_p).detach()
    return (whole + whole.mT) / 2


def reachable() -> torch.Tensor:
    """Entries that are met: a with itself, b with itself, a with b."""
    same = torch.eye(P, dtype=torch.bool)
    every = torch.ones(P, P, dtype=torch.bool)
    return torch.cat([torch.cat([same, every], 1), torch.cat([every, same], 1)])


def logits(model: Model) -> torch.Tensor:
    a, b, _ = addition_table(P)
    return model(one_hot(a, b, P).double()).detach()


def activation_similarity(one: sim.Factors, other: sim.Factors) -> float:
    return float(sim.activation_similarity_matrix([one, other])[0, 1])


def linear_cka(x: torch.Tensor, y: torch.Tensor) -> float:
    x, y = x - x.mean(dim=0), y - y.mean(dim=0)
    return float((x.T @ y).square().sum() / (x.T @ x).norm() / (y.T @ y).norm())


def procrustes_similarity(x: torch.Tensor, y: torch.Tensor) -> float:
    x, y = x - x.mean(dim=0), y - y.mean(dim=0)
    return float(torch.linalg.svdvals(x.T @ y).sum() / x.norm() / y.norm())


@pytest.mark.parametrize("entries", ["all", "reachable"])
def test_the_inner_product_is_that_of_the_whole_tensors(entries: sim.Entries) -> None:
    given = models()
    kept = reachable() if entries == "reachable" else torch.ones(2 * P, 2 * P)
    brute = torch.tensor([[(forms(x) * forms(y) * kept).sum() for x in given] for y in given])
    one_by_one = torch.tensor([[sim.symmetric_inner(x, y, entries=entries) for x in given] for y in given])
    torch.testing.assert_close(one_by_one, brute, rtol=0, atol=1e-10)
    torch.testing.assert_close(
        torch.tensor(sim.symmetric_inner_matrix(given, entries=entries)), brute, rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("entries", ["all", "reachable"])
def test_swapped_permuted_and_rescaled_models_are_the_same(entries: sim.Entries) -> None:
    model = sim.weights(models()[3])
    order, scale = torch.randperm(9), 3 * torch.rand(9, 1, dtype=torch.float64) + 0.1
    images = {
        "swapped": replace(model, w_l=model.w_r, w_r=model.w_l),
        "permuted": sim.Weights(model.w_l[order], model.w_r[order], model.w_p[:, order]),
        "rescaled": sim.Weights(model.w_l * scale, model.w_r * scale, model.w_p / scale.T**2),
    }
    for name, image in images.items():
        found = float(sim.symmetric_similarity(model, image, entries=entries))
        assert found == pytest.approx(1, abs=1e-12), name
        assert sim.symmetric_similarity_matrix([model, image], entries=entries)[0, 1] == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("first_inputs", [1, 3])  # at a time; 3 leaves one of 7 over
def test_large_stacks_are_cut_without_a_trace(first_inputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sim.symmetric_similarity_matrix(models()), sim.activation_similarity_matrix(models())
    monkeypatch.setattr(sim, "UNITS", 6)
    monkeypatch.setattr(sim, "LOGITS", first_inputs * P * P * len(WIDTHS))
    cut = sim.symmetric_similarity_matrix(models()), sim.activation_similarity_matrix(models())
    np.testing.assert_allclose(cut, whole, rtol=0, atol=1e-12)


def test_float32_is_near() -> None:
    exact = sim.symmetric_similarity_matrix(models())
    np.testing.assert_allclose(sim.symmetric_similarity_matrix(models(), dtype=torch.float32), exact, atol=1e-6)


def test_a_model_of_zeros_is_like_nothing_and_no_nan() -> None:
    zero, other = models()[0], models()[2]
    torch.nn.init.zeros_(zero.projection.weight)
    assert float(sim.symmetric_similarity(zero, other)) == 0
    for matrix in (sim.symmetric_similarity_matrix, sim.logit_similarity_matrix, automorphism_similarity_matrix):
        np.testing.assert_array_equal(matrix([zero, other]), np.eye(2))


def test_activation_similarity_is_the_mean_cosine_of_logits() -> None:
    given = models()
    table = [logits(model) for model in given]
    loop = [[torch.cosine_similarity(x, y, dim=1).mean().item() for x in table] for y in table]
    np.testing.assert_allclose(sim.activation_similarity_matrix(given), loop, atol=1e-6)  # the norms have 1e-8 added
    assert activation_similarity(given[1], given[3]) == pytest.approx(loop[1][3], abs=1e-6)


def test_logit_similarity_is_the_cosine_of_the_tables() -> None:
    given = models()
    table = [logits(model).flatten() for model in given]
    loop = [[torch.cosine_similarity(x, y, dim=0).item() for x in table] for y in table]
    np.testing.assert_allclose(sim.logit_similarity_matrix(given), loop, atol=1e-10)


def test_weights_that_no_input_meets_change_the_full_similarity_alone() -> None:
    """A unit that multiplies [a = 0] by [a = 1] is silent: the two never come together."""
    model = sim.weights(models()[2])
    ghost_l, ghost_r = torch.zeros(2, 1, 2 * P, dtype=torch.float64)
    ghost_l[0, 0], ghost_r[0, 1] = 3, 3
    haunted = sim.Weights(
        torch.cat([model.w_l, ghost_l]),
        torch.cat([model.w_r, ghost_r]),
        torch.cat([model.w_p, torch.ones(P, 1, dtype=torch.float64)], dim=1),
    )
    a, b, _ = addition_table(P)
    x = one_hot(a, b, P).double()
    assert ((x @ ghost_l.T) * (x @ ghost_r.T)).abs().max() == 0
    assert float(sim.symmetric_similarity(model, haunted)) < 0.9
    assert float(sim.symmetric_similarity(model, haunted, entries="reachable")) == pytest.approx(1, abs=1e-12)


def test_what_is_added_to_all_outputs_is_ignored_once_centred() -> None:
    model = sim.weights(models()[2])
    lifted = replace(model, w_p=model.w_p + torch.randn(1, 5, dtype=torch.float64))
    both = sim.centred(model), sim.centred(lifted)
    assert float(sim.symmetric_similarity(model, lifted)) < 0.99 and activation_similarity(model, lifted) < 0.99
    assert float(sim.symmetric_similarity(*both)) == pytest.approx(1, abs=1e-12)
    assert activation_similarity(*both) == pytest.approx(1, abs=1e-6)


def test_hidden_units_are_those_of_the_model() -> None:
    model = models()[3]
    a, b, _ = addition_table(P)
    torch.testing.assert_close(sim.hidden(model), model.bi_linear(one_hot(a, b, P).double()).detach())


def test_cka_and_procrustes_ignore_rotation_scale_and_offset_and_know_the_unrelated() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(400, 6, generator=rng, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=rng, dtype=torch.float64)).Q
    unrelated = torch.randn(400, 6, generator=rng, dtype=torch.float64)
    for score in (linear_cka, procrustes_similarity):
        assert score(x, 3 * x @ rotation + 1) == pytest.approx(1, abs=1e-10)
        assert score(x, unrelated) < 0.2
        assert score(x, x[:, :3]) == pytest.approx(score(x[:, :3], x)) and 0.4 < score(x, x[:, :3]) < 0.9


def test_linear_cka_is_the_cosine_of_centred_kernels() -> None:
    x, y = (sim.hidden(model) for model in models()[2:4])
    kernels = []
    for z in (x, y):
        kernel = z @ z.T
        kernels.append((kernel - kernel.mean(0) - kernel.mean(1, keepdim=True) + kernel.mean()).flatten())
    assert linear_cka(x, y) == pytest.approx(float(torch.cosine_similarity(*kernels, dim=0)), abs=1e-10)


def test_matrices_of_hidden_units_are_those_of_pairs() -> None:
    given = models()
    units = [sim.hidden(model) for model in given]
    cka, procrustes = sim.hidden_similarity_matrices(given)
    np.testing.assert_allclose(cka, [[linear_cka(x, y) for x in units] for y in units], atol=1e-10)
    np.testing.assert_allclose(procrustes, [[procrustes_similarity(x, y) for x in units] for y in units], atol=1e-10)


CALLS: dict[str, Callable[[list[Model]], Any]] = {
    "inner": lambda m: sim.symmetric_inner(m[0], m[1]),
    "similarity": lambda m: sim.symmetric_similarity(m[0], m[1]),
    "matrix": sim.symmetric_similarity_matrix,
    "activation": sim.activation_similarity_matrix,
    "logits": sim.logit_similarity_matrix,
    "hidden": sim.hidden_similarity_matrices,
    "automorphisms": automorphism_similarity_matrix,
    "eigenvalues": lambda m: interaction_eigenvalues(m[0]),
}


@pytest.mark.parametrize("name", CALLS)
def test_gradients_are_still_enabled_after_a_call(name: str) -> None:
    given = models(5, [2, 3])
    CALLS[name](given)
    assert torch.is_grad_enabled()
    given[0](torch.ones(1, 10).double()).sum().backward()
    assert given[0].projection.weight.grad is not None
