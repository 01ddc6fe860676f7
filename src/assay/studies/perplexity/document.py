"""Turns records into one JSON document in the form of the spec, from which every figure and table is drawn.

    {"config": {...}, "results": {DATASET: {METHOD: {"context_length_sweep": {"512": R}, "sparsity_sweep": {"0.9": R},
                                                      "budget_sweep": {"256": R}}}}}

Keys are nominal; R (cells.py) has the realised values. A failed cell has null for every number, and its error.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.core.run import Record, canonical, finite
from assay.data.text import KEPT
from assay.metrics.intervals import Interval
from assay.report.rows import Row
from assay.studies.perplexity.cells import after_prefix, budget_of, cells, hides, is_dense, result
from assay.studies.perplexity.sweeps import Sweeps, guessed_sweeps

SWEEPS = ("sparsity_sweep", "budget_sweep", "context_length_sweep")
Entry = Mapping[str, Any]
"""R, the numbers of one cell."""


def documents_of(
    records: Sequence[Record], *, name: str, description: str = "", sweeps: Sweeps | None = None
) -> list[dict[str, Any]]:
    """Build one document per model, precision, seed and numerics."""
    groups: dict[str, list[Row]] = {}
    for cell in cells(records):
        run = cell.records[0].run
        key = canonical([run.options["model"], run.options["dtype"], run.seed, vars(run.numerics)])
        groups.setdefault(key, []).append(cell)
    head = {"name": name, "description": description}
    return [_document(own, head, sweeps) for own in groups.values()]


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
    texts: dict[str, list[Row]] = {}
    for cell in found:
        texts.setdefault(canonical(cell.options["dataset"]), []).append(cell)
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
    for cell in found:
        budget = budget_of(cell)
        place = methods.setdefault(cell.label, {"context_length_sweep": {}, "sparsity_sweep": {}, "budget_sweep": {}})
        place["title"] = sweeps.title(cell, hidden=cell.label in hidden)
        place |= {key: cell.options[key] for key in ("positions", "protocol")}
        entry = result(cell, dense.get(_scored(cell)), window.get((_scored(cell), budget)))
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
