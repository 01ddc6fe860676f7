"""Figure 4, Figure 8 and Table 3, from the JSON document alone: columns and charts as data.

document = json.load(open("results/perplexity/perplexity_latest.json"))
figure_4(document, "pydoc").save("figure_4.html");  print(generate_summary_table(document))
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from assay.attention.budget import Budget
from assay.metrics.bootstrap import LEAST, ratio_difference_p
from assay.metrics.intervals import Interval, letters
from assay.report.charts import interval_lines, without_validation
from assay.report.draw import filled
from assay.report.section import GROUP
from assay.studies.perplexity.cells import in_short
from assay.studies.perplexity.claims import EQUAL
from assay.studies.perplexity.document import FIXED, SWEEPS, Entry, entries, interval

FRONT = "(Pareto front)"
Cell = tuple[str, ...]
"""A text, a method and the ids of the records."""
COLUMNS: tuple[tuple[str, str | Callable[[Entry], Any], str], ...] = (
    ("Dataset", "dataset", ""),
    ("Method", "title", ""),
    ("Context", "context_length", ""),
    ("Sparsity", lambda entry: budget_shown(entry), ""),
    ("Realised", "realised_sparsity", ".3f"),
    ("Perplexity", lambda entry: interval(entry, "perplexity") or in_short(str(entry["error"])), ".3f"),
    (f"Perplexity{GROUP}", "group", ""),
    ("Clusters", lambda entry: entry.get("clusters"), ""),
    ("Δ vs dense %", lambda entry: percent(interval(entry, "delta_vs_dense")), ".2f"),
    ("KL", "kl_to_dense", ".4f"),
    ("Gain kept", "context_gain_kept", ""),
    # A cell without a result has no such keys.
    ("Recall CE", lambda entry: entry.get("recall_cross_entropy"), ".3f"),
    ("Other CE", lambda entry: entry.get("other_cross_entropy"), ".3f"),
    ("Key CE", lambda entry: entry.get("key_cross_entropy"), ".3f"),
    ("Bits/byte", "bits_per_byte", ".4f"),
    ("KV kB", lambda entry: _kilo(entry["kv_bytes_resident"]), ".1f"),
    (f"KV kB{GROUP}", "by_bytes", ""),
    ("KV kB/token", lambda entry: _kilo(entry["kv_bytes_read_per_token"]), ".1f"),
    ("Pass tokens/s", "pass_tokens_per_second", ".0f"),
)
"""Title, value from R (a key or a function), and format."""
LEAD = ("Dataset", "Method", "Context", "Sparsity", "Realised", "Perplexity", "Δ vs dense %")
FORMATS = {title: form for title, _, form in COLUMNS if form}


def table_3(document: Mapping[str, Any], *, everything: bool = False) -> list[dict[str, Any]]:
    """Return a line per cell of the sweeps over sparsities and budgets, failed or not; `everything`: every context."""
    sweeps = SWEEPS if everything else FIXED
    groups, by_bytes = _letters(document, sweeps), _letters_of_bytes(document, sweeps)
    lines = list[dict[str, Any]]()
    every = list(entries(document, *sweeps))
    order = list(dict.fromkeys(title for _, title, *_ in every))
    every.sort(key=lambda one: (one[0], one[3]["context_length"], order.index(one[1]), budget_shown(one[3])))
    for dataset, title, _, entry in every:
        key = (dataset, title, *entry["records"])
        known = {"title": title, **entry, "dataset": dataset, "group": groups.get(key), "by_bytes": by_bytes.get(key)}
        lines.append({name: known[of] if isinstance(of, str) else of(known) for name, of, _ in COLUMNS})
    return filled(lines)


def lead_of(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of Table 3 that are shown first; a text and a context that all lines share are left out."""
    shared = {key for key in ("Dataset", "Context") if len({line[key] for line in lines}) == 1}
    return [key for line in lines[:1] for key in line if key in {*LEAD, "Model"} - shared]


