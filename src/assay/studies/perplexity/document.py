"""Turns records into one JSON document in the form of the spec, from which every figure and table is drawn.

    {"config": {...}, "results": {DATASET: {METHOD: {"context_length_sweep": {"512": R}, "sparsity_sweep": {"0.9": R},
                                                      "budget_sweep": {"256": R}}}}}

Keys are nominal; R (cells.py) has the realised values. A failed cell has null for every number, and its error.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from assay.attention import attention
from assay.attention.base import Pattern
from assay.core.grouping import grouped
from assay.core.run import Record, canonical, finite
from assay.data.text import KEPT
from assay.metrics.intervals import Interval
from assay.report.rows import Row
from assay.studies.perplexity.cells import (
    TEXT_POSITIONS,
    after_prefix,
    budget_of,
    by_model,
    cells,
    departures,
    hides,
    is_dense,
    method_of,
    result,
)

SWEEPS = ("sparsity_sweep", "budget_sweep", "context_length_sweep")
FIXED = SWEEPS[:2]
"""The sweeps over sparsities and budgets, at the fixed context."""
BLOCKS = "block_size"
"""Option of a run whose budget has halved the blocks of its method."""
Entry = Mapping[str, Any]
"""R, the numbers of one cell."""


@dataclass(frozen=True)
class Sweeps:
    """The values of each sweep (empty: no such sweep), and the positions and protocol that the command asked for, which
    records alone do not tell."""

    context_lengths: tuple[int, ...]
    fixed_sparsity: float | None
    sparsity_levels: tuple[float, ...]
    budgets: tuple[int, ...]
    fixed_context_length: int
    positions: str | None = None
    protocol: str | None = None

    def fit(self, cells: Sequence[Row]) -> bool:
        """Return whether all cells belong to these sweeps; a page of several commands has others."""
        levels, at_fixed = self.sparsity_levels, [cell for cell in cells if not self.by_context(cell)]
        asked = {"positions": ("absolute", self.positions), "protocol": ("online", self.protocol)}
        if any(cell.options[key] not in known for cell in cells for key, known in asked.items()):
            return False
        return all(
            cell.options["context"] == self.fixed_context_length
            and (is_dense(cell) or budget_of(cell).sparsity in levels or budget_of(cell).slots in self.budgets)
            for cell in at_fixed
        )

    def by_context(self, cell: Row) -> bool:
        fits = is_dense(cell) or budget_of(cell).sparsity == self.fixed_sparsity
        return fits and cell.options["context"] in self.context_lengths

    def by_sparsity(self, cell: Row) -> bool:
        """Return whether the cell is in the sweep over sparsities; dense attention is at 0, beside budgets too."""
        has_fixed = bool(self.sparsity_levels or self.budgets)
        fits = budget_of(cell).sparsity in self.sparsity_levels or (is_dense(cell) and has_fixed)
        return fits and cell.options["context"] == self.fixed_context_length

    def by_budget(self, cell: Row) -> bool:
        return budget_of(cell).slots in self.budgets and cell.options["context"] == self.fixed_context_length

    def title(self, cell: Row, *others: Row, hidden: bool = False) -> str:
        """The method's name in tables, with every departure from the published form and from the command, and the size
        of the blocks that a budget has halved: of one cell, or from the smallest of several to the largest. `hidden`:
        the model's own window hides keys that the method keeps."""
        positions, protocol = cell.options["positions"], cell.options["protocol"]
        method, label = method_of(cell), attention.label_of(cell.options["method"])
        said = departures(method, positions)
        if any(BLOCKS in each.options for each in (cell, *others)):
            sizes = {each.options.get(BLOCKS, getattr(method, BLOCKS, 0)) for each in (cell, *others)}
            said.append(f"blocks of {' to '.join(str(size) for size in sorted({min(sizes), max(sizes)}))}")
        beside_cache = positions == "absolute" and self.positions == "cache" and not is_dense(cell)
        if beside_cache and TEXT_POSITIONS not in said:
            said.append(TEXT_POSITIONS)
        if hidden and isinstance(method, Pattern):
            said.append(method.when_hidden)
        if protocol == "chunked":
            said.append(f"chunks of {cell.options['chunk']}")
        elif protocol == "online" and self.protocol == "chunked" and not is_dense(cell):
            said.append("online")
        if after_prefix(cell):
            said.append("prefix")
        return f"{label} ({', '.join(said)})" if said else label


def guessed_sweeps(cells: Sequence[Row]) -> Sweeps:
    """Guess the sweeps from records alone: the fixed context is the most common one, the fixed sparsity the one with
    most contexts."""
    contexts = [cell.options["context"] for cell in cells]
    lossy = [cell for cell in cells if not is_dense(cell)]
    pairs = {(budget_of(cell).sparsity, cell.options["context"]) for cell in lossy}
    spread = [level for level, _ in pairs if level is not None]
    return Sweeps(
        tuple(sorted(set(contexts))),
        max(spread, key=lambda level: (spread.count(level), level), default=None),
        tuple(sorted({0.0, *spread})),
        tuple(sorted({slots for cell in lossy if (slots := budget_of(cell).slots) is not None})),
        max(contexts, key=lambda context: (contexts.count(context), context)),
    )


