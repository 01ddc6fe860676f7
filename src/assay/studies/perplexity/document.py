"""Records as one JSON document in the form of the spec, from which every figure and table is drawn.

    {"config": {...}, "results": {DATASET: {METHOD: {"context_length_sweep": {"512": R}, "sparsity_sweep": {"0.9": R},
                                                      "budget_sweep": {"256": R}}}}}

Keys are nominal; what was realised stands in R. A cell that failed has null for every number, and its error.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from assay.attention import attention
from assay.attention.base import Budget, Method, Pattern, Select
from assay.core.run import Record, canonical, finite
from assay.metrics.bootstrap import ratio, ratio_difference
from assay.metrics.intervals import Interval

LN2 = math.log(2)
"""What a document's cells have in common besides their text."""


@dataclass(frozen=True)
class Cell:
    """The shards of one method with one budget at one context length, joined."""

    records: tuple[Record, ...]

    @cached_property
    def options(self) -> Mapping[str, Any]:
        return self.records[0].run.options

    @property
    def error(self) -> str | None:
        """Why there is no number: the last line of what was raised, or what a method needs more of."""
        for record in self.records:
            if record.status == "failed":
                return ((record.error or "").strip() or "failed").splitlines()[-1]
            if record.refusal:
                return record.refusal
            if record.status == "diverged":
                return "a number was not finite"
        if len(self.records) < self.options["shards"]:
            return f"only {len(self.records)} of {self.options['shards']} parts were scored"
        return None if sum(self.column("tokens")) else "no token was scored"

    @property
    def failed(self) -> bool:
        return any(record.status in ("failed", "diverged") for record in self.records)

    @cached_property
    def order(self) -> list[tuple[int, int]]:
        """(record, place) by cluster: the same for every cell of a text."""
        places = [(c, r, i) for r, one in enumerate(self.records) for i, c in enumerate(one.metrics["clusters"])]
        return [(r, i) for _, r, i in sorted(places)]

    def column(self, key: str) -> list[float]:
        return [self.records[r].metrics["sums"][key][i] for r, i in self.order]

    def numbers(self, key: str) -> list[Any]:
        return [self.records[r].metrics[key][i] for r, i in self.order]

    def usage(self, key: str) -> float:
        return sum(record.metrics["usage"][key] for record in self.records)

    def cost(self, key: str) -> list[float]:
        return [record.cost[key] for record in self.records if key in record.cost]

    @property
    def budget(self) -> Budget:
        return Budget(**self.options["budget"])

    @property
    def is_dense(self) -> bool:
        return self.options["method"]["name"] == "dense"

    @property
    def prefix(self) -> bool:
        return self.options["protocol"] == "prefix"

    @property
    def method(self) -> Method | None:
        """None: one whose file this command was not given."""
        spec = self.options["method"]
        return attention.load(spec) if spec["name"] in attention.names() else None

    @property
    def key(self) -> str:
        """The method as a JSON key: its name, and what of the protocol is not the default."""
        marks = {"@cache": self.options["positions"] == "cache", "@prefix": self.prefix}
        marks[f"@chunk{self.options['chunk']}"] = self.options["protocol"] == "chunked"
        return attention.label_of(self.options["method"]) + "".join(mark for mark, there in marks.items() if there)

    def title(self, sweeps: "Sweeps") -> str:
        """The row's name: every departure from the published form shows, and from what the command asked for."""
        positions, protocol = self.options["positions"], self.options["protocol"]
        method, label = self.method, attention.label_of(self.options["method"])
        said = [method.departure] if method and method.departure else []
        in_cache = isinstance(method, Pattern) and method.published_in_cache
        if positions == "absolute" and (in_cache or (sweeps.positions == "cache" and not self.is_dense)):
            said.append("absolute positions")
        if protocol == "chunked":
            said.append(f"chunks of {self.options['chunk']}")
        elif protocol == "online" and sweeps.protocol == "chunked" and not self.is_dense:
            said.append("online")
        if self.prefix:
            said.append("prefix")
        return f"{label} ({', '.join(said)})" if said else label


def cells_of(records: Iterable[Record]) -> list[Cell]:
    groups: dict[str, dict[int, Record]] = {}
    for record in records:
        run = record.run
        same = {key: value for key, value in run.options.items() if key != "shard"}
        key = canonical([same, run.seed, dict(run.versions), vars(run.numerics)])
        groups.setdefault(key, {})[run.options["shard"]] = record
    return [Cell(tuple(group[shard] for shard in sorted(group))) for group in groups.values()]


