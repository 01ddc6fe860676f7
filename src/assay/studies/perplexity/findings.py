"""Says which method loses least against dense attention at one budget, and which the text's clusters tell apart.

In these runs (smollm2-135m on pydoc, 80 tokens of context, 20 clusters) h2o loses least at k=20: perplexity +26.5 %
[21.1, 32.8] over dense, told apart from every other method; window loses most, +525.5 % [379.5, 734.3].
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from assay.metrics.bootstrap import LEAST
from assay.metrics.intervals import told_apart
from assay.report.sentences import listed
from assay.report.text import with_interval
from assay.studies.perplexity.document import SWEEPS, Entry, entries, interval
from assay.studies.perplexity.figures import alike, budget_shown, p_of_difference, percent


def sentences(document: Mapping[str, Any]) -> dict[str, str]:
    """A sentence by text: the methods at the budget that most of them were compared at, the sparsest of those."""
    found: dict[str, dict[tuple[Any, ...], dict[tuple[str, ...], Entry]]] = {}
    for dataset, title, _, entry in entries(document, *SWEEPS):
        if entry["perplexity"] is not None:
            place = entry["context_length"], entry["nominal_sparsity"], entry["budget"]
            found.setdefault(dataset, {}).setdefault(place, {})[(entry.get("title", title), *entry["records"])] = entry
    model = str(document["config"]["model"]["name"]).rstrip("/").rpartition("/")[2]
    return {dataset: f"In these runs ({model} on {dataset}, {_of_text(own)}" for dataset, own in found.items()}


def _of_text(budgets: Mapping[Any, Mapping[tuple[str, ...], Entry]]) -> str:
    sparse = [
        {key[0]: cells[key] for key in group}
        for every in budgets.values()
        for cells in [{key: entry for key, entry in every.items() if _loses(entry)}]
        for group in alike(cells)
    ]
    if not sparse:
        dense = next(iter(next(iter(budgets.values())).values()))
        found = interval(dense, "perplexity")
        return f"{_kind(dense)}) dense attention has perplexity {with_interval(found, '.3f') if found else 'unknown'}."
    cells = max(sparse, key=lambda cells: (len(cells), next(iter(cells.values()))["realised_sparsity"]))
    return _compared(dict(sorted(cells.items(), key=lambda cell: cell[1]["cross_entropy"])))


def _loses(entry: Entry) -> bool:
    return bool(entry["realised_sparsity"] and entry.get("delta_vs_dense") is not None)


def _compared(cells: Mapping[str, Entry]) -> str:
    (best, first), *others = cells.items()
    sparsity = f"{budget_shown(first)} (realised sparsity {first['realised_sparsity']:.2f})"
    head = (
        f"{_kind(first)}) {best} loses {'least ' if others else ''}at {sparsity}: perplexity {_loss(first)} over dense"
    )
    if not others:
        return f"{head}."
    last, worst = others[-1]
    most = f"{last} loses most, {_loss(worst)}"
    if first["clusters"] < LEAST:
        return f"{head}; {most}; {first['clusters']} clusters tell nothing apart."
    losses = {name: {0: -entry["cross_entropy"]} for name, entry in cells.items()}
    apart = {frozenset(pair) for pair in told_apart(losses, p_of=partial(p_of_difference, cells))}
    beaten = [name for name, _ in others if frozenset((best, name)) in apart]
    level = [name for name, _ in others if name not in beaten]
    if not level:
        return f"{head}, told apart from every other method; {most}."
    if beaten:
        return f"{head}, told apart from {listed(beaten)}, not from {listed(level)}; {most}."
    return f"{head}, {'but no two methods are told apart' if not apart else 'told apart from none'}; {most}."


def _kind(entry: Entry) -> str:
    return f"{entry['context_length']} tokens of context, {entry['clusters']} cluster{'s' * (entry['clusters'] != 1)}"


def _loss(entry: Entry) -> str:
    """`+26.5 % [21.1, 32.8]`."""
    found = percent(interval(entry, "delta_vs_dense"))
    assert found is not None, "a cell without a loss is not compared"
    mean, _, bounds = with_interval(found, ".1f").partition(" ")
    return f"{'' if found.mean < 0 else '+'}{mean} %{f' {bounds}' if bounds else ''}"
