"""A cell is a row pooled over shards: one method with one budget at one context length. Here are its numbers.

cells(records)                  [Row, Row, ...], also of runs that failed; the label is the method's key in the JSON
sums(cell, "nll", "tokens")     a list each: one number per cluster (article, block), shards joined
result(cell, dense, window)     R of the JSON (document.py)
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from assay.attention import attention
from assay.attention.base import Budget, Method, Pattern, Select
from assay.core.grouping import grouped
from assay.core.run import Record, Status, canonical
from assay.metrics.bootstrap import ratio, ratio_difference
from assay.report.rows import Row, rows

LN2 = math.log(2)
EVERY: tuple[Status, ...] = ("done", "diverged", "failed")
EMPTY = (
    "perplexity", "cross_entropy", "bits_per_token", "bits_per_char", "word_perplexity", "byte_perplexity",
    "bits_per_byte", "kl_to_dense", "delta_vs_dense", "context_gain_kept", "realised_sparsity", "kv_bytes_resident",
    "kv_bytes_read_per_token", "attention_flops_per_token", "seconds_share", "pass_tokens_per_second",
    "peak_memory_bytes",
)  # fmt: skip
"""The keys that are null in a cell without a result."""
TEXT_POSITIONS = "absolute positions"


def cells(records: Iterable[Record]) -> list[Row]:
    """Pool records into a row per cell, shards in order; failed cells stay, since the table shows their error."""
    found = rows(records, names={"method": key_of}, over="shard", status=EVERY, columns=())
    return [
        replace(cell, records=tuple(sorted(cell.records, key=lambda record: record.run.options["shard"])))
        for cell in found
    ]


def by_model(found: Iterable[Row]) -> list[list[Row]]:
    """Group cells by model, precision, seed and numerics."""

    def key(cell: Row) -> str:
        run = cell.records[0].run
        return canonical([run.options["model"], run.options["dtype"], run.seed, vars(run.numerics)])

    return list(grouped(found, key).values())


def key_of(record: Record) -> str:
    """The method as a JSON key: its name, and the protocol options that are not the default."""
    options = record.run.options
    marks = {"@cache": options["positions"] == "cache", "@prefix": options["protocol"] == "prefix"}
    marks[f"@chunk{options['chunk']}"] = options["protocol"] == "chunked"
    return attention.label_of(options["method"]) + "".join(mark for mark, there in marks.items() if there)


def budget_of(cell: Row) -> Budget:
    return Budget(**cell.options["budget"])


def method_of(cell: Row) -> Method | None:
    """The method; None where it comes from a plug-in file that this command was not given."""
    spec = cell.options["method"]
    return attention.load(spec) if spec["name"] in attention.names() else None


def departures(method: Method | None, positions: str) -> list[str]:
    """Say what differs from the published form: the method's own words, and positions not counted in the cache."""
    in_text = isinstance(method, Pattern) and method.published_in_cache and positions == "absolute"
    return ([method.departure] if method and method.departure else []) + ([TEXT_POSITIONS] if in_text else [])


def form(method: Method, positions: str) -> str:
    """Return the name of a row: the method's, with every departure from its published form."""
    said = departures(method, positions)
    return f"{method.label} ({', '.join(said)})" if said else method.label


def is_dense(cell: Row) -> bool:
    return bool(cell.options["method"]["name"] == "dense")


def after_prefix(cell: Row) -> bool:
    """Return whether only the continuation of a dense prefix was scored, unlike under other protocols."""
    return bool(cell.options["protocol"] == "prefix")


def hides(cell: Row) -> bool:
    """Return whether the model's own sliding window hid keys that the method keeps."""
    return any(record.metrics.get("usage", {}).get("hidden") for record in cell.records)


def error_of(cell: Row) -> str | None:
    """The reason of a run without a result: the last line of the error, or why the budget is too small."""
    for record in cell.records:
        if record.status == "failed":
            return ((record.error or "").strip() or "failed").splitlines()[-1]
        if record.refusal:
            return record.refusal
        if record.status == "diverged":
            return "a number was not finite"
    return None


def in_short(error: str) -> str:
    """Shorten an error for a table: the message up to its details, without the error's class, and without the method,
    which stands beside it."""
    said = re.sub(r"^[\w.]+(?:Error|Exception|Interrupt|Small|MethodFault: .*?): ", "", error).partition(":")[0]
    return said if len(said) <= 60 else said[:57] + "..."


