"""The index: with it and without it, every answer is the same, whatever happens to the store and to the index."""

import dataclasses
import hashlib
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.core import index
from assay.core.errors import UserError
from assay.core.plan import labels
from assay.core.run import Record, Run
from assay.core.store import Store
from assay.core.study import Outcome

RUNS = [Run("toy", {"x": x, "part": {"name": "a"}}, seed, {"toy": "1"}) for x in range(3) for seed in range(2)]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index however few records there are, and whenever they were written: tests are quicker than the clock."""
    monkeypatch.setattr(index, "WORTHWHILE", 1)
    monkeypatch.setattr(index, "SETTLED_NS", -(10**12))


def told(record: Record) -> tuple[Any, ...]:
    run = record.run
    asked = json.dumps(run.to_json(), sort_keys=True)
    return run.id, asked, record.verdict, record.finished, record.place, record.cost.get("seconds")


def agree(store: Store) -> None:
    """The index says what the records say; so do labels made from it."""
    truth = [record for path in sorted(store.root.glob("[!.]*/[!.]*/record.json")) if (record := store._listed(path))]
    quick = store.summaries()
    assert store.records() == truth
    assert [told(record) for record in quick] == [told(record) for record in truth]
    assert labels([r.run for r in quick]) == labels([r.run for r in truth])
    for record in truth:
        assert store.find(record.run.id).run == record.run


def record_of(store: Store, run: Run) -> Path:
    return store.folder(run) / "record.json"


def changed(path: Path, key: str, value: Any) -> None:
    """Edit a record in place, as a text editor may; with a time of its own, which the clock's ticks may not give."""
    with suppress(FileNotFoundError, json.JSONDecodeError):  # there is none, or it was truncated: nothing to edit
        data = json.loads(path.read_text())
        path.write_text(json.dumps(data | {key: value}))
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1 + len(str(value))))


OPERATIONS: dict[str, Any] = {
    "commit": lambda store, run: store.commit(Outcome(run, {"a": 0.5}, {"seconds": 2.0})),
    "diverge": lambda store, run: store.commit(Outcome(run, {"a": float("nan")})),
    "refuse": lambda store, run: store.commit(Outcome(run, {"refused": "too large"}), place=3),
    "fail": lambda store, run: store.commit_failure(run, "Traceback\nValueError: no"),
    "remove": lambda store, run: shutil.rmtree(store.folder(run), ignore_errors=True),
    "edit": lambda store, run: changed(record_of(store, run), "finished", "2020-01-01T00:00:00+00:00"),
    "edit cost": lambda store, run: changed(record_of(store, run), "cost", {"seconds": 7}),
    "swap": lambda store, run: swap(record_of(store, run), record_of(store, RUNS[0])),
    "truncate": lambda store, run: damage(record_of(store, run)),
    "drop index": lambda store, run: (store.root / "toy" / ".index").unlink(missing_ok=True),
    "damage index": lambda store, run: damage(store.root / "toy" / ".index"),
    "empty index": lambda store, run: (
        store.root.joinpath("toy").is_dir() and (store.root / "toy/.index").write_text("")
    ),
    "look": lambda store, run: store.summaries(),
}


def swap(one: Path, other: Path) -> None:
    if one.exists() and other.exists() and one != other:
        kept = one.with_name("kept")
        one.rename(kept)
        other.rename(one)
        kept.rename(other)


def damage(path: Path) -> None:
    if path.exists():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), st.sampled_from(RUNS)), max_size=12))
