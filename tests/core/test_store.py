"""The store: complete or absent, never half; one bad file harms nothing else."""

import dataclasses
import errno
import json
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.core import run as run_module
from assay.core import store as store_module
from assay.core.errors import UserError
from assay.core.run import FORMAT, Numerics, Run
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
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, path: (order.append(path.name), replace(self, path)))
    store.commit(Outcome(RUN, {"a": 1.0}, artifacts={"one": b"1", "two": b"2"}))
    assert order == ["one", "two", "record.json"]


@pytest.mark.parametrize("room", range(3))
def test_a_disk_that_fills_up_while_a_result_is_replaced_keeps_the_older_one_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """As `--force` does it; the disk has room for `room` of the two artifacts and the record."""
    older = store.commit(Outcome(RUN, {"a": 1.0}, artifacts={"one": b"1", "two": b"2"}))
    synced: list[int] = []

    def full_after(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(UserError, match="what was stored is kept"):
        patch.setattr(os, "fsync", full_after)
        store.commit(Outcome(RUN, {"a": 2.0}, artifacts={"one": b"other", "two": b"other"}))
    assert store.get(RUN) == older and [older.artifact(name) for name in ("one", "two")] == [b"1", b"2"]
    assert sorted(path.name for path in store.folder(RUN).iterdir()) == ["one", "record.json", "two"]
    newer = store.commit(Outcome(RUN, {"a": 2.0}, artifacts={"one": b"other", "two": b"other"}))
    assert store.get(RUN) == newer and newer.artifact("two") == b"other"


@pytest.mark.parametrize("renamed", range(3))
def test_an_older_record_never_stands_beside_newer_files(
    store: Store, monkeypatch: pytest.MonkeyPatch, renamed: int
) -> None:
    """As after a kill between two renames."""
    store.commit(Outcome(RUN, {"a": 1.0}, artifacts={"one": b"1", "two": b"2"}))
    replace, done = Path.replace, list[Path]()

    def killed_after(self: Path, path: Path) -> None:
        if len(done) == renamed:
            raise KeyboardInterrupt
        done.append(path)
        replace(self, path)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", killed_after)
        store.commit(Outcome(RUN, {"a": 2.0}, artifacts={"one": b"3", "two": b"4"}))
    assert store.get(RUN) is None and store.records() == []


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
        lambda text: text.replace(RUN.id, OTHER.id),
    ],
    ids=["truncated", "empty", "a list", "foreign", "another run's"],
)
def test_a_reader_skips_a_damaged_record_and_a_writer_sets_it_aside(store: Store, damage) -> None:
    store.commit(Outcome(RUN, {"a": 1.0}))
    other = store.commit(Outcome(OTHER, {"a": 2.0}))
    path = store.folder(RUN) / "record.json"
    text = damage(path.read_text())
    path.write_text(text)
    with pytest.warns(UserWarning, match="is not a record"):
        assert store.records() == [other] and store.get(RUN) is None
    assert [(p.name, p.read_text()) for p in path.parent.iterdir()] == [("record.json", text)]
    with pytest.warns(UserWarning, match="set aside as record.json.unreadable"):
        again = store.commit(Outcome(RUN, {"a": 3.0}))
    assert (path.parent / "record.json.unreadable").read_text() == text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.get(RUN) == again


def test_nothing_takes_the_place_of_a_file_that_was_set_aside_before(store: Store) -> None:
    path = store.folder(RUN) / "record.json"
    for text in ("first", "second"):
        store.commit(Outcome(RUN, {"a": 1.0}))
        path.write_text(text)
        with pytest.warns(UserWarning, match="set aside"):
            store.commit_failure(RUN, "ValueError: no")
    assert {p.read_text() for p in path.parent.glob("*.unreadable*")} == {"first", "second"}


