"""Charts of results as a notebook shows them: each is valid where it is displayed, and none is blank."""

import base64
import json
import zlib
from collections.abc import Callable
from typing import Any

import altair as alt
import nbformat
import numpy as np
import pytest
import vl_convert
from nbclient import NotebookClient

import assay
from assay.core import shipped
from assay.core.run import Record, Run
from assay.metrics.intervals import student_t
from assay.report.charts import heatmap, interval_bars, interval_lines
from assay.report.images import diverging, pictures
from assay.results import Results

SHIPPED = ["icl", "icl.faulty", "perplexity", "perplexity.methods", "sae", "sae.concepts", "sae.dictionary"]
QUICK = "sae.stream"
"""A few records, of which charts are drawn in a second."""
RUNS: dict[str, dict[str, Any]] = {
    "expressivity": {"models": ("SelfAttn", "StaticMLP"), "fast": True, "batch_eval": 64, "batch_train": 16,
                     "retr_steps": 2, "retr_train_steps": 2, "seeds": (0, 1)},
    "modular.sweep": {"P": 7, "dimensions": (2, 4), "seeds": (0, 1), "epochs": 2, "batch": 9},
    "sae": {"coders": ("topk:k=2", "topk:k=4", "lse_infomax"), "d_code": 8, "epochs": 1, "seeds": (0, 1)},
    "sae.theorem": {"output": "t.pdf"},
    "sae.ablation": {"dataset": "digits", "epochs": 1, "seeds": (0,)},
    "sae.benchmark": {"dataset": "digits", "epochs": 1, "seeds": (0,)},
    "sae.dynamics": {"dataset": "digits", "epochs": 6, "seeds": (0,)},
}  # fmt: skip
"""Studies of whose records none ship, or without the files that their charts are drawn from."""


def bytes_drawn(png: bytes) -> int:
    """How many values the bytes of an image have: a few where it is of one colour."""
    start, data = 8, b""
    while start < len(png):
        size = int.from_bytes(png[start : start + 4])
        data += png[start + 8 : start + 8 + size] * (png[start + 4 : start + 8] == b"IDAT")
        start += size + 12
    return len(set(zlib.decompress(data)))


def marks(spec: dict[str, Any]) -> int:
    """The lines, points, bars, cells and pictures that are drawn of a chart."""
    svg = vl_convert.vegalite_to_svg(json.dumps(spec))
    return svg.count('role="graphics-symbol"') + svg.count("<image")


def lines(count: int = 3) -> Any:
    rows = [{"x": x, "y": student_t([float(x), x + 1.0]), "who": who} for x in (1, 2, 3) for who in "ab"[:count]]
    return interval_lines(rows, x="x", y="y", series="who")


def bars() -> Any:
    return interval_bars([{"who": who, "y": student_t([1.0, 2.0])} for who in "ab"], label="who", value="y")


def cells(size: int = 72) -> Any:
    """More rows than Altair takes without a word of its own."""
    pairs = [(a, b) for a in range(size) for b in range(size)]
    return heatmap([{"a": a, "b": b, "v": a * b} for a, b in pairs], x="a", y="b", value="v")


KINDS: dict[str, Callable[[], Any]] = {
    "lines": lines,
    "bars": bars,
    "cells": cells,
    "pictures": lambda: pictures([(name, diverging(np.eye(8) - 0.5, 1.0)) for name in ("one", "two")]),
    "beside": lambda: alt.hconcat(lines(), bars()),
    "below": lambda: alt.vconcat(lines(), alt.hconcat(bars(), cells(4))),
    "in rows": lambda: alt.concat(bars(), lines(), columns=1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_2_4_a_chart_of_every_kind_can_be_shown(kind: str, toy: Any) -> None:
    toy.report = lambda self, records, out: out.chart("drawn", KINDS[kind]())
    found = Results([Record(Run("toy", {}, 0, {}), "done", {}, {})], study=toy())
    spec = found.plot().to_dict()  # which checks it, as a display does
    assert spec == found.sections["toy"].charts[0].spec
    assert marks(spec) > 1 and bytes_drawn(vl_convert.vegalite_to_png(json.dumps(spec))) > 20


def drawn_in_a_notebook(head: str, found: Results) -> None:
    """Every chart is displayed: without a word, in the browser, and as a picture in the notebook itself."""
    charts = [(study, chart) for study, section in found.sections.items() for chart in section.charts]
    plots = [f"found.plot({chart.name!r}, study={study!r})" for study, chart in charts]
    texts = [head, plots[0], 'import altair\naltair.renderers.enable("png");', *plots]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in texts])
    NotebookClient(notebook, kernel_name="python3", timeout=1000).execute()
    outputs = [one for cell in notebook.cells for one in cell.outputs if one.get("name") != "stderr"]
    assert {one.output_type for one in outputs} == {"execute_result"}, outputs
    first, *pictures = [one.data for one in outputs]
    assert "vegaEmbed" in first["text/html"] and len(pictures) == len(charts)
    for picture, (_, chart) in zip(pictures, charts, strict=True):
        assert bytes_drawn(base64.b64decode(picture["image/png"])) > 20 and marks(chart.spec) > 1, chart.name


@pytest.mark.parametrize("name", [QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SHIPPED)])
def test_2_4_a_notebook_draws_every_chart_of_shipped_records(name: str) -> None:
    head = "from assay.core import shipped\nfrom assay.results import Results\n"
    drawn_in_a_notebook(f"{head}found = Results(shipped.records({name!r}))", Results(shipped.records(name)))


@pytest.mark.slow
@pytest.mark.parametrize("study", RUNS)
def test_2_4_a_notebook_draws_every_chart_of_the_other_studies(study: str) -> None:
    options = {**RUNS[study], "executor": "serial", "device": "cpu", "progress": False}
    drawn_in_a_notebook(f"import assay\nfound = assay.run({study!r}, **{options})", assay.run(study, **options))
