"""Figure 4, Figure 8 and Table 3, from the JSON document alone.

document = json.load(open("results/perplexity/perplexity_latest.json"))
figure_4(document, "pydoc").save("figure_4.html");  print(generate_summary_table(document))
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from assay.metrics.bootstrap import LEAST, ratio_difference_p
from assay.metrics.intervals import Interval, letters
from assay.report.charts import interval_lines
from assay.studies.perplexity.document import interval

SWEEPS = ("sparsity_sweep", "budget_sweep", "context_length_sweep")
Entry = Mapping[str, Any]


def entries(document: Mapping[str, Any], *sweeps: str) -> Iterator[tuple[str, str, str, Entry]]:
    """(dataset, title of the method, key in the sweep, R), each cell once."""
    for dataset, methods in document["results"].items():
        seen = set[tuple[str, ...]]()
        for found in methods.values():
            for sweep in sweeps:
                for key, entry in found[sweep].items():
                    cell = (found["title"], *entry["records"])
                    if cell not in seen:
                        seen.add(cell)
                        yield dataset, found["title"], key, entry


def figure_4(document: Mapping[str, Any], dataset: str) -> Any | None:
    """Perplexity against context length, a line per method."""
    rows = [
        {"series": title, "context": int(key), "perplexity": interval(entry, "perplexity")}
        for name, title, key, entry in entries(document, "context_length_sweep")
        if name == dataset and entry["perplexity"] is not None
    ]
    if len({row["context"] for row in rows}) < 2:
        return None
    return interval_lines(
        rows, x="context", y="perplexity", series="series", x_title="context length (tokens)", log_x=True,
        title=f"{dataset}: perplexity by context",
    )  # fmt: skip


def figure_8(document: Mapping[str, Any], dataset: str) -> Any | None:
    """Perplexity against what is resident, and against what is read, as realised; the Pareto front in grey."""
    import altair as alt

    panels = [
        panel
        for key, title in (("kv_bytes_resident", "KV kB resident"), ("kv_bytes_read_per_token", "KV kB read per token"))
        if (panel := _panel(document, dataset, key, title))
    ]
    if not panels:
        return None
    with warnings.catch_warnings():  # of the panels' selections, which are alike, and made one as they should
        warnings.simplefilter("ignore")
        return alt.hconcat(*panels).resolve_scale(color="shared", shape="shared")


def _panel(document: Mapping[str, Any], dataset: str, key: str, title: str) -> Any | None:
    points = [
        {"series": name, "x": float(f"{entry[key] / 1000:.3g}"), "perplexity": interval(entry, "perplexity")}
        for where, name, _, entry in entries(document, "sparsity_sweep", "budget_sweep")
        if where == dataset and entry["perplexity"] is not None
    ]
    if len({point["x"] for point in points}) < 2:
        return None
    # The order of the methods, as in Figure 4; dense last, so that it is not hidden where sparsity 0 lies on it.
    order = list(dict.fromkeys(point["series"] for point in points))
    points.sort(key=lambda point: (point["series"] == "dense", order.index(point["series"]), point["x"]))
    front = [{"series": FRONT, "x": x, "perplexity": y} for x, y in pareto(points)]
    return interval_lines(
        [*front, *points], x="x", y="perplexity", series="series", x_title=title, log_x=True, title=dataset
    )


FRONT = "(Pareto front)"


def pareto(points: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """The points that no other beats in both cost and perplexity, by cost."""
    best, front = float("inf"), []
    for x, y in sorted((point["x"], point["perplexity"].mean) for point in points):
        if y < best:
            best = y
            front.append((x, y))
    return front


def table_3(document: Mapping[str, Any], *, everything: bool = False) -> list[dict[str, Any]]:
    """A row per cell of the sweeps over sparsities and budgets, failed ones included; `everything`: every context."""
    sweeps = SWEEPS if everything else SWEEPS[:2]
    rows = list[dict[str, Any]]()
    order = list(dict.fromkeys(title for _, title, _, _ in entries(document, *sweeps)))
    apart = _letters(document, sweeps)
    for dataset, title, _, entry in entries(document, *sweeps):
        rows.append(
            {
                "Dataset": dataset,
                "Method": title,
                "Context": entry["context_length"],
                "Sparsity": _budget(entry),
                "Realised": entry["realised_sparsity"],
                "Perplexity": interval(entry, "perplexity") or _reason(str(entry["error"])),
                "Δ vs dense %": _percent(interval(entry, "delta_vs_dense")),
                "Group": apart.get((dataset, title, *entry["records"])),
                "KL": entry["kl_to_dense"],
                "Gain kept": entry["context_gain_kept"],
                "Recall CE": entry.get("recall_cross_entropy"),
                "Other CE": entry.get("other_cross_entropy"),
                "Bits/byte": entry["bits_per_byte"],
                "KV kB": _kilo(entry["kv_bytes_resident"]),
                "KV kB/token": _kilo(entry["kv_bytes_read_per_token"]),
                "Pass tokens/s": entry["pass_tokens_per_second"],
            }
        )
    rows.sort(key=lambda row: (row["Dataset"], row["Context"], order.index(row["Method"]), row["Sparsity"]))
    kept = [key for key in rows[0] if any(row[key] is not None for row in rows)] if rows else []
    return [{key: row[key] for key in kept} for row in rows]


def _letters(document: Mapping[str, Any], sweeps: Sequence[str]) -> dict[tuple[str, ...], str]:
    """Within a text, context and budget: methods that share a letter are not told apart (the paired bootstrap of
    the differences, Holm)."""
    groups: dict[tuple[Any, ...], dict[tuple[str, ...], Entry]] = {}
    for dataset, title, _, entry in entries(document, *sweeps):
        if entry["perplexity"] is not None and entry["clusters"] >= LEAST and entry["realised_sparsity"] > 0:
            place = dataset, entry["context_length"], entry["nominal_sparsity"], entry["budget"]
            groups.setdefault(place, {})[(dataset, title, *entry["records"])] = entry
    found: dict[tuple[str, ...], str] = {}
    for cells in groups.values():
        by_name = {str(number): entry for number, entry in enumerate(cells.values())}
        means = {name: {0: -entry["cross_entropy"]} for name, entry in by_name.items()}
        shared = letters(means, p_of=partial(_p, by_name)) if len(by_name) > 1 else {}
        found |= {key: shared[str(number)] for number, key in enumerate(cells) if shared}
    return found


def _p(entries_by_name: Mapping[str, Entry], one: str, other: str) -> float:
    """Of no difference between two cells that were scored on the same clusters."""
    sums = list[list[float]]()
    for entry in (entries_by_name[one], entries_by_name[other]):
        tokens = entry["cluster_tokens"]
        sums += [[entry["cluster_losses"][cluster] * tokens[cluster] for cluster in tokens], list(tokens.values())]
    return ratio_difference_p(*sums)


def _budget(entry: Entry) -> str:
    return f"k={entry['budget']}" if entry["budget"] is not None else f"{entry['nominal_sparsity']:g}"


def _reason(error: str) -> str:
    """For a cell of a table: what was said, up to its details, without the class of the error."""
    said = re.sub(r"^[\w.]+(?:Error|Exception|Interrupt|Small): ", "", error).partition(":")[0]
    return said if len(said) <= 60 else said[:57] + "..."


def _percent(found: Interval | None) -> Interval | None:
    if found is None:
        return None
    low, high = (None if bound is None else 100 * bound for bound in (found.low, found.high))
    return Interval(100 * found.mean, low, high, found.n)


def _kilo(value: float | None) -> float | None:
    return None if value is None else value / 1000
