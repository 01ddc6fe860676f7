"""Shares, such as accuracies, have intervals between 0 and 1, in every study's tables and charts."""

import importlib
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import assay
from assay.core.run import Record
from assay.core.store import Store
from assay.metrics.intervals import Interval, share
from assay.report.draw import Column
from assay.report.section import Section
from assay.studies import studies

SOURCE = Path(assay.__file__).parent
GOLDEN = Path(__file__).parent.parent / "golden" / "store_0_1_0"
METRICS = re.compile(r"acc(uracy)?$|exact_match|_f1$|_found$|absorption|probe_\d|cosine|responsibility$")
TITLES = re.compile(r"\bacc|exact match|unseen keys|full table|probe$|\bunits?$|F1|found$|^share |absorbed|^atoms")
FACTORS = (1.0, 0.1, 0.02)
"""What a seed's scores are of the first seed's: the t interval of such a mean goes below 0."""


def test_a_share_is_kept_between_0_and_1_or_where_its_values_are() -> None:
    assert share([0.0, 0.8, 1.0]) == Interval(0.6, 0.0, 1.0, 3)
    above = share([0.9, 1.02, 1.1])
    assert above.high == 1.1 and above.low is not None and above.low < above.mean < above.high


def columns() -> Iterator[tuple[str, Column]]:
    """The columns that are constants of the studies' modules."""
    for path in sorted((SOURCE / "studies").rglob("*.py")):
        if "Column(" in path.read_text(encoding="utf-8"):
            name = ".".join(("assay", *path.relative_to(SOURCE).with_suffix("").parts))
            for value in vars(importlib.import_module(name)).values():
                for one in value if isinstance(value, tuple | list) else [value]:
                    if isinstance(one, Column):
                        yield name, one


def test_every_column_of_a_share_says_so() -> None:
    found = [(module, column) for module, column in columns() if isinstance(column.value, str)]
    shares = [(module, column) for module, column in found if METRICS.search(str(column.value))]
    assert {module.split(".")[2] for module, _ in shares} >= {"icl", "modular", "sae"}
    assert not [f"{module}: {column.title}" for module, column in shares if not column.share]


def scaled(metrics: Any, factor: float) -> Any:
    """The metrics with every number of at most 1 made smaller; curves over training are kept."""
    if isinstance(metrics, dict):
        return {key: value if key == "curve" else scaled(value, factor) for key, value in metrics.items()}
    return metrics * factor if isinstance(metrics, float) and 0 < metrics <= 1 else metrics


def seeds_that_differ(record: Record) -> list[Record]:
    return [
        replace(record, run=replace(record.run, seed=seed), metrics=scaled(record.metrics, factor))
        for seed, factor in enumerate(FACTORS)
    ]


@pytest.mark.parametrize("study", ["icl", "modular.sweep"])
def test_no_table_has_a_share_outside(study: str) -> None:
    records = [record for record in Store(GOLDEN).records(study) if record.run.seed == 0]
    section = Section(study)
    studies[study]().report(list(chain.from_iterable(map(seeds_that_differ, records))), section)
    cells = [
        (table.name, column, value)
        for table in section.tables
        for row in table.rows
        for column, value in row.items()
        if isinstance(value, Interval) and TITLES.search(column)
    ]
    held = [(value.low, value.high) for _, _, value in cells if value.low is not None and value.high is not None]
    assert any(low == 0 for low, _ in held), "scores so far apart have an interval that had to be kept"
    assert all(0 <= low <= high <= 1 for low, high in held), cells


@pytest.mark.parametrize("study", ["expressivity", "icl", "modular.sweep", "sae"])
def test_nothing_explains_an_interval_in_a_table_of_one_seed(study: str) -> None:
    section = Section(study)
    studies[study]().report([record for record in Store(GOLDEN).records(study) if record.run.seed == 0], section)
    notes = [f"{table.note} {table.lead_note}" for table in section.tables]
    assert notes and not [note for note in notes if "±" in note or "Wilson" in note]