@dataclass(frozen=True)
class Sweeps:
    """Which cells belong to which sweep; an empty sweep was left out. And what the command asked of all of them, which
    records of several commands do not tell."""

    context_lengths: tuple[int, ...]
    fixed_sparsity: float | None
    sparsity_levels: tuple[float, ...]
    budgets: tuple[int, ...]
    fixed_context_length: int
    positions: str | None = None
    protocol: str | None = None

    def fit(self, cells: Iterable[Cell]) -> bool:
        """Whether the cells are those of these sweeps; those of other commands, as on a page of everything, are not."""
        cells = list(cells)
        levels, at_fixed = self.sparsity_levels, [cell for cell in cells if not self.by_context(cell)]
        asked = {("positions", "absolute"), ("protocol", "online"), ("positions", self.positions)}
        asked.add(("protocol", self.protocol))
        if any((key, cell.options[key]) not in asked for cell in cells for key in ("positions", "protocol")):
            return False
        return all(
            cell.options["context"] == self.fixed_context_length
            and (cell.is_dense or cell.budget.sparsity in levels or cell.budget.slots in self.budgets)
            for cell in at_fixed
        )

    def by_context(self, cell: Cell) -> bool:
        fits = cell.is_dense or cell.budget.sparsity == self.fixed_sparsity
        return fits and cell.options["context"] in self.context_lengths

    def by_sparsity(self, cell: Cell) -> bool:
        """Dense attention stands at 0, beside budgets too."""
        fits = cell.budget.sparsity in self.sparsity_levels or (cell.is_dense and self.has_fixed)
        return fits and cell.options["context"] == self.fixed_context_length

    def by_budget(self, cell: Cell) -> bool:
        return cell.budget.slots in self.budgets and cell.options["context"] == self.fixed_context_length

    @property
    def has_fixed(self) -> bool:
        return bool(self.sparsity_levels or self.budgets)


def guessed_sweeps(cells: Sequence[Cell]) -> Sweeps:
    """From records alone: the fixed context is the one most cells have, the fixed sparsity that of most contexts."""
    contexts = [cell.options["context"] for cell in cells]
    lossy = [cell for cell in cells if not cell.is_dense]
    pairs = {(cell.budget.sparsity, cell.options["context"]) for cell in lossy}
    spread = [level for level, _ in pairs if level is not None]
    return Sweeps(
        tuple(sorted(set(contexts))),
        max(spread, key=lambda level: (spread.count(level), level), default=None),
        tuple(sorted({0.0, *spread})),
        tuple(sorted({cell.budget.slots for cell in lossy if cell.budget.slots is not None})),
        max(contexts, key=lambda context: (contexts.count(context), context)),
    )


