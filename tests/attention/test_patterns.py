"""Patterns and budgets against masks drawn by hand."""

import pytest
import torch

from assay.attention import attention
from assay.attention.base import Budget, BudgetTooSmall
from assay.attention.lanes import Lane, Usage, attend, attended, realised_density
from assay.attention.layer import Layer
from assay.core.errors import UserError
from assay.mixers import mixers


def drawn(word, budget, time):
    x = torch.zeros(1, 1, time, 2)
    mask = attended([Lane(attention.parse(word), budget)], Layer(x, x, x))[0, 0]
    return ["".join("#" if seen else "." for seen in row[: t + 1]) for t, row in enumerate(mask.tolist())]


@pytest.mark.parametrize(
    ("word", "slots", "rows"),
    [
        ("dense", 1, "# ## ### ####"),
        ("window", 2, "# ## ### .### ..###"),
        ("streaming_llm:num_sink_tokens=1", 3, "# ## ### #### #.### #..###"),
        ("streaming_llm:num_sink_tokens=2:window_size=1", 9, "# ## ### #### ##.## ##..##"),
        ("streaming_llm:num_sink_tokens=2", 2, "# ## ### ##.# ##..#"),
        ("local_strided:local_window=1:stride=3", 6, "# ## ### #.## #..## #..### #..#.##"),
        ("local_strided", 4, "# ## ### #### #.### #..### #..#### #..#.### #..#..###"),
        ("local_strided:stride=4", 4, "# ## ### #### #.### #..### #...### #...####"),
    ],
)
def test_a_pattern_is_its_drawing(word, slots, rows):
    rows = rows.split(" ")
    assert drawn(word, Budget(slots=slots), len(rows)) == rows


@pytest.mark.parametrize("time", [7, 64, 200])
@pytest.mark.parametrize("slots", [1, 2, 5, 20, 63])
def test_local_strided_never_takes_more_slots_than_it_has(time, slots):
    rows = drawn("local_strided", Budget(slots=slots), time)
    assert max(row.count("#") for row in rows) <= slots + 1


STRIDED = "local_strided:pattern=strided"


@pytest.mark.parametrize(
    ("word", "slots", "window", "stride"),
    [
        (STRIDED, 48, 10, 10),  # the smallest l for which l + 399 // l - 1 keys fit
        (f"{STRIDED}:stride=20", 400, 20, 20),
        (f"{STRIDED}:local_window=7", 400, 7, 7),
        (f"{STRIDED}:local_window=5:stride=30", 400, 5, 30),
        ("local_strided:local_window=5:stride=30", 400, 5, 30),
    ],
)
def test_local_strided_is_the_published_rule_or_the_spec_s_key_by_key(word, slots, window, stride):
    fixed = "pattern=strided" not in word
    rows = drawn(word, Budget(slots=slots), 400)
    for i, row in enumerate(rows):
        seen = {j for j in range(i + 1) if i - j <= window or (j if fixed else i - j) % stride == 0}
        assert {j for j, mark in enumerate(row) if mark == "#"} == seen
    assert max(row.count("#") for row in rows) <= slots + 1


def test_the_strided_pattern_needs_about_twice_the_root_of_the_length():
    method = attention.parse(STRIDED)
    fits = [slots for slots in range(1, 400) if _fits(method, 400, slots)]
    least = min(size + 399 // size - 1 for size in range(1, 400))
    assert fits == list(range(least, 400)) and least == 38


def _fits(method, time, slots):
    try:
        method.check(time, Budget(slots=slots))
    except BudgetTooSmall:
        return False
    return True


@pytest.mark.parametrize(
    ("word", "title"),
    [
        ("local_strided", "local_strided (fixed columns)"),
        (STRIDED, STRIDED),
        (f"{STRIDED}:stride=8", "local_strided:stride=8:pattern=strided"),
        (
            f"{STRIDED}:local_window=4:stride=8",
            "local_strided:local_window=4:stride=8:pattern=strided (window unlike the stride)",
        ),
    ],
)
def test_a_row_s_name_says_where_local_strided_is_not_as_published(word, title):
    assert attention.parse(word).title == title


def test_a_pattern_that_comes_back_to_keys_stores_them_all_and_cuts_no_prefix_and_is_no_mixer():
    x = torch.randn(1, 1, 64, 4, generator=torch.Generator().manual_seed(0))
    stored = {}
    for word in ("local_strided", STRIDED):
        usage = Usage()
        attend([Lane(attention.parse(word), Budget(slots=32))], Layer(x, x, x), usage=[usage])
        stored[word] = usage.vectors_stored
    assert stored[STRIDED] == 2 * 64 > stored["local_strided"]
    with pytest.raises(BudgetTooSmall, match="not of a prefix: local_strided:pattern=strided comes back"):
        Lane(attention.parse(STRIDED), Budget(slots=32), prefix=40).check(64)
    with pytest.raises(UserError, match="use pattern=fixed"):
        mixers.parse(f"sparse_attention:method=({STRIDED}:stride=8)")


def test_a_pattern_that_does_not_fit_its_budget_is_refused():
    with pytest.raises(BudgetTooSmall, match="gives 3 slots at 9 tokens, and a window of 2 with every 2th key takes 5"):
        drawn("local_strided:local_window=2:stride=2", Budget(slots=3), 9)
    with pytest.raises(BudgetTooSmall, match="fewer than its 4 sinks"):
        drawn("streaming_llm", Budget(slots=3), 9)


def test_a_nominal_sparsity_is_realised_as_about_its_square_by_a_cache_and_as_itself_by_a_selection():
    x = torch.randn(1, 2, 400, 4, generator=torch.Generator().manual_seed(0))
    density = {
        name: realised_density(
            attended([Lane(attention[name](), Budget(sparsity=0.9))], Layer(x, x, x)), Layer(x, x, x)
        )
        for name in ("window", "oracle_topk")
    }
    assert density["window"].item() == pytest.approx(1 - 0.9**2, abs=0.01)
    assert density["oracle_topk"].item() == pytest.approx(1 - 0.9, abs=0.001)


def test_budgets_count_slots_and_keys():
    assert [Budget(sparsity=s).cache(1000) for s in (0.0, 0.5, 0.7, 0.9, 0.99, 0.9999)] == [1000, 500, 300, 100, 10, 1]
    assert [Budget(slots=4).keys(n) for n in (1, 4, 5, 6, 100)] == [1, 4, 5, 5, 5]
    assert [Budget(sparsity=0.9).keys(n) for n in (1, 10, 30, 100)] == [1, 1, 3, 10]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "give one of them"),
        ({"sparsity": 0.5, "slots": 3}, "give one of them"),
        ({"sparsity": 1.0}, "at least 0 and below 1"),
        ({"sparsity": -0.1}, "at least 0 and below 1"),
        ({"slots": 0}, "keep at least 1"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(options, says):
    with pytest.raises(UserError, match=says):
        Budget(**options)


def test_a_mask_that_shows_the_future_is_refused():
    x = torch.zeros(1, 1, 4, 2)
    layer = Layer(x, x, x, torch.ones(1, 4, 4, dtype=torch.bool))
    with pytest.raises(UserError, match="lets queries see later keys"):
        attended([Lane(attention["window"](), Budget(slots=2))], layer)


@pytest.mark.parametrize("word", ["h2o:recent=1.5", "cab:magnitude_ratio=2", "quest:page_size=0", "window:size=3"])
def test_options_that_make_no_sense_are_refused(word):
    with pytest.raises(UserError):
        attention.parse(word)
