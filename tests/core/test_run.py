"""A run's id is everything that decides its numbers, and nothing else."""

import dataclasses
import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.run import Numerics, Provenance, Record, Run, canonical, finite
from assay.core.seeds import derive

RUN = Run("toy", {"x": 1, "model": {"name": "gru", "width": 8}}, 0, {"toy": "1"})


@pytest.mark.parametrize(
    "change",
    [
        {"study": "other"},
        {"options": {"x": 2, "model": {"name": "gru", "width": 8}}},
        {"seed": 1},
        {"versions": {"toy": "2"}},
        {"numerics": Numerics(device="cuda")},
        {"numerics": Numerics(threads=2)},
        {"numerics": Numerics(compile=True)},
    ],
)
def test_whatever_decides_the_numbers_changes_the_id(change: dict) -> None:
    assert dataclasses.replace(RUN, **change).id != RUN.id


def test_the_order_of_options_does_not_change_the_id() -> None:
    turned = Run("toy", {"model": {"width": 8, "name": "gru"}, "x": 1}, 0, {"toy": "1"})
    assert turned.id == RUN.id and turned == RUN


def test_the_id_is_the_same_in_another_process() -> None:
    made = f"Run('toy', {RUN.options!r}, 0, {RUN.versions!r})"
    code = f"from assay.core.run import Run; print({made}.id)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == RUN.id


def test_a_record_survives_json() -> None:
    record = Record(RUN, "done", {"a": 0.1}, {"seconds": 1.0}, None, Provenance.here(), "2026-01-01", ("note.txt",))
    assert Record.from_json(json.loads(json.dumps(record.to_json()))) == record


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=50)
@given(values)
def test_nothing_infinite_reaches_json(value: object) -> None:
    safe, whole = finite(value)
    assert json.loads(canonical(safe)) == safe
    assert whole == _survives_strict_json(value)


def _survives_strict_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def test_streams_are_apart_by_name_and_by_seed() -> None:
    drawn = {
        derive(seed, *names) for seed in range(20) for names in (("init",), ("data",), ("data", 1), ("data", "1x"))
    }
    assert len(drawn) == 80
    assert derive(3, "data") == derive(3, "data")
