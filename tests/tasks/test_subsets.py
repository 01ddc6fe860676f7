"""distinct has the law of randperm(n)[:count], by steps and by sorting."""

from itertools import permutations

import pytest
import torch

from assay.nn.random import stream
from assay.tasks import subsets
from assay.tasks.subsets import distinct
from triton_device import DEVICE, needs_triton


@pytest.mark.parametrize("stepped", [64, 0])
@pytest.mark.parametrize(("count", "n"), [(3, 5), (1, 4), (4, 4), (2, 6)])
def test_every_ordered_choice_is_equally_likely(count, n, stepped, monkeypatch):
    monkeypatch.setattr(subsets, "STEPPED", stepped)
    rows = 60_000
    first, second = distinct(rows, count, (n, n + 1), stream(0, "test"))
    for chosen, size in ((first, n), (second, n + 1)):
        code = (chosen * (n + 1) ** torch.arange(count)).sum(1)
        seen = code.unique(return_counts=True)[1]
        expected = rows / len(list(permutations(range(size), count)))
        assert len(seen) == rows / expected  # all of them, and no row with a repetition
        chi_square = ((seen - expected) ** 2 / expected).sum().item()
        freedom = len(seen) - 1
        assert chi_square < freedom + 5 * (2 * max(freedom, 1)) ** 0.5


@pytest.mark.parametrize("count", [8, 64, 65, 100])
def test_rows_are_distinct_and_in_range(count):
    (chosen,) = distinct(200, count, (128,), stream(0, "test"))
    assert chosen.shape == (200, count)
    assert chosen.min() >= 0 and chosen.max() < 128
    assert all(len(set(row)) == count for row in chosen.tolist())


def test_ranks_pick_among_what_is_left_by_hand():
    rank = torch.tensor([2, 0, 1])[:, None, None]
    assert subsets._nth_left(rank).flatten().tolist() == [2, 0, 3]


def test_ranks_pick_like_popping_from_a_list():
    rank = torch.stack([torch.randint(9 - i, (50,), generator=stream(i, "test")) for i in range(6)])
    picked = subsets._nth_left(rank[:, None].clone())[:, 0]
    for column, expected in zip(rank.T.tolist(), picked.T.tolist(), strict=True):
        left = list(range(9))
        assert [left.pop(r) for r in column] == expected


@needs_triton
@pytest.mark.parametrize(("count", "rows"), [(1, 3), (4, 7), (48, 20), (64, 33)])
def test_the_kernel_picks_the_same(count: int, rows: int) -> None:
    left = torch.stack([torch.arange(n, n - count, -1) for n in (64, 4096)], dim=1)[..., None]
    rank = (torch.rand(count, 2, rows, generator=stream(0, "test")) * left).long().to(DEVICE)
    assert torch.equal(subsets.kernels.nth_left(rank), subsets._nth_left(rank.clone()))
