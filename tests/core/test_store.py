"""The store: complete or absent, never half; one bad file harms nothing else."""

import errno
import json
import warnings
from pathlib import Path

import pytest

from assay.core import store as store_module
from assay.core.errors import UserError
from assay.core.run import FORMAT, Run
from assay.core.store import Store
from assay.core.study import Outcome

RUN = Run("toy", {"x": 1}, 0, {"toy": "1"})
OTHER = Run("toy", {"x": 2}, 0, {"toy": "1"})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_what_is_committed_is_read_back(store: Store) -> None:
    written = store.commit(Outcome(RUN, {"a": 0.5}, {"seconds": 2.0}, {"w.bin": b"\x00\x01"}))
    assert store.get(RUN) == written and written.status == "done"
    assert (store.folder(RUN) / "w.bin").read_bytes() == b"\x00\x01"
    assert store.records() == [written] and store.find(RUN.id[:6]) == written


def test_the_record_is_written_last(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    write = store_module.write_file
    monkeypatch.setattr(store_module, "write_file", lambda path, data: (order.append(path.name), write(path, data)))
    store.commit(Outcome(RUN, {"a": 1.0}, artifacts={"one": b"1", "two": b"2"}))
    assert order == ["one", "two", "record.json"]


def test_a_run_without_its_record_is_absent(store: Store) -> None:
    store.commit(Outcome(RUN, {"a": 1.0}, artifacts={"one": b"1"}))
    (store.folder(RUN) / "record.json").unlink()
    assert store.get(RUN) is None and store.records() == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[1, 2]",
        lambda text: json.dumps({"hello": "world"}),
        lambda text: text.replace('"seed": 0', '"seed": 5'),
    ],
    ids=["truncated", "empty", "a list", "foreign", "another run's"],
)
def test_a_damaged_record_is_set_aside_with_a_warning(store: Store, damage) -> None:
    store.commit(Outcome(RUN, {"a": 1.0}))
    other = store.commit(Outcome(OTHER, {"a": 2.0}))
    path = store.folder(RUN) / "record.json"
    text = damage(path.read_text())
    path.write_text(text)
    with pytest.warns(UserWarning, match="set aside"):
        assert store.records() == [other]
    assert [p.read_text() for p in path.parent.glob("record.json.unreadable*")] == [text]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.get(RUN) is None


def test_a_newer_store_is_refused_not_guessed_at(store: Store) -> None:
    store.commit(Outcome(RUN, {"a": 1.0}))
    path = store.folder(RUN) / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": FORMAT + 1}))
    with pytest.raises(UserError, match=r"newer assay.*Upgrade"):
        store.get(RUN)
    assert path.exists()


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "Free some space"), (errno.EROFS, "read-only")])
def test_a_failing_disk_is_one_message_and_leaves_no_half_file(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    kept = store.commit(Outcome(OTHER, {"a": 2.0}))

    def fail(file: int) -> None:
        raise OSError(number, errno.errorcode[number])

    monkeypatch.setattr(store_module.os, "fsync", fail)
    with pytest.raises(UserError, match=words) as error:
        store.commit(Outcome(RUN, {"a": 1.0}))
    assert "--out" in str(error.value)
    monkeypatch.undo()
    assert store.records() == [kept] and not list(store.folder(RUN).glob("*"))


def test_an_infinite_metric_is_a_diverged_run(store: Store) -> None:
    record = store.commit(Outcome(RUN, {"a": float("inf"), "b": 1.0}))
    assert record.status == "diverged" and record.metrics == {"a": None, "b": 1.0}
    assert store.get(RUN) == record


def test_a_failure_keeps_its_traceback(store: Store) -> None:
    store.commit_failure(RUN, "Traceback ...\nValueError: no")
    record = store.get(RUN)
    assert record and record.status == "failed" and "ValueError: no" in (record.error or "")


def test_one_driver_holds_a_run_and_another_does_not_get_it(tmp_path: Path) -> None:
    first, second = Store(tmp_path), Store(tmp_path)
    with first.lock(RUN) as mine, second.lock(RUN) as theirs, second.lock(OTHER) as free:
        assert (mine, theirs, free) == (True, False, True)
    with second.lock(RUN) as now:
        assert now


def test_a_prefix_must_name_one_run(store: Store) -> None:
    store.commit(Outcome(RUN, {"a": 1.0}))
    with pytest.raises(UserError, match="no run 'zz'"):
        store.find("zz")
    store.commit(Outcome(OTHER, {"a": 1.0}))
    with pytest.raises(UserError, match="several runs"):
        store.find("")
