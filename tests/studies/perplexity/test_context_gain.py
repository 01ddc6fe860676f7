"""How much of what context gives beyond a window is kept, by hand: (window - mine) / (window - dense)."""

import pytest

from assay.attention import attention
from assay.core.run import Record, Run
from assay.report.rows import Row
from assay.studies.perplexity.cells import _compared, _recall, cells, in_short

TOKENS = [10.0, 20.0] * 12


def cell(nll_per_token: float, *, method: str = "h2o", spread: float = 0.0, **columns: list[float]) -> Row:
    losses = [t * (nll_per_token + spread * (-1) ** i) for i, t in enumerate(TOKENS)]
    sums = {"nll": losses, "tokens": TOKENS} | columns
    budget = {"sparsity": None, "slots": 8} if "slots" in method else {"sparsity": 0.5, "slots": None}
    spec = attention.parse(method.removesuffix(" slots")).spec()
    lane = {"method": spec, "budget": budget, "positions": "absolute", "protocol": "online", "chunk": 1}
    run = Run("perplexity", {**lane, "shard": 0, "shards": 1}, 0, {})
    (found,) = cells([Record(run, "done", {"sums": sums, "clusters": list(range(len(TOKENS)))})])
    return found


def kept(mine: float, method: str = "h2o", **options: float) -> float | None:
    found = _compared(cell(mine, method=method), cell(2.0), cell(3.0, method="window", **options))  # type: ignore[arg-type]
    value: float | None = found["context_gain_kept"]
    return value


def test_dense_keeps_all_of_it_and_the_window_none() -> None:
    assert kept(2.0) == pytest.approx(1) and kept(3.0) == pytest.approx(0) and kept(2.25) == pytest.approx(0.75)
    assert kept(3.5) == pytest.approx(-0.5), "worse than the window"


def test_there_is_nothing_to_keep_where_the_window_is_not_told_to_lose() -> None:
    assert kept(2.1, spread=4.0) is None


def test_methods_that_select_compare_by_slots_and_not_by_sparsity() -> None:
    assert kept(2.25, "oracle_topk") is None and kept(2.25, "oracle_topk slots") == pytest.approx(0.75)


def test_recall_is_the_loss_of_what_could_be_looked_up() -> None:
    found = _recall(cell(2.0, hits=[1.0] * 24, hit_nll=[0.5] * 24))
    assert found["recall_hits"] == 24 and found["recall_cross_entropy"] == pytest.approx(0.5)
    assert found["other_cross_entropy"] == pytest.approx((720 - 12) / 336)


def test_a_table_says_what_went_wrong_and_not_its_class() -> None:
    assert in_short("assay.core.errors.UserError: the text is gone: look") == "the text is gone"
    assert in_short("budget below 4 blocks: cab_v4 with 3") == "budget below 4 blocks"
    assert in_short("RuntimeError: " + "x" * 80) == "x" * 57 + "..."
    assert (
        in_short("assay.attention.checks.MethodFault: mine:k=2, h2o: scores must be finite.")
        == "scores must be finite."
    )