def error(cell: Row) -> str | None:
    """The reason for a missing number."""
    if reason := error_of(cell):
        return reason
    if cell.n < cell.options["shards"]:
        return f"only {cell.n} of {cell.options['shards']} parts were scored"
    (tokens,) = sums(cell, "tokens")
    return None if sum(tokens) else "no token was scored"


def sums(cell: Row, *keys: str) -> list[list[float]]:
    """Sums over the tokens of each cluster, a list per key. Clusters come in one order in all cells of a text, so that
    methods can be compared cluster by cluster."""
    order = _by_cluster(cell)
    found = [record.metrics["sums"] for record in cell.records]
    return [[found[shard][key][place] for shard, place in order] for key in keys]


def facts(cell: Row, key: str) -> list[Any]:
    """The clusters' numbers, documents or distances, in the order of `sums`."""
    return [cell.records[shard].metrics[key][place] for shard, place in _by_cluster(cell)]


def by_fact(cell: Row, fact: str, key: str) -> dict[Any, float]:
    """A sum per token of the clusters that share a fact: the loss by distance, the right tokens by depth."""
    groups = grouped(zip(facts(cell, fact), *sums(cell, key, "tokens"), strict=True), itemgetter(0))
    counts = {value: sum(tokens for *_, tokens in own) for value, own in groups.items()}
    return {value: sum(total for _, total, _ in groups[value]) / n for value, n in counts.items() if n}


def _by_cluster(cell: Row) -> list[tuple[int, int]]:
    """(index of the shard, index in it) of each cluster, in the order of their numbers."""
    numbered = [
        (number, shard, place)
        for shard, record in enumerate(cell.records)
        for place, number in enumerate(record.metrics["clusters"])
    ]
    return [(shard, place) for _, shard, place in sorted(numbered)]


def usage(cell: Row, key: str) -> float:
    """Sum a usage count of attention over shards."""
    return sum(record.metrics["usage"][key] for record in cell.records)


def cost(cell: Row, key: str) -> list[float]:
    return [record.cost[key] for record in cell.records if key in record.cost]


def result(cell: Row, dense: Row | None, window: Row | None) -> dict[str, Any]:
    """Return R: the cell's numbers; or null for each, and the error."""
    budget, reason = budget_of(cell), error(cell)
    head = {
        "context_length": cell.options["context"],
        "nominal_sparsity": budget.sparsity,
        "budget": budget.slots,
        "error": reason,
        "failed": any(record.status in ("failed", "diverged") for record in cell.records),
        "records": [record.run.id for record in cell.records],
    }
    if reason:
        return dict.fromkeys(EMPTY) | {"num_tokens": 0, "num_samples": 0} | head
    compared = _compared(cell, dense, window)
    return _losses(cell) | compared | _recall(cell) | _keys(cell) | _curves(cell) | _costs(cell) | head


def _losses(cell: Row) -> dict[str, Any]:
    tokens, nll, kl = sums(cell, "tokens", "nll", "kl")
    loss, count = ratio(nll, tokens), sum(tokens)
    metrics, clusters = cell.records[0].metrics, facts(cell, "clusters")
    return {
        "perplexity": math.exp(min(loss.mean, 700.0)),
        "perplexity_interval": [_exp(loss.low), _exp(loss.high)],
        "cross_entropy": loss.mean,
        "cross_entropy_interval": [loss.low, loss.high],
        "bits_per_token": loss.mean / LN2,
        **_per_text(cell, sum(nll)),
        "num_tokens": round(count),
        "num_samples": len(set(facts(cell, "documents"))),
        "clusters": len(tokens),
        "kl_to_dense": sum(kl) / count,
        "dataset_sha256": metrics["dataset_sha256"],
        "documents_too_short": metrics["documents_too_short"],
        "cluster_tokens": {str(c): t for c, t in zip(clusters, tokens, strict=True) if t},
        "cluster_losses": {str(c): n / t for c, n, t in zip(clusters, nll, tokens, strict=True) if t},
    }


def _per_text(cell: Row, nll: float) -> dict[str, float | None]:
    """Losses per character, byte and word, where all tokens of a text were scored."""
    chars, size, words = map(sum, sums(cell, "chars", "bytes", "words"))
    if after_prefix(cell) or not size:
        return dict.fromkeys(("bits_per_char", "bits_per_byte", "byte_perplexity", "word_perplexity"))
    return {
        "bits_per_char": nll / LN2 / chars,
        "bits_per_byte": nll / LN2 / size,
        "byte_perplexity": math.exp(nll / size),
        "word_perplexity": _exp(nll / max(1.0, words)),
    }


