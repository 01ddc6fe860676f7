"""Cells and documents from records that nothing computed."""

from typing import Any

import pytest

from assay.attention import attention
from assay.core.run import Record, Run, Status
from assay.studies.perplexity.cells import cells, error, facts, sums, usage
from assay.studies.perplexity.document import documents_of
from assay.studies.perplexity.figures import table_3

SUMS = ("tokens", "nll", "kl", "chars", "bytes", "words", "hits", "hit_nll")
USAGE = ("attended", "visible", "vectors_stored", "vectors_read", "windows", "tokens", "attention_flops")


def scored(clusters: list[int]) -> dict[str, Any]:
    """The metrics of a shard with these clusters; cluster 3 has 3 tokens, which lost 3 nats."""
    return {
        "clusters": clusters, "documents": clusters, "distances": [0] * len(clusters), "vector_bytes": 4,
        "sums": {key: [float(number) for number in clusters] for key in SUMS}, "usage": dict.fromkeys(USAGE, 2),
        "by_place": {"tokens": [1.0], "nll": [1.0]}, "dataset_sha256": "0", "documents_too_short": 0,
        "dtype": "float32",
    }  # fmt: skip


def shard(
    number: int, metrics: dict[str, Any], *, status: Status = "done", method: str = "h2o", seed: int = 0,
    error: str | None = None, dataset: str = "text", cut: int = 8, **options: Any,
) -> Record:  # fmt: skip
    budget = {"sparsity": 0.0 if method == "dense" else 0.5, "slots": None}
    lane = {"method": attention.parse(method).spec(), "budget": budget, "positions": "absolute", "protocol": "online"}
    text = {"name": dataset, "longest": cut}
    setting = {"model": {"name": "tiny"}, "dtype": "auto", "dataset": text, "context": 8, "chunk": 1, **lane}
    run = Run("perplexity", {**setting, **options, "shard": number, "shards": 2}, seed, {})
    return Record(run, status, metrics, {}, error, finished="2025-06-01")


def test_shards_are_joined_in_the_order_of_their_clusters_however_they_come() -> None:
    (cell,) = cells([shard(1, scored([4, 2])), shard(0, scored([1, 3, 5]))])
    assert [record.run.options["shard"] for record in cell.records] == [0, 1]
    assert facts(cell, "clusters") == [1, 2, 3, 4, 5] and sums(cell, "nll", "kl") == [[1.0, 2.0, 3.0, 4.0, 5.0]] * 2
    assert usage(cell, "visible") == 4 and error(cell) is None


def test_seeds_and_methods_are_cells_of_their_own() -> None:
    given = [shard(0, {}), shard(0, {}, seed=1), shard(0, {}, method="window"), shard(0, {}, protocol="prefix")]
    assert [cell.label for cell in cells(given)] == ["h2o", "h2o", "window", "h2o@prefix"]


@pytest.mark.parametrize(
    ("given", "said", "failed"),
    [
        ([shard(0, scored([1])), shard(1, {}, status="failed", error="Trace\nOSError: gone: /x")], "gone", True),
        ([shard(0, scored([1])), shard(1, {}, status="failed")], "failed", True),
        ([shard(0, {}, status="diverged"), shard(1, scored([1]))], "a number was not finite", True),
        ([shard(0, {"refused": "budget below 4 blocks: 3"}), shard(1, {})], "budget below 4 blocks", False),
        ([shard(1, scored([1]))], "only 1 of 2 parts were scored", False),
        ([shard(0, scored([0])), shard(1, scored([]))], "no token was scored", False),
    ],
)
def test_a_cell_without_numbers_stays_in_json_and_table_and_says_why(
    given: list[Record], said: str, failed: bool
) -> None:
    dense = [shard(0, scored([1, 3]), method="dense"), shard(1, scored([2]), method="dense")]
    (document,) = documents_of([*dense, *given], name="all")
    found = document["results"]["text"]["h2o"]["sparsity_sweep"]["0.5"]
    assert found["perplexity"] is None and found["failed"] == failed and said in found["error"]
    lines = {line["Method"]: line for line in table_3(document)}
    assert lines["h2o"]["Perplexity"] == said and lines["dense"]["Perplexity"].mean == pytest.approx(2.718281828)
    assert "Perplexity_group" not in lines["h2o"], "a column that no line has a value for"


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["a", "a"], ["a#1", "a#2"]),
        (["a", "a", "a#1"], ["a#1#1", "a#2", "a#1#2"]),
        (["a#1", "a", "a"], ["a#1#1", "a#1#2", "a#2"]),
    ],
)
def test_texts_of_one_name_keep_results_of_their_own(names: list[str], labels: list[str]) -> None:
    given = [
        shard(number, scored([number + cut]), dataset=f"folder/{name}", cut=cut, method="dense")
        for cut, name in enumerate(names, start=1)
        for number in (0, 1)
    ]
    (document,) = documents_of(given, name="all")
    found = {text: one["dense"]["sparsity_sweep"]["0.0"]["num_tokens"] for text, one in document["results"].items()}
    assert found == {label: 2 * cut + 1 for cut, label in enumerate(labels, start=1)}, "tokens of clusters cut, cut + 1"


@pytest.mark.parametrize(
    ("method", "hidden", "title"),
    [
        ("streaming_llm", 0.0, "streaming_llm (absolute positions)"),
        (
            "streaming_llm",
            5.0,
            "streaming_llm (absolute positions, a plain window where the model's own hides the sinks)",
        ),
        ("local_strided", 5.0, "local_strided (fixed columns, a plain window where the model's own hides the columns)"),
    ],
)
def test_a_row_says_where_the_model_s_own_window_hid_what_the_method_keeps(
    method: str, hidden: float, title: str
) -> None:
    """In all lines of a method, also at budgets where nothing was hidden: a line of a chart has one name."""
    given = scored([1, 2])
    given["usage"] = given["usage"] | ({"hidden": hidden} if hidden else {})
    at = {"budget": {"sparsity": 0.2, "slots": None}}
    records = [shard(0, given, method=method), shard(1, given, method=method)]
    records += [shard(0, scored([1]), method=method, **at), shard(1, scored([2]), method=method, **at)]
    (document,) = documents_of(records, name="all")
    assert {line["Method"] for line in table_3(document)} == {title}
