"""A record is read as what it says it is, or not at all: whatever a file holds, reading it ends in a ValueError."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core import reading
from assay.core.errors import UserError
from assay.core.reading import DEEPEST, parse_record
from assay.core.run import FORMAT, Numerics, Provenance, Record, Run

RUN = Run("toy", {"x": 1, "model": {"name": "gru"}}, 0, {"toy": "1"})
RECORD = Record(
    RUN, "done", {"a": 0.5, "curve": [{"b": 1}]}, {"seconds": 1.0}, None, Provenance.here(), "2026-01-01",
    ("w.bin",), 3, files={"w.bin": {"bytes": 1, "sha256": "00"}},
)  # fmt: skip
WRITTEN = RECORD.to_json()


def changed(path: str, value: Any) -> bytes:
    """The record with the value at a dotted path put in its place; DROP leaves it out."""
    data = json.loads(json.dumps(WRITTEN))
    *parents, last = path.split(".")
    held = data
    for name in parents:
        held = held[name]
    if value is DROP:
        del held[last]
    else:
        held[last] = value
    return json.dumps(data).encode()


DROP = object()
FIELDS = {
    "status": str,
    "id": str,
    "run": dict,
    "metrics": dict,
    "cost": dict,
    "finished": str,
    "artifacts": list,
    "provenance": dict,
}
WRONG = [
    *((path, odd) for path, kind in FIELDS.items() for odd in (None, {}, [], 7, "odd", DROP) if type(odd) is not kind),
    ("run", {}),
    ("status", "undone"), ("id", "../../../etc"), ("id", "ABCDEF0123456789"), ("format", "1"), ("format", None),
    ("format", True), ("error", 5), ("place", "first"), ("place", True), ("files", []), ("files", {"w.bin": 3}),
    ("files", {"w.bin": {"bytes": "1", "sha256": "00"}}), ("run.seed", "0"), ("run.seed", None), ("run.seed", True),
    ("run.options", []), ("run.study", 1), ("run.study", "\x1b[31m"), ("run.versions", {"toy": 1}),
    ("run.numerics", None), ("run.numerics.threads", "1"), ("run.numerics.compile", 0), ("cost.seconds", "1"),
    ("cost.seconds", {}), ("finished", "\x1b[2J"), ("finished", "2026\n"), ("artifacts", ["../w.bin"]),
    ("artifacts", ["/etc/passwd"]), ("artifacts", [""]), ("artifacts", [1]), ("provenance.host", {}),
    ("metrics.a", int("1" * 4000)), ("run.seed", int("9" * 400)),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), WRONG, ids=lambda value: "dropped" if value is DROP else repr(value)[:30])
def test_a_field_of_another_type_makes_it_no_record(path: str, value: Any) -> None:
    with pytest.raises(ValueError):
        parse_record(changed(path, value))


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[1, 2]", '{"hello": "world"}', "\xff", "[" * 100_000, '{"a":' * 5_000 + "1" + "}" * 5_000],
    ids=lambda text: text[:12],
)
def test_a_text_that_holds_something_else_is_no_record(text: str) -> None:
    with pytest.raises(ValueError):
        parse_record(text.encode("latin-1"))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e400", "1" * 400 + ".5", "1" * 4000])
def test_numbers_that_are_none_are_refused(number: str) -> None:
    text = json.dumps(WRITTEN).replace("0.5", number)
    with pytest.raises(ValueError, match="no number"):
        parse_record(text.encode())


def test_nesting_is_bounded_well_below_what_recursion_stands() -> None:
    def nested(depth: int) -> bytes:
        value: Any = 1
        for _ in range(depth):
            value = [value]
        return changed("metrics.a", value)

    assert parse_record(nested(DEEPEST - 2))
    with pytest.raises(ValueError, match="nested"):
        parse_record(nested(DEEPEST + 1))


def test_what_was_written_is_read_whole_and_half_a_surrogate_becomes_printable() -> None:
    assert parse_record(json.dumps(WRITTEN).encode()) == RECORD
    assert parse_record(changed("error", "smile \U0001f600")).error == "smile \U0001f600"
    assert parse_record(changed("error", "half \ud83d")).error == "half ?"
    assert parse_record(changed("run.seed", 2**63)).run.seed == 2**63


def test_the_stored_id_is_trusted_and_other_versions_fields_do_no_harm() -> None:
    data = json.loads(json.dumps(WRITTEN)) | {"mood": "good", "id": "0123456789abcdef"}
    data["run"] |= {"weather": 1}
    data["run"]["numerics"] = {"device": "cuda", "tf32": True}
    data["provenance"] |= {"moon": "full"}
    for field in ("files", "place", "format"):
        del data[field]
    record = parse_record(json.dumps(data).encode())
    assert record.run.id == "0123456789abcdef" and record.run.numerics == Numerics(device="cuda")
    assert record.provenance == RECORD.provenance and record.files == {} and record.place is None


def test_a_later_format_is_the_users_to_solve(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"newer assay.*Upgrade"):
        parse_record(changed("format", FORMAT + 1))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
PATHS = [*WRITTEN, *(f"run.{name}" for name in WRITTEN["run"]), *(f"cost.{name}" for name in WRITTEN["cost"])]


@settings(max_examples=200)
@given(st.sampled_from(PATHS), VALUES)
def test_any_value_anywhere_is_refused_or_can_be_shown(path: str, value: Any) -> None:
    from assay.core.estimate import estimate
    from assay.core.plan import labels
    from assay.report.record import render_record

    try:
        record = parse_record(changed(path, value))
    except (ValueError, UserError):
        return
    text = render_record(record, labels([record.run])[record.run.id])
    assert text.replace("\n", "").isprintable() and json.dumps(record.to_json(), allow_nan=False)
    sorted([RECORD, record], key=lambda record: (record.finished, record.run.label))
    if record.cost.get("seconds") is not None:  # what a study gave as NaN
        estimate([RUN], [RECORD, record], 1)


@pytest.mark.parametrize("number", ["1e400", "-1E+400", "0.5e308000", "9" * 301, "-" + "1" * 1000])
@pytest.mark.parametrize("spaces", ["", " ", "\n", "\t\t"])
def test_a_number_too_large_is_found_wherever_it_stands(number: str, spaces: str) -> None:
    """A record is read strictly only where a number in it may be too large, whatever stands before such a number."""
    for before in ("", *("1" * n + "," for n in range(1, 12))):
        text = f'{{"a":[{before}{spaces}{number}{spaces}]}}'
        with pytest.raises(reading.NotARecord):
            reading._decoded(text.encode())


def test_hashes_are_no_numbers_too_large() -> None:
    hashes = {"sha256": "12e345" + "0" * 58, "other": "ab4e1234", "b": "9E+999", "c": "x-1e999", "curve": [0.25, 1e-05]}
    assert reading.parsed(json.dumps(hashes, indent=1).encode(), dict) == hashes
