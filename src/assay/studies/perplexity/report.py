"""The study's JSON is made from records; its tables and charts are data, drawn from the JSON."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from assay.core.grouping import grouped
from assay.core.run import Record
from assay.core.study import Report
from assay.report.thinning import SETTINGS, evenly, of_all
from assay.studies.perplexity.cells import by_model, cells
from assay.studies.perplexity.claims import EQUAL
from assay.studies.perplexity.document import FIXED, Sweeps, documents_of, entries
from assay.studies.perplexity.figures import FORMATS, by_distance, by_position, figure_4, figure_8, lead_of, table_3
from assay.studies.perplexity.findings import sentences
from assay.studies.perplexity.generating import GENERATE, report_generated
from assay.studies.perplexity.probe_report import report_probes
from assay.studies.perplexity.probing import PROBE

SAID_FIRST = (  # of both notes
    "Perplexity per token with its 95 % interval, and Δ, its difference from dense attention: bootstrap over clusters "
    "(articles, or blocks of 2,048 tokens), paired for Δ; fewer than 20 clusters have no interval. Sparsity is nominal "
    "(k = slots), Realised is measured. At one budget, methods that share a letter are not told apart "
)
NOTE = (
    f"{SAID_FIRST}(the same paired bootstrap, Holm). Methods whose realised sparsities differ by more than {EQUAL:g} "
    "are not ranked against each other: a letter then says at which it compares, and a method that is alone there has "
    "none. KL: from dense, nats per token. Gain kept: of what context gives beyond a window of that budget. Recall CE: "
    "loss at the last token of a rare bigram seen before in the window. Key CE: loss of the tokens that a long context "
    "makes likelier (--key-tokens). KV kB: keys and values held when the last token attends, per sequence, and read "
    f"per token; letters there compare the losses of methods that hold as many bytes, to {EQUAL:.0%}, whatever their "
    "budget. Pass tokens/s: of all methods of one forward pass."
)
LEAD_NOTE = (
    f"{SAID_FIRST}(Holm); those whose realised sparsities differ by more than {EQUAL:g} are not ranked against each "
    "other."
)
SAID = 3
"""Most sentences: one for each model and text."""
CHARTS = {
    "figure_4": (figure_4, "Figure 4: perplexity against context length, the same tokens at each."),
    "figure_8": (
        figure_8,
        "Figure 8: perplexity against the cache that is held and that is read; grey: the Pareto front.",
    ),
    "by_position": (by_position, "Loss by place in the window."),
    "copy": (by_distance, "Copy probe: loss of the second copy by distance from the first."),
}


def report(
    records: Sequence[Record], out: Report, *, name: str, description: str, sweeps: Sweeps, verbose: bool
) -> None:
    kinds = grouped(records, kind_of)
    documents = documents_of(kinds.get("text", []), name=name, description=description, sweeps=sweeps)
    names = _names(documents, name)
    drawn = set(evenly(names, SETTINGS))
    charts = {label: _drawn(document) for label, document in zip(names, documents, strict=True) if label in drawn}
    _say(documents, names, charts, out)
    for label, document in zip(names, documents, strict=True):
        text = partial(_text, document)  # called only where files are written
        stamp = re.sub(r"\D", "", document["config"]["timestamp"])[:14]
        out.document(f"{label}_{stamp}.json", text)
        out.document(f"{label}_latest.json", text)
        lines = _rows(document, documents)
        out.table(
            f"{label}_table_3", lines, formats=FORMATS, lead=lead_of(lines), note=f"{NOTE}\n{_setup(document, lines)}",
            lead_note=f"{LEAD_NOTE}\n{_setup(document, lines)}",
        )  # fmt: skip
        if verbose or not any(entries(document, *FIXED)):
            out.table(f"{label}_cells", table_3(document, everything=True), formats=FORMATS)
        out.document(f"{label}_table_3.md", partial(generate_summary_table, document))
        for dataset, drawn_here in charts.get(label, {}).items():
            about = f"{dataset}, {document['config']['model']['name']}."
            with out.about(" ".join(of_all(len(drawn), len(names)))):
                for kind, chart in drawn_here.items():
                    out.chart(f"{label}_{_plain(dataset)}_{kind}", chart, caption=f"{CHARTS[kind][1]} {about}")
    for kind, draw in (("probe", report_probes), ("generate", report_generated)):
        groups = by_model(cells(kinds.get(kind, [])))
        for label, own in zip(_names(groups, name), groups, strict=True):
            draw(own, out, name=label, sweeps=sweeps)


def kind_of(record: Record) -> str:
    """Whether a text or a probe was scored, or text generated."""
    options = record.run.options
    return "generate" if GENERATE in options else "probe" if PROBE in options["dataset"] else "text"


def _say(
    documents: Sequence[Mapping[str, Any]], names: Sequence[str], charts: Mapping[str, Mapping[str, Any]], out: Report
) -> None:
    """Say a sentence for each model and text, SAID of them at most, beside the first chart that shows it."""
    said = [
        (sentence, label, dataset)
        for label, document in zip(names, documents, strict=True)
        for dataset, sentence in sentences(document).items()
    ]
    for sentence, label, dataset in said[:SAID]:
        own = charts.get(label, {}).get(dataset, {})
        shown = next((kind for kind in ("figure_8", "figure_4", "by_position") if kind in own), "")
        out.finding(sentence, chart=f"{label}_{_plain(dataset)}_{shown}" if shown else "")


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _setup(document: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> str:
    """What all lines share: the model, its precision, the protocol, the context and the texts."""
    config = document["config"]
    shared = {key: config[key] for key in ("dtype", "positions", "protocol", "seed")}
    for key in ("Context", "Clusters"):
        held = {line[key] for line in lines if line.get(key) is not None}
        shared |= {key.lower(): held.pop()} if len(held) == 1 else {}
    words = " ".join(f"{key}={value}" for key, value in shared.items())
    return f"Setup: model={config['model']['name']} {words}; texts: {', '.join(config['datasets'])}."


def _rows(document: Mapping[str, Any], documents: Sequence[Any]) -> list[dict[str, Any]]:
    rows = table_3(document) or table_3(document, everything=True)
    model = document["config"]["model"]["name"]
    return [{"Model": model, **row} for row in rows] if len(documents) > 1 else rows


def _names(found: Sequence[Any], name: str) -> list[str]:
    """A name for each model; numbered where there are several."""
    return [_plain(name)] if len(found) == 1 else [f"{_plain(name)}_{n}" for n in range(1, len(found) + 1)]


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name, flags=re.ASCII) or "perplexity"


def _drawn(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Draw the charts of each text for which it has the numbers."""
    drawn = dict[str, dict[str, Any]]()
    for dataset in document["results"]:
        every = {kind: draw(document, dataset) for kind, (draw, _) in CHARTS.items()}
        drawn[dataset] = {kind: chart for kind, chart in every.items() if chart is not None}
    return drawn


def generate_summary_table(results: Mapping[str, Any]) -> str:
    """Table 3 as markdown; a cell that failed shows why."""
    from assay.report.section import Table
    from assay.report.text import shown

    rows = table_3(results) or table_3(results, everything=True)
    table = Table("table_3", tuple(rows), FORMATS)
    lines = [f"| {' | '.join(table.columns)} |", f"|{'---|' * len(table.columns)}"]
    lines += [f"| {' | '.join(str(shown(table, row, column)) for column in table.columns)} |" for row in rows]
    return "\n".join(lines) + "\n"