def figure_4(document: Mapping[str, Any], dataset: str) -> Any | None:
    """Perplexity against context length, a line per method."""
    points = [
        {"series": title, "x": int(key), "perplexity": interval(entry, "perplexity")}
        for name, title, key, entry in entries(document, "context_length_sweep")
        if name == dataset and entry["perplexity"] is not None
    ]
    if len({point["x"] for point in points}) < 2:
        return None
    title = f"{dataset}: perplexity by context"
    return _lines(points, "perplexity", x_title="context length (tokens)", title=title, log_y=True)


@without_validation
def figure_8(document: Mapping[str, Any], dataset: str) -> Any | None:
    """Perplexity against resident and read bytes, as realised; the Pareto front in grey."""
    import altair as alt

    panels = [
        panel
        for key, title in (("kv_bytes_resident", "KV kB resident"), ("kv_bytes_read_per_token", "KV kB read per token"))
        if (panel := _panel(document, dataset, key, title))
    ]
    if not panels:
        return None
    with warnings.catch_warnings():  # altair merges the panels' equal selections, as intended
        warnings.simplefilter("ignore")
        return alt.hconcat(*panels, resolve=alt.Resolve(scale=alt.ScaleResolveMap(color="shared", shape="shared")))


def _panel(document: Mapping[str, Any], dataset: str, key: str, title: str) -> Any | None:
    points = [
        {"series": name, "x": float(f"{entry[key] / 1000:.3g}"), "perplexity": interval(entry, "perplexity")}
        for where, name, _, entry in entries(document, *FIXED)
        if where == dataset and entry["perplexity"] is not None
    ]
    if len({point["x"] for point in points}) < 2:
        return None
    # The order of the methods, as in Figure 4; dense last, so that it is not hidden where sparsity 0 lies on it.
    order = list(dict.fromkeys(point["series"] for point in points))
    points.sort(key=lambda point: (point["series"] == "dense", order.index(point["series"]), point["x"]))
    own = {"title": f"{dataset}: Pareto front in grey", "round_x": True, "guides": {FRONT: pareto(points)}}
    return _lines(points, "perplexity", x_title=title, log_y=True, **own)