def test_a_new_field_of_the_numerics_hides_no_record(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade: the id that these options have now is another, and the stored one is still the record's."""
    store.commit(Outcome(RUN, {"a": 1.0}))
    before = RUN.id

    @dataclasses.dataclass(frozen=True)
    class Later(Numerics):
        tf32: bool = False

    monkeypatch.setattr(run_module, "Numerics", Later)
    (record,) = store.records()
    assert record.run.id == before != Run("toy", {"x": 1}, 0, {"toy": "1"}, Later()).id
    assert record.run.numerics == Later() and store.find(before) == record
    assert [p.name for p in store.folder(record.run).iterdir()] == ["record.json"]


@pytest.mark.parametrize("harm", ["missing", "cut short", "a link"])
def test_a_run_that_lost_an_artifact_counts_as_absent_and_a_reader_says_so(store: Store, harm: str) -> None:
    record = store.commit(Outcome(RUN, {"a": 1.0}, artifacts={"w.bin": b"12345"}))
    path = store.folder(RUN) / "w.bin"
    path.unlink()
    if harm == "cut short":
        path.write_bytes(b"123")
    elif harm == "a link":
        (store.root / "elsewhere").write_bytes(b"12345")
        path.symlink_to(store.root / "elsewhere")
    with pytest.warns(UserWarning, match="has lost its file w.bin"):
        assert store.get(RUN) is None
    (listed,) = store.records()
    with pytest.raises(UserError, match=rf"w.bin: .*assay rm {RUN.id}"):
        listed.artifact("w.bin")
    assert listed.metrics == record.metrics and store.commit(Outcome(RUN, {"a": 1.0}, artifacts={"w.bin": b"12345"}))
    assert store.get(RUN) is not None


def test_an_artifact_of_the_right_size_and_other_content_is_noticed_when_it_is_read(store: Store) -> None:
    record = store.commit(Outcome(RUN, {"a": 1.0}, artifacts={"w.bin": b"12345"}))
    assert record.artifact("w.bin") == b"12345"
    (store.folder(RUN) / "w.bin").write_bytes(b"12346")
    with pytest.raises(UserError, match="not what was written"):
        store.records()[0].artifact("w.bin")


def test_readers_change_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a read-only disk: whatever would write raises, and a damaged record is skipped like anywhere."""
    kept = store.commit(Outcome(OTHER, {"a": 2.0}))
    store.commit(Outcome(RUN, {"a": 1.0}))
    (store.folder(RUN) / "record.json").write_text("{")

    def read_only(*args: object, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("replace", "rename", "unlink", "mkdir", "rmdir"):
        monkeypatch.setattr(os, name, read_only)
        monkeypatch.setattr(Path, name, read_only)
    with pytest.warns(UserWarning, match="is not a record"):
        assert store.records() == [kept] and store.find(OTHER.id) == kept and store.get(RUN) is None


def test_a_record_that_may_not_be_opened_takes_nothing_from_a_list(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = store.commit(Outcome(OTHER, {"a": 2.0}))
    store.commit(Outcome(RUN, {"a": 1.0}))
    opened = os.open

    def open(path: Path, flags: int, *rest: int) -> int:
        if RUN.id in str(path):
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, flags, *rest)

    monkeypatch.setattr(os, "open", open)
    with pytest.warns(UserWarning, match=r"Permission denied.*left out"):
        assert store.records() == [kept]
    with pytest.raises(UserError, match="Permission denied"):  # and it is not taken for absent, and computed again
        store.get(RUN)


def test_a_planted_link_is_never_written_through(store: Store, tmp_path: Path) -> None:
    mine = tmp_path / "precious"
    mine.write_text("precious")
    folder = store.folder(RUN)
    folder.mkdir(parents=True)
    for name in (".locks", f"{RUN.id}/lock", f"{RUN.id}/w.bin", f"{RUN.id}/record.json"):
        (folder.parent / name).symlink_to(mine)
    for path in (folder / "w.bin", folder / "record.json"):
        path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}").symlink_to(mine)
    with pytest.raises(UserError, match=r"\.locks: .*link"), store.lock(RUN):
        pass
    with pytest.warns(UserWarning, match="set aside"):
        store.commit(Outcome(RUN, {"a": 1.0}, artifacts={"w.bin": b"1"}))
    assert mine.read_text() == "precious" and store.get(RUN) is not None


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, Path.touch, lambda path: path.symlink_to(path.parents[2] / "home")],
    ids=["pipe", "file", "link"],
)
def test_3_7_what_stands_in_place_of_a_run_folder_is_set_aside_and_nothing_is_written_through_it(
    store: Store, tmp_path: Path, make: Callable[[Path], object]
) -> None:
    (tmp_path / "home").mkdir()
    store.folder(RUN).parent.mkdir(parents=True)
    make(store.folder(RUN))
    with pytest.warns(UserWarning, match=f"{RUN.id} is no folder; set aside"):
        store.commit(Outcome(RUN, {"a": 1.0}))
    assert store.get(RUN) and not list((tmp_path / "home").iterdir())
    assert os.path.lexists(store.folder(RUN).with_name(f".{RUN.id}.unreadable"))
    assert [record.run.id for record in store.records()] == [RUN.id], "what was set aside is in no list"
    assert store.remove(store.records()[0])


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("home")], ids=["pipe", "folder", "link"]
)
def test_3_7_what_stands_in_place_of_an_artifact_is_set_aside(store: Store, make: Callable[[Path], object]) -> None:
    store.commit(Outcome(RUN, {"a": 1.0}, artifacts={"w.bin": b"1"}))
    (store.folder(RUN) / "w.bin").unlink()
    make(store.folder(RUN) / "w.bin")
    with pytest.warns(UserWarning, match=r"lost its file w\.bin"):
        assert store.get(RUN) is None
    with pytest.warns(UserWarning, match=r"w\.bin is no file; set aside as w\.bin\.unreadable"):
        store.commit(Outcome(RUN, {"a": 1.0}, artifacts={"w.bin": b"1"}))
    found = store.get(RUN)
    assert found and found.artifact("w.bin") == b"1"


def test_3_5_one_flipped_bit_in_an_artifact_counts_as_a_lost_file(store: Store) -> None:
    store.commit(Outcome(RUN, {"a": 1.0}, artifacts={"w.bin": bytes(9)}))
    assert store.get(RUN)
    path = store.folder(RUN) / "w.bin"
    path.write_bytes(b"\0\0\0\1\0\0\0\0\0")
    with pytest.warns(UserWarning, match=rf"{RUN.id} has lost its file w\.bin"):
        assert store.get(RUN) is None
    store.commit(Outcome(RUN, {"a": 1.0}, artifacts={"w.bin": bytes(9)}))
    assert store.get(RUN)


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
    for prefix in ("zz", "*", "/", f"../toy/{RUN.id}"):
        with pytest.raises(UserError, match="no run '"):
            store.find(prefix)
    store.commit(Outcome(OTHER, {"a": 1.0}))
    with pytest.raises(UserError, match="several runs"):
        store.find("")