def documents_of(
    records: Sequence[Record], *, name: str, description: str = "", sweeps: Sweeps | None = None
) -> list[dict[str, Any]]:
    """Build one document per model, precision, seed and numerics."""
    head = {"name": name, "description": description}
    return [_document(own, head, sweeps) for own in by_model(cells(records))]


def _document(found: Sequence[Row], head: Mapping[str, Any], given: Sweeps | None) -> dict[str, Any]:
    first, every = found[0].records[0], [record for cell in found for record in cell.records]
    sweeps = given if given is not None and given.fit(found) else guessed_sweeps(found)
    results = {label: _methods(own, sweeps) for label, own in _by_text(found).items()}
    computed_in = (record.metrics["dtype"] for record in every if record.metrics.get("dtype"))
    config = {
        **head,
        "model": first.run.options["model"],
        # The precision that `auto` stood for; a failed cell does not have it.
        "dtype": next(computed_in, first.run.options["dtype"]),
        "datasets": list(results),
        "methods": list(dict.fromkeys(cell.label for cell in found)),
        **vars(sweeps),
        "seed": first.run.seed,
        "numerics": vars(first.run.numerics),
        "versions": {"assay": first.provenance.assay, "torch": first.provenance.torch},
        "timestamp": max(record.finished for record in every),
    }
    return finite({"config": config, "results": results})[0]


def _by_text(found: Sequence[Row]) -> dict[str, list[Row]]:
    """Group cells by the name of their text, numbered where texts of one name were cut differently."""
    texts = grouped(found, lambda cell: canonical(cell.options["dataset"]))
    names = [own[0].options["dataset"]["name"] for own in texts.values()]
    named = [name if name in KEPT else name.rstrip("/").rpartition("/")[2] for name in names]
    while len(set(named)) < len(named):  # again where a file has a numbered name of its own
        named = [
            f"{name}#{named[: place + 1].count(name)}" if named.count(name) > 1 else name
            for place, name in enumerate(named)
        ]
    return dict(zip(named, texts.values(), strict=True))


def _methods(found: Sequence[Row], sweeps: Sweeps) -> dict[str, Any]:
    dense = {_scored(cell): cell for cell in found if is_dense(cell)}
    window = {(_scored(c), budget_of(c)): c for c in found if c.options["method"]["name"] == "window"}
    hidden = {cell.label for cell in found if hides(cell)}  # at some budget: a line of a chart has one name
    methods: dict[str, Any] = {}
    lines = grouped(found, lambda cell: cell.label)
    for cell in found:
        budget, named = budget_of(cell), partial(sweeps.title, hidden=cell.label in hidden)
        place = methods.setdefault(cell.label, {"context_length_sweep": {}, "sparsity_sweep": {}, "budget_sweep": {}})
        place["title"] = named(*lines[cell.label])
        place |= {key: cell.options[key] for key in ("positions", "protocol")}
        entry = result(cell, dense.get(_scored(cell)), window.get((_scored(cell), budget)))
        entry |= {key: cell.options[key] for key in (BLOCKS,) if key in cell.options}
        entry |= {"title": named(cell)} if named(cell) != place["title"] else {}
        if sweeps.by_context(cell):
            place["context_length_sweep"][str(cell.options["context"])] = entry
        if sweeps.by_sparsity(cell):
            place["sparsity_sweep"][str(budget.sparsity)] = entry
        if sweeps.by_budget(cell):
            place["budget_sweep"][str(budget.slots)] = entry
    return methods


def _scored(cell: Row) -> tuple[int, bool]:
    """The key of cells whose losses can be compared: the context, and whether all tokens were scored."""
    return cell.options["context"], after_prefix(cell)


def entries(document: Mapping[str, Any], *sweeps: str) -> Iterator[tuple[str, str, str, Entry]]:
    """Yield (dataset, title of the method, key in the sweep, R), each cell once."""
    for dataset, methods in document["results"].items():
        seen = set[tuple[str, ...]]()
        for found in methods.values():
            for sweep in sweeps:
                for key, entry in found[sweep].items():
                    cell = (found["title"], *entry["records"])
                    if cell not in seen:
                        seen.add(cell)
                        yield dataset, found["title"], key, entry


def interval(entry: Entry, key: str) -> Interval | None:
    """A number of R with its bounds."""
    if entry.get(key) is None:
        return None
    low, high = entry.get(f"{key}_interval") or (None, None)
    return Interval(entry[key], low, high, entry.get("clusters", 0))
