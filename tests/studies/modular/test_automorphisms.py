"""Similarity up to the symmetries of modular addition."""

from collections.abc import Callable
from itertools import product
from math import gcd
from typing import Any

import numpy as np
import pytest
import torch

from assay.studies.modular.bilinear import Model, addition_table, constructive_model, init_model, one_hot
from assay.studies.modular.bilinear_bank import BilinearBank, Recipe, fresh_models
from assay.studies.modular.metrics.automorphisms import (
    automorphism_similarity_matrix,
    layout,
)
from assay.studies.modular.metrics.tensor_similarity import (
    Weights,
    centred,
    symmetric_inner,
    symmetric_similarity,
    weights,
)

Image = Callable[..., Weights]


def models(P: int) -> list[Model]:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return [init_model(P, width).double() for width in (2, 3, 4)]


def group(P: int) -> list[tuple[int, int, int, bool]]:
    """Multipliers, shifts of a and b, swaps."""
    units = [k for k in range(1, P) if gcd(k, P) == 1]
    return [*product(units, range(P), range(P), (False, True))]


@pytest.fixture(scope="module")
def trained() -> Model:
    """Eight units have room for few frequencies; with all of them a model is its own image, near enough."""
    bank = BilinearBank(fresh_models(31, [8], [0]), [0], Recipe(epochs=100, batch=32, lr=1e-2, weight_decay=0.5))
    *_, last = bank.run()
    assert last.val_acc[0] > 0.9
    return bank.models[0]


@pytest.mark.parametrize("P", [4, 5])
def test_a_layout_has_the_inner_product_of_the_forms(P: int) -> None:
    one, other, _ = models(P)
    laid = (layout(weights(one)) * layout(weights(other))).sum()
    torch.testing.assert_close(laid, symmetric_inner(one, other, entries="reachable"), rtol=0, atol=1e-12)


@pytest.mark.parametrize("P", [4, 5, 6])
def test_the_maximum_is_that_of_trying_every_image(P: int, image: Image) -> None:
    given = models(P)
    found = automorphism_similarity_matrix(given)
    for i, j in ((1, 0), (1, 2)):
        tried = [float(symmetric_similarity(given[i], image(given[j], *g), entries="reachable")) for g in group(P)]
        assert found[i, j] == pytest.approx(max(tried), abs=1e-12)


def test_blocks_leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = automorphism_similarity_matrix(models(5))
    monkeypatch.setattr("assay.studies.modular.metrics.automorphisms.TOGETHER", 2)
    np.testing.assert_allclose(automorphism_similarity_matrix(models(5)), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("g", [(3, 5, 2, False), (7, 1, 9, True)], ids=str)
def test_the_image_of_a_model_that_adds_adds(g: tuple[Any, ...], image: Image) -> None:
    a, b, target = addition_table(16)
    x = one_hot(a, b, 16).double()
    moved = image(constructive_model(16), *g)
    assert ((((x @ moved.w_l.T) * (x @ moved.w_r.T)) @ moved.w_p.T).argmax(dim=1) == target).all()


@pytest.mark.parametrize("g", [(12, 7, 20, True), (5, 3, 11), (2, 30, 9, True)], ids=str)
def test_a_trained_model_is_found_again_in_its_image(trained: Model, g: tuple[Any, ...], image: Image) -> None:
    for model in (weights(trained), centred(trained)):
        moved = image(model, *g)
        assert float(symmetric_similarity(model, moved, entries="reachable")) < 0.5
        assert automorphism_similarity_matrix([model, moved])[0, 1] == pytest.approx(1, abs=1e-10)


def test_the_same_algorithm_at_another_frequency_is_told_from_noise(image: Image) -> None:
    """One frequency is another's image; a model without an algorithm is nobody's."""
    three = image(constructive_model(31), 3)
    assert abs(float(symmetric_similarity(constructive_model(31), three, entries="reachable"))) < 1e-6
    with torch.random.fork_rng():
        torch.manual_seed(0)
        random = init_model(31, 4)
    found = automorphism_similarity_matrix([constructive_model(31), three, random])
    assert found[0, 1] == pytest.approx(1, abs=1e-10) and found[0, 2] < 0.3
