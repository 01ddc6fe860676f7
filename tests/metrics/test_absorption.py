"""Absorption is 0 for the true dictionary and high for a coder that was built to absorb."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from assay.metrics.absorption import Absorption, absorption, families
from assay.metrics.sparsity import RidgeDecoder, ridge_decoder
from assay.vectors import vectors
from assay.vectors.base import Vectors


@pytest.fixture(scope="module")
def data() -> Vectors:
    return vectors.parse("concepts:rows=2000:free=40").load()


def scored(data: Vectors, directions: Tensor, code: Tensor, decoder: RidgeDecoder | None = None) -> Absorption:
    test = data.test
    assert data.dictionary is not None and test.fired is not None and data.parents is not None
    decoder = decoder or ridge_decoder(code, test.x)
    return absorption(directions, code, decoder, test.x, data.dictionary, test.fired, data.parents)


def absorbing(data: Vectors) -> tuple[Tensor, Tensor]:
    """Child units that carry their parent too, and parent units that fire only where no child does."""
    directions, code = data.dictionary.clone(), data.test.fired.clone()  # type: ignore[union-attr]
    for parent, children in families(data.parents or ()).items():
        directions[children] = normalize(directions[children] + directions[parent], dim=1)
        code[:, parent] *= ~(code[:, children] > 0).any(dim=1)
    return directions, code


def test_the_true_dictionary_absorbs_nothing(data: Vectors) -> None:
    assert scored(data, data.dictionary, data.test.fired) == Absorption(rate=0.0, f1=1.0)


def test_a_coder_that_was_built_to_absorb_is_caught(data: Vectors) -> None:
    directions, code = absorbing(data)
    found = scored(data, directions, code)
    assert found.rate > 0.8 and found.f1 < 0.7


def test_a_silent_parent_that_no_unit_carries_is_lost_and_not_absorbed(data: Vectors) -> None:
    """The same silence, but child units carry the child alone: the parent is nowhere in the code."""
    _, code = absorbing(data)
    alone = RidgeDecoder(data.dictionary, torch.zeros(64))
    assert scored(data, data.dictionary, code, alone).rate < 0.05


def test_a_coder_without_a_unit_for_the_parent_has_no_f1(data: Vectors) -> None:
    few = scored(data, data.dictionary[:4], data.test.fired[:, :4])
    assert few.f1 == 0.5 and few.rate == 0, "4 of 8 parents have a unit, and those are the true ones"


def test_the_score_does_not_depend_on_the_scale_of_a_code(data: Vectors) -> None:
    directions, code = absorbing(data)
    assert scored(data, directions, 1000 * code).rate == pytest.approx(scored(data, directions, code).rate, abs=0.01)


def test_families_are_parents_with_their_children() -> None:
    assert families((0, 0, 0, 3, 4, 4)) == {0: [1, 2], 4: [5]}
    many = tuple(atom // 2 * 2 for atom in range(100))
    assert list(families(many, most=5)) == [0, 20, 40, 60, 80] and families((0, 1)) == {}