def documents_of(
    records: Sequence[Record], *, name: str, description: str = "", sweeps: Sweeps | None = None
) -> list[dict[str, Any]]:
    """One document per model, precision and way of computing."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells_of(records):
        run = cell.records[0].run
        key = canonical([run.options["model"], run.options["dtype"], run.seed, vars(run.numerics)])
        groups.setdefault(key, []).append(cell)
    head = {"name": name, "description": description}
    return [_document(cells, head, sweeps) for cells in groups.values()]


def _document(cells: Sequence[Cell], head: Mapping[str, Any], given: Sweeps | None) -> dict[str, Any]:
    first = cells[0].records[0]
    sweeps = given if given is not None and given.fit(cells) else guessed_sweeps(cells)
    named = _dataset_names(cells)
    results: dict[str, dict[str, Any]] = {}
    for label in dict.fromkeys(named.values()):
        mine = [cell for cell in cells if named[_text(cell)] == label]
        results[label] = _methods(mine, sweeps)
    config = {
        **head,
        "model": first.run.options["model"],
        # What was computed with, not the word `auto`; a cell that failed has not got that far.
        "dtype": next(
            (r.metrics["dtype"] for cell in cells for r in cell.records if r.metrics.get("dtype")),
            first.run.options["dtype"],
        ),
        "datasets": list(results),
        "methods": list(dict.fromkeys(cell.key for cell in cells)),
        **vars(sweeps),
        "seed": first.run.seed,
        "numerics": vars(first.run.numerics),
        "versions": {"assay": first.provenance.assay, "torch": first.provenance.torch},
        "timestamp": max(record.finished for cell in cells for record in cell.records),
    }
    return finite({"config": config, "results": results})[0]


def _text(cell: Cell) -> str:
    return canonical(cell.options["dataset"])


def _dataset_names(cells: Sequence[Cell]) -> dict[str, str]:
    """A name for each text; a number tells those apart that were cut differently."""
    texts = list(dict.fromkeys(_text(cell) for cell in cells))
    plain = {text: cell.options["dataset"]["name"] for cell in cells for text in [_text(cell)]}
    named = {text: plain[text].rstrip("/").rpartition("/")[2] for text in texts}
    for text in texts:
        same = [other for other in texts if named[other] == named[text]]
        if len(same) > 1:
            named |= {other: f"{named[other]}#{number}" for number, other in enumerate(same, start=1)}
    return named


def _methods(cells: Sequence[Cell], sweeps: Sweeps) -> dict[str, Any]:
    dense = {(c.options["context"], c.prefix): c for c in cells if c.is_dense}
    window = {(c.options["context"], c.prefix, c.budget): c for c in cells if c.options["method"]["name"] == "window"}
    found: dict[str, Any] = {}
    for cell in cells:
        context, budget = cell.options["context"], cell.budget
        place = found.setdefault(cell.key, {"context_length_sweep": {}, "sparsity_sweep": {}, "budget_sweep": {}})
        place["title"] = cell.title(sweeps)
        place |= {key: cell.options[key] for key in ("positions", "protocol")}
        entry = result(cell, dense.get((context, cell.prefix)), window.get((context, cell.prefix, budget)))
        if sweeps.by_context(cell):
            place["context_length_sweep"][str(context)] = entry
        if sweeps.by_sparsity(cell):
            place["sparsity_sweep"][str(budget.sparsity)] = entry
        if sweeps.by_budget(cell):
            place["budget_sweep"][str(budget.slots)] = entry
    return found


EMPTY = (
    "perplexity", "cross_entropy", "bits_per_token", "bits_per_char", "word_perplexity", "byte_perplexity",
    "bits_per_byte", "kl_to_dense", "delta_vs_dense", "context_gain_kept", "realised_sparsity", "kv_bytes_resident",
    "kv_bytes_read_per_token", "attention_flops_per_token", "seconds_share", "pass_tokens_per_second",
    "peak_memory_bytes",
)  # fmt: skip


def result(cell: Cell, dense: Cell | None, window: Cell | None) -> dict[str, Any]:
    """R: the numbers of one cell, or null and the reason."""
    budget = cell.budget
    head = {
        "context_length": cell.options["context"],
        "nominal_sparsity": budget.sparsity,
        "budget": budget.slots,
        "error": cell.error,
        "failed": cell.failed,
        "records": [record.run.id for record in cell.records],
    }
    if cell.error:
        return dict.fromkeys(EMPTY) | {"num_tokens": 0, "num_samples": 0} | head
    tokens, nll = cell.column("tokens"), cell.column("nll")
    loss, count = ratio(nll, tokens), sum(tokens)
    metrics = cell.records[0].metrics
    found = {
        "perplexity": math.exp(min(loss.mean, 700.0)),
        "perplexity_interval": [_exp(loss.low), _exp(loss.high)],
        "cross_entropy": loss.mean,
        "cross_entropy_interval": [loss.low, loss.high],
        "bits_per_token": loss.mean / LN2,
        **_per_text(cell, sum(nll)),
        "num_tokens": round(count),
        "num_samples": len(set(cell.numbers("documents"))),
        "clusters": len(tokens),
        "kl_to_dense": sum(cell.column("kl")) / count,
        "dataset_sha256": metrics["dataset_sha256"],
        "documents_too_short": metrics["documents_too_short"],
        "cluster_tokens": {str(c): t for c, t in zip(cell.numbers("clusters"), tokens, strict=True) if t},
        "cluster_losses": {str(c): n / t for c, n, t in zip(cell.numbers("clusters"), nll, tokens, strict=True) if t},
    }
    return found | _compared(cell, dense, window) | _recall(cell) | _curves(cell) | _costs(cell, count) | head


def _per_text(cell: Cell, nll: float) -> dict[str, float | None]:
    """Losses per character, byte and word, where all tokens of a text were scored."""
    chars, size, words = (sum(cell.column(key)) for key in ("chars", "bytes", "words"))
    if cell.prefix or not size:
        return dict.fromkeys(("bits_per_char", "bits_per_byte", "byte_perplexity", "word_perplexity"))
    return {
        "bits_per_char": nll / LN2 / chars,
        "bits_per_byte": nll / LN2 / size,
        "byte_perplexity": math.exp(nll / size),
        "word_perplexity": _exp(nll / max(1.0, words)),
    }


def _compared(cell: Cell, dense: Cell | None, window: Cell | None) -> dict[str, Any]:
    """Against dense attention, cluster by cluster; and how much of what context gives beyond a window is kept."""
    if dense is None or dense.error:
        return {"delta_vs_dense": None, "context_gain_kept": None}
    mine, whole = (_losses(one) for one in (cell, dense))
    delta = ratio_difference(*mine, *whole)
    base = math.exp(min(sum(whole[0]) / sum(whole[1]), 700.0))
    found: dict[str, Any] = {
        "delta_cross_entropy": delta.mean,
        "delta_cross_entropy_interval": [delta.low, delta.high],
        # exp(a) / exp(b) - 1: the perplexity over the dense one.
        "delta_vs_dense": math.expm1(min(delta.mean, 700.0)),
        "delta_vs_dense_interval": [None if b is None else math.expm1(min(b, 700.0)) for b in (delta.low, delta.high)],
        "dense_perplexity": base,
        "context_gain_kept": None,
    }
    # Of one sparsity a method that selects reads a share of what is in sight, a window a fixed number: not alike.
    alike = cell.budget.sparsity is None or not isinstance(cell.method, Select | None)
    if window is not None and not window.error and alike:
        gain = ratio_difference(*_losses(window), *whole)
        # Where the window is not told to lose anything there is no gain to keep.
        if gain.low is not None and gain.low > 0:
            found["context_gain_kept"] = 1 - delta.mean / gain.mean
    return found


def _losses(cell: Cell) -> tuple[list[float], list[float]]:
    return cell.column("nll"), cell.column("tokens")


def _recall(cell: Cell) -> dict[str, Any]:
    """The loss where the token could be looked up in the context, and elsewhere."""
    hits, hit_nll = sum(cell.column("hits")), sum(cell.column("hit_nll"))
    tokens, nll = sum(cell.column("tokens")), sum(cell.column("nll"))
    return {
        "recall_hits": round(hits),
        "recall_cross_entropy": hit_nll / hits if hits else None,
        "other_cross_entropy": (nll - hit_nll) / (tokens - hits) if tokens > hits else None,
    }


def _curves(cell: Cell) -> dict[str, Any]:
    """The loss by place in the window (0, 1, 2-3, 4-7, ...), and by distance for the copy probe."""
    counts = [sum(column) for column in zip(*(r.metrics["by_place"]["tokens"] for r in cell.records), strict=True)]
    totals = [sum(column) for column in zip(*(r.metrics["by_place"]["nll"] for r in cell.records), strict=True)]
    firsts = [0, *(2**power for power in range(len(counts) - 1))]
    by_place = {str(f): t / n for f, t, n in zip(firsts, totals, counts, strict=True) if n}
    by_distance: dict[int, list[float]] = {}
    for distance, nll, tokens in zip(cell.numbers("distances"), *_losses(cell), strict=True):
        held = by_distance.setdefault(distance, [0.0, 0.0])
        by_distance[distance] = [held[0] + nll, held[1] + tokens]
    copied = {str(d): nll / n for d, (nll, n) in sorted(by_distance.items()) if d and n}
    return {"cross_entropy_by_position": by_place} | ({"cross_entropy_by_distance": copied} if copied else {})


def _costs(cell: Cell, tokens: float) -> dict[str, Any]:
    size = cell.records[0].metrics["vector_bytes"]
    seconds, windows = sum(cell.cost("seconds")), cell.usage("windows")
    queries = cell.usage("tokens")
    return {
        "realised_sparsity": 1 - cell.usage("attended") / cell.usage("visible"),
        "kv_bytes_resident": size * cell.usage("vectors_stored") / windows,
        "kv_bytes_read_per_token": size * cell.usage("vectors_read") / queries,
        "attention_flops_per_token": cell.usage("attention_flops") / queries,
        "seconds_share": seconds,
        # Of all lanes of the forward pass: the same for each method in it.
        "pass_tokens_per_second": windows * cell.options["context"] / seconds if seconds else None,
        "peak_memory_bytes": max(cell.cost("peak_memory_bytes"), default=None),
    }


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(min(value, 700.0))


def interval(entry: Mapping[str, Any], key: str) -> Interval | None:
    """A number of R with its bounds."""
    if entry.get(key) is None:
        return None
    low, high = entry.get(f"{key}_interval") or (None, None)
    return Interval(entry[key], low, high, entry.get("clusters", 0))
