"""A run's id is everything that decides its numbers, and nothing else."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.run import UNKNOWN, Numerics, Provenance, Record, Run, canonical, finite, source_digest
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


CORE = Path(sys.modules[Run.__module__].__file__ or "").parent


def copied(tmp_path: Path, name: str) -> Path:
    return Path(shutil.copytree(CORE, tmp_path / name))


def test_copies_of_one_source_have_one_digest_and_any_change_another(tmp_path: Path) -> None:
    told = source_digest(CORE)
    changes = {
        "a byte": lambda copy: (copy / "run.py").write_bytes((copy / "run.py").read_bytes()[:-1] + b" "),
        "a name": lambda copy: (copy / "run.py").rename(copy / "ran.py"),
        "a file more": lambda copy: (copy / "executors" / "more.py").touch(),
        "a file less": lambda copy: (copy / "seeds.py").unlink(),
    }
    found = {told}
    for name, change in changes.items():
        copy = copied(tmp_path, name)
        (copy / ".#run.py").symlink_to("nobody@nowhere")  # an editor's lock
        (copy / "notes.txt").touch()
        assert source_digest(copy) == told
        source_digest.cache_clear()
        change(copy)
        found.add(source_digest(copy))
    assert len(found) == 1 + len(changes) and all(len(digest) == 12 for digest in found)
    assert source_digest(tmp_path / "absent") == UNKNOWN


def test_a_record_tells_which_code_made_it_and_its_id_does_not_depend_on_that() -> None:
    here = Provenance.here()
    assert here.source == source_digest() != UNKNOWN and here.names_its_code
    assert [Provenance(assay, source=source).names_its_code for assay in ("", UNKNOWN) for source in ("", UNKNOWN)] == [
        False
    ] * 4
    assert Provenance("0.1.0").names_its_code and Provenance(UNKNOWN, source="0123456789ab").names_its_code
    one, other = (Record(RUN, "done", provenance=made) for made in (here, dataclasses.replace(here, source="0" * 12)))
    assert one != other and one.run.id == other.run.id == RUN.id == "b69763b0ba1a7981"
    old = json.loads(json.dumps(one.to_json()))
    del old["provenance"]["source"]
    assert Record.from_json(old).provenance == dataclasses.replace(here, source="")


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
