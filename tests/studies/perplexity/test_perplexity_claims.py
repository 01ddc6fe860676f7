"""What the claims of perplexity measure, on records that nothing computed."""

from collections.abc import Sequence
from typing import Any

import pytest

from assay.core.errors import UserError
from assay.core.run import Record, Run
from assay.studies.perplexity.claims import BEST, CLAIMS, CLUSTERS, SPARSE


def record(method: str, losses: Sequence[float], *, attended: float, shard: int) -> Record:
    """A record of one shard; every cluster has 10 tokens, each with the cluster's loss."""
    numbers = range(shard, 2 * len(losses), 2)
    sums = {"nll": [10 * loss for loss in losses], "tokens": [10.0] * len(losses)}
    usage = {"attended": attended, "visible": 100.0}
    metrics: dict[str, Any] = {"clusters": list(numbers), "sums": sums, "usage": usage}
    options = {
        "method": {"name": method, **(BEST if method == "cab_v4" else {})},
        "dataset": {"name": "books"},
        "shard": shard,
    }
    return Record(Run("perplexity", options, 42, {}), "done", metrics)


def records(method: str, more: float, *, attended: float = 10.0, clusters: int = CLUSTERS) -> list[Record]:
    losses = [2 + 0.1 * number + more for number in range(clusters // 2)]
    return [record(method, losses, attended=attended, shard=shard) for shard in (0, 1)]


def measured(name: str, given: Sequence[Record]) -> Any:
    check = CLAIMS[name].checks[0]
    assert check.measure is not None
    return check.measure(given)


def test_a_difference_is_paired_over_as_many_clusters_as_the_claim_states() -> None:
    found = measured("sinks", [*records("window", 0.3), *records("streaming_llm", 0.0)])
    assert found.mean == pytest.approx(0.3) and found.low == pytest.approx(0.3) and found.n == CLUSTERS == 24
    assert all(
        str(CLUSTERS) in check.what
        for name in ("sinks", "cab-v4", "sparse-perplexity")
        for check in CLAIMS[name].checks
    )
    with pytest.raises(UserError, match="was measured on 22 clusters, not 24"):
        measured("sinks", [*records("window", 0.3, clusters=22), *records("streaming_llm", 0.0, clusters=22)])


def test_methods_of_another_realised_sparsity_are_not_compared() -> None:
    with pytest.raises(UserError, match=r"not measured at equal sparsity: .* and h2o realised 0.91 and 0.81"):
        measured("cab-v4", [*records("cab_v4", 0.3, attended=9.0), *records("h2o", 0.0, attended=19.0)])
    assert measured("cab-v4", [*records("cab_v4", 0.3), *records("h2o", 0.0, attended=11.0)]).low > 0


def test_the_budget_of_the_main_table_realises_one_sparsity_in_every_method() -> None:
    from assay.attention import attention
    from assay.attention.base import Budget
    from assay.studies.perplexity.claims import EQUAL

    for options in (SPARSE, CLAIMS["cab-v4"].options, CLAIMS["cab-blocks"].options):
        (context,), (slots,) = options["context_lengths"], options["budgets"]
        methods = [attention.parse(word) for word in options["methods"] if word != "dense"]
        found = [1 - (method.expected_density(context, Budget(slots=slots)) or 0) for method in methods]
        assert max(found) - min(found) < EQUAL / 4 and found == pytest.approx([0.9] * len(found), abs=0.005)