def test_any_sequence_of_events_gives_the_same_answers_with_and_without_the_index(
    steps: list[tuple[str, Run]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = Store(tmp_path_factory.mktemp("out"))
    for name, run in steps:
        OPERATIONS[name](store, run)
        agree(store)


def filled(out: Path) -> Store:
    store = Store(out)
    for run in RUNS:
        store.commit(Outcome(run, {"a": 0.5}, {"seconds": 2.0}))
    store.summaries()
    return store


def test_records_whose_files_are_as_they_were_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path)
    read = list[Path]()
    whole = store._listed
    monkeypatch.setattr(store, "_listed", lambda path: (read.append(path), whole(path))[1])
    assert len(store.summaries()) == len(RUNS) and read == []
    changed(record_of(store, RUNS[1]), "place", 5)
    store.summaries()
    assert read == [record_of(store, RUNS[1])]


def test_costs_are_the_median_of_each_settings_finished_runs(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, seconds in enumerate((1.0, 2.0, 9.0)):
        store.commit(Outcome(dataclasses.replace(RUNS[0], seed=seed), {"a": 0.5}, {"seconds": seconds}))
    store.commit(Outcome(dataclasses.replace(RUNS[0], seed=3), {"a": float("nan")}, {"seconds": 100.0}))
    store.commit(Outcome(RUNS[2], {"a": 0.5}, {"seconds": 4.0}))
    found = {record.run.options["x"]: record.cost["seconds"] for record in store.costs("toy")}
    assert found == {RUNS[0].options["x"]: 2.0, RUNS[2].options["x"]: 4.0}


def test_a_run_that_was_computed_again_after_it_was_listed_is_told_as_it_is_now(tmp_path: Path) -> None:
    store = filled(tmp_path)
    listed = store.records()[0]
    store.commit(Outcome(listed.run, {"a": float("nan")}))
    assert listed.metrics == {"a": None} and listed.status == "diverged"


def test_what_was_measured_is_read_when_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path)
    read = list[Path]()
    whole = store._listed
    monkeypatch.setattr(store, "_listed", lambda path: (read.append(path), whole(path))[1])
    first, second, *_ = store.records()
    assert first.status == "done" and read == []
    assert first.metrics == {"a": 0.5} and first.cost["seconds"] == 2.0 and read == [first.folder / "record.json"]
    assert dataclasses.replace(second, status="failed").metrics == {"a": 0.5}
    store.remove(second)
    gone = next(record for record in store.records() if record.run.id != first.run.id)
    store.remove(gone)
    with pytest.raises(UserError, match="load the records again"):
        assert gone.metrics


def signed(text: str) -> str:
    """As the index itself would sign it."""
    return f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}"


NOT_A_NUMBER: dict[str, Any] = {"settings": [[{"a": float("nan")}, {}, {}]], "rows": []}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path, data: path.write_text(signed(json.dumps(data | {"layout": ["another"]}))),
        lambda path, data: path.write_text(signed(json.dumps(data | {"rows": [[1, 2]]}))),
        lambda path, data: path.write_text(signed(json.dumps(data | {"rows": {"a": {}}}))),
        lambda path, data: path.write_text(signed(json.dumps(data | {"settings": [[{}, {"a": 1}, {}]]}))),
        lambda path, data: path.write_text(signed(json.dumps(data | {"settings": [[{}, {}, {"odd": 1}]]}))),
        lambda path, data: path.write_text(
            signed(json.dumps(data | {"settings": [[{"a": float("nan")}, {}, {}]], "rows": []}))
        ),
        lambda path, data: path.write_text(signed(json.dumps(data | {"rows": [], "more": "x" * 10**6}))),
        lambda path, data: path.write_text(signed("[" * 100_000)),
        lambda path, data: path.write_text(signed("9" * 10_000)),
        lambda path, data: path.write_bytes(b"\x80\x04cos\nsystem\n"),
        lambda path, data: (path.unlink(), path.symlink_to("/etc/hostname")),
        lambda path, data: (path.unlink(), os.mkfifo(path)),
        lambda path, data: (path.unlink(), path.mkdir()),
    ],
    ids=[
        "version",
        "rows",
        "no rows",
        "versions",
        "numerics",
        "nan",
        "large",
        "deep",
        "digits",
        "pickle",
        "link",
        "pipe",
        "folder",
    ],
)
def test_an_index_that_is_not_ours_counts_as_missing(tmp_path: Path, spoil: Any) -> None:
    store = filled(tmp_path)
    path = store.root / "toy" / ".index"
    spoil(path, json.loads(path.read_text().partition("\n")[2]))
    agree(store)


def test_a_row_of_an_unknown_status_or_setting_counts_for_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path)
    path = store.root / "toy" / ".index"
    good = json.loads(path.read_text().partition("\n")[2])
    for place, value in ((5, 99), (5, -1), (7, "splendid"), (8, "\x1b[2J")):
        rows = [[*row[:place], value, *row[place + 1 :]] for row in good["rows"]]
        path.write_text(signed(json.dumps(good | {"rows": rows})))
        agree(store)


def test_where_the_index_cannot_be_written_there_is_none(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for run in RUNS:
        store.commit(Outcome(run, {"a": 0.5}))
    (store.root / "toy" / ".index").mkdir()
    agree(store)
    assert [path.name for path in store.root.glob("toy/.index*")] == [".index"], "no temporary file is left"


def test_a_record_that_changed_just_now_is_not_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may change again within a tick of the clock, without another time or size."""
    monkeypatch.setattr(index, "SETTLED_NS", 2_000_000_000)
    store = filled(tmp_path)
    assert not (store.root / "toy" / ".index").exists()


def test_runs_of_one_setting_share_their_options(tmp_path: Path) -> None:
    store = filled(tmp_path)
    for found in (store.summaries(), store.records()):
        assert len({id(record.run.options) for record in found}) == 3