def _compared(cell: Row, dense: Row | None, window: Row | None) -> dict[str, Any]:
    """Compare with dense attention, paired by cluster, and compute the share of the gain from context that is kept."""
    if dense is None or error(dense):
        return {"delta_vs_dense": None, "context_gain_kept": None}
    whole = sums(dense, "nll", "tokens")
    delta = ratio_difference(*sums(cell, "nll", "tokens"), *whole)
    found: dict[str, Any] = {
        "delta_cross_entropy": delta.mean,
        "delta_cross_entropy_interval": [delta.low, delta.high],
        # exp(a) / exp(b) - 1: the perplexity over the dense one.
        "delta_vs_dense": math.expm1(min(delta.mean, 700.0)),
        "delta_vs_dense_interval": [None if b is None else math.expm1(min(b, 700.0)) for b in (delta.low, delta.high)],
        "dense_perplexity": math.exp(min(sum(whole[0]) / sum(whole[1]), 700.0)),
        "context_gain_kept": None,
    }
    # At one sparsity a method that selects reads a share of the visible keys, a window a fixed number: not comparable.
    alike = budget_of(cell).sparsity is None or not isinstance(method_of(cell), Select | None)
    if window is not None and not error(window) and alike:
        gain = ratio_difference(*sums(window, "nll", "tokens"), *whole)
        # Where the window does not lose significantly there is no gain to keep.
        if gain.low is not None and gain.low > 0:
            found["context_gain_kept"] = 1 - delta.mean / gain.mean
    return found


def _recall(cell: Row) -> dict[str, Any]:
    """The loss where the token could be looked up in the context, and elsewhere."""
    hits, hit_nll, tokens, nll = map(sum, sums(cell, "hits", "hit_nll", "tokens", "nll"))
    return {
        "recall_hits": round(hits),
        "recall_cross_entropy": hit_nll / hits if hits else None,
        "other_cross_entropy": (nll - hit_nll) / (tokens - hits) if tokens > hits else None,
    }


def _keys(cell: Row) -> dict[str, Any]:
    """The loss of the tokens that a long context makes likelier, where they were asked for."""
    if any("keys" not in record.metrics["sums"] for record in cell.records):
        return {}
    keys, nll = map(sum, sums(cell, "keys", "key_nll"))
    return {"key_tokens": round(keys), "key_cross_entropy": nll / keys if keys else None}


def _curves(cell: Row) -> dict[str, Any]:
    """The loss by place in the window (0, 1, 2-3, 4-7, ...), and by distance for the copy probe."""
    counts, totals = (_by_place(cell.records, key) for key in ("tokens", "nll"))
    firsts = [0, *(2**power for power in range(len(counts) - 1))]
    by_place = {str(f): t / n for f, t, n in zip(firsts, totals, counts, strict=True) if n}
    copied = {str(distance): loss for distance, loss in sorted(by_fact(cell, "distances", "nll").items()) if distance}
    return {"cross_entropy_by_position": by_place} | ({"cross_entropy_by_distance": copied} if copied else {})


def _by_place(records: Sequence[Record], key: str) -> list[float]:
    return [sum(column) for column in zip(*(r.metrics["by_place"][key] for r in records), strict=True)]


def _costs(cell: Row) -> dict[str, Any]:
    size = cell.records[0].metrics["vector_bytes"]
    seconds, windows, queries = sum(cost(cell, "seconds")), usage(cell, "windows"), usage(cell, "tokens")
    return {
        "realised_sparsity": 1 - usage(cell, "attended") / usage(cell, "visible"),
        "kv_bytes_resident": size * usage(cell, "vectors_stored") / windows,
        "kv_bytes_read_per_token": size * usage(cell, "vectors_read") / queries,
        "attention_flops_per_token": usage(cell, "attention_flops") / queries,
        "seconds_share": seconds,
        # All lanes share one forward pass, so this is the same for each of its methods.
        "pass_tokens_per_second": windows * cell.options["context"] / seconds if seconds else None,
        "peak_memory_bytes": max(cost(cell, "peak_memory_bytes"), default=None),
    }


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(min(value, 700.0))
