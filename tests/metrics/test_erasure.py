"""Concept erasure: the true atoms are the ceiling, units that mix everything the floor."""

import pytest
import torch
from torch import Tensor

from assay.metrics.erasure import Coded, spurious_removal, targeted_perturbation
from assay.metrics.sparsity import ridge_decoder
from assay.nn.random import stream
from assay.vectors import vectors
from assay.vectors.base import Part, Vectors

CONCEPTS = list(range(4))


@pytest.fixture(scope="module")
def data() -> Vectors:
    return vectors.parse("concepts:rows=4000:d_in=24:concepts=4:free=12:children=1").load()


def coded(part: Part, code: Tensor) -> Coded:
    assert part.fired is not None
    return Coded(part.x, code, part.fired[:, CONCEPTS] > 0)


def both(data: Vectors, codes: tuple[Tensor, Tensor], W: Tensor, count: int = 2) -> tuple[float, float]:
    """TPP and SCR with so many units switched off."""
    parts = coded(data.train, codes[0]), coded(data.test, codes[1])
    return targeted_perturbation(*parts, W, [count])[count], spurious_removal(*parts, W, [count])[count]


def truth(data: Vectors) -> tuple[Tensor, Tensor]:
    assert data.train.fired is not None and data.test.fired is not None
    return data.train.fired, data.test.fired


def mixed(data: Vectors) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Untrained rectified features, with the best decoder there is."""
    projection = torch.randn(24, 32, generator=stream(0, "mixed")) / 5
    train, test = ((part.x @ projection).relu() for part in (data.train, data.test))
    return (train, test), ridge_decoder(train, data.train.x).W


def test_the_true_atoms_are_the_ceiling(data: Vectors) -> None:
    tpp, scr = both(data, truth(data), data.dictionary)
    assert tpp > 0.45 and 0.8 < scr < 1.2, "a perfect probe falls to chance alone, and the bias is gone"


def test_units_that_mix_everything_are_the_floor(data: Vectors) -> None:
    tpp, scr = both(data, *mixed(data))
    best_tpp, best_scr = both(data, truth(data), data.dictionary)
    assert tpp < 0.4 * best_tpp and scr < 0.5 * best_scr


def test_switching_off_units_that_are_silent_changes_nothing(data: Vectors) -> None:
    silent = torch.zeros_like(data.train.fired[:, :5]), torch.zeros_like(data.test.fired[:, :5])  # type: ignore[index]
    assert both(data, silent, torch.ones(5, 24)) == (0.0, 0.0)


def test_a_unit_that_carries_every_concept_is_not_targeted(data: Vectors) -> None:
    """Switched off, it takes as much from every probe."""
    train, test = ((fired[:, CONCEPTS] > 0).any(dim=1, keepdim=True).float() for fired in truth(data))
    tpp, _ = both(data, (train, test), data.dictionary[CONCEPTS].sum(dim=0, keepdim=True), count=1)
    assert tpp == pytest.approx(0, abs=1e-9)


def test_two_concepts_are_one_attribute_and_leave_nothing_to_be_spurious(data: Vectors) -> None:
    train, test = (coded(part, code) for part, code in zip((data.train, data.test), truth(data), strict=True))
    pair = [Coded(rows.x, rows.code, rows.has[:, :3]) for rows in (train, test)]
    assert spurious_removal(*pair, data.dictionary, [2]) == {}