def pareto(points: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """The points that no other beats in both cost and perplexity, by cost."""
    best, front = float("inf"), []
    for x, y in sorted((point["x"], point["perplexity"].mean) for point in points):
        if y < best:
            best = y
            front.append((x, y))
    return front


def by_position(document: Mapping[str, Any], dataset: str) -> Any | None:
    """The loss against the place in the window, a line per method and budget."""
    return _curve(document, dataset, "cross_entropy_by_position", "place in the window", skip="0")


def by_distance(document: Mapping[str, Any], dataset: str) -> Any | None:
    """The loss of the copy probe against its distance, a line per method and budget."""
    return _curve(document, dataset, "cross_entropy_by_distance", "tokens between the copies")


def _curve(document: Mapping[str, Any], dataset: str, key: str, x_title: str, skip: str = "") -> Any | None:
    points = list[dict[str, Any]]()
    for where, title, level, entry in entries(document, *FIXED):
        lossy = title == "dense" or entry["realised_sparsity"]
        if where == dataset and entry.get(key) and lossy:
            name = title if title == "dense" else f"{title} {level}"
            points += [{"series": name, "x": int(x), "cross-entropy": y} for x, y in entry[key].items() if x != skip]
    return _lines(points, "cross-entropy", x_title=x_title, title=dataset) if points else None


def _lines(points: Sequence[Mapping[str, Any]], y: str, *, x_title: str, **looks: Any) -> Any:
    """Perplexity has a logarithmic axis: one method that loses much would press the others onto one line."""
    return interval_lines(points, x="x", y=y, series="series", x_title=x_title, log_x=True, **looks)


def _letters(document: Mapping[str, Any], sweeps: Sequence[str]) -> dict[Cell, str]:
    """Assign letters within a text, context and budget, among methods of one realised sparsity: those that share one do
    not differ significantly (paired bootstrap, Holm). Where a budget has several realised sparsities, the letter says
    of which it is: `a at 0.81` and `a at 0.91` are no comparison."""
    found: dict[Cell, str] = {}
    for cells in _compared(document, sweeps, "context_length", "nominal_sparsity", "budget"):
        groups = alike(cells)
        for group in groups:
            at = f" at {cells[group[0]]['realised_sparsity']:.2f}" if len(groups) > 1 else ""
            found |= {key: shared + at for key, shared in _shared(cells, group).items()}
    return found


def _letters_of_bytes(document: Mapping[str, Any], sweeps: Sequence[str]) -> dict[Cell, str]:
    """Assign letters within a text and context among methods that hold as many bytes, whatever the budget they were
    given: at one budget a method that selects holds everything, and one that shares slots out may hold less."""
    found: dict[Cell, str] = {}
    for cells in _compared(document, sweeps, "context_length", "num_tokens"):
        for group in alike(cells, "kv_bytes_resident", relative=True):
            found |= _shared(cells, group)
    return found


def _compared(document: Mapping[str, Any], sweeps: Sequence[str], *shared: str) -> list[dict[Cell, Entry]]:
    """The cells with a loss and enough clusters, together where they are of one text and `shared` values."""
    found: dict[tuple[Any, ...], dict[Cell, Entry]] = {}
    for dataset, title, _, entry in entries(document, *sweeps):
        if entry["perplexity"] is not None and entry["clusters"] >= LEAST and entry["realised_sparsity"] > 0:
            place = dataset, *(entry[key] for key in shared)
            found.setdefault(place, {})[(dataset, title, *entry["records"])] = entry
    return list(found.values())


def _shared(cells: Mapping[Cell, Entry], group: Sequence[Cell]) -> dict[Cell, str]:
    """The letters of a group; none where a cell is alone."""
    if len(group) < 2:
        return {}
    by_name = {str(number): cells[key] for number, key in enumerate(group)}
    means = {name: {0: -entry["cross_entropy"]} for name, entry in by_name.items()}
    found = letters(means, p_of=partial(p_of_difference, by_name))
    return {key: found[str(number)] for number, key in enumerate(group)}


def alike(cells: Mapping[Cell, Entry], by: str = "realised_sparsity", *, relative: bool = False) -> list[list[Cell]]:
    """Group cells by realised sparsity, or by another number, so that no two of a group lie further apart than EQUAL,
    or than that share of the least."""
    groups: list[list[Cell]] = []
    for key in sorted(cells, key=lambda key: cells[key][by]):
        least = cells[groups[-1][0]][by] if groups else None
        if least is not None and cells[key][by] - least <= (EQUAL * least if relative else EQUAL):
            groups[-1].append(key)
        else:
            groups.append([key])
    return groups


def p_of_difference(entries_by_name: Mapping[str, Entry], one: str, other: str) -> float:
    """The p value of no difference between two cells that were scored on the same clusters."""
    sums = list[list[float]]()
    for entry in (entries_by_name[one], entries_by_name[other]):
        tokens = entry["cluster_tokens"]
        sums += [[entry["cluster_losses"][cluster] * tokens[cluster] for cluster in tokens], list(tokens.values())]
    return ratio_difference_p(*sums)


def budget_shown(entry: Entry) -> str:
    """The budget as it was asked for: `k=20` slots, or a sparsity."""
    return budget_words(Budget(sparsity=entry["nominal_sparsity"], slots=entry["budget"]))


def budget_words(budget: Budget) -> str:
    return f"k={budget.slots}" if budget.slots is not None else f"{budget.sparsity:g}"


def percent(found: Interval | None) -> Interval | None:
    """A share as a percentage."""
    return found and found.mapped(lambda share: 100 * share)


def _kilo(value: float | None) -> float | None:
    return None if value is None else value / 1000
