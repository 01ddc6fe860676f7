"""Which rate a row shows, and when it is marked as one at the edge of those tried."""

import pytest

from assay.core.run import Record, Run
from assay.report.tuned import Tuned, at_the_edge, most_common


@pytest.mark.parametrize(
    "chosen, is_marked",
    [
        ([3e-3, 3e-3, 3e-3], False),
        ([3e-3, 3e-3, 1e-2], True),  # one seed of three is enough
        ([1e-3, 3e-3, 3e-3], True),
        ([1e-2, 1e-2, 1e-2], True),
    ],
)
def test_a_row_is_marked_where_any_seed_counts_at_the_lowest_or_highest_rate(
    chosen: list[float], is_marked: bool
) -> None:
    tried = (3e-3, 1e-2, 1e-3)
    records = tuple(Record(Run("sae", {"lr": rate}, seed, {}), "done", {}) for seed, rate in enumerate(chosen))
    assert at_the_edge(chosen, tried) is is_marked
    assert Tuned(records, tried).at_the_edge is is_marked


def test_one_rate_or_none_has_no_edge() -> None:
    assert not at_the_edge([1e-3, 1e-3], [1e-3]) and not at_the_edge([None], [None])


def test_the_rate_shown_is_that_of_most_seeds_and_of_equals_the_lowest() -> None:
    assert most_common([1e-2, 3e-3, 3e-3]) == 3e-3 and most_common([1e-2, 1e-3]) == 1e-3
    assert most_common([None, None]) is None
