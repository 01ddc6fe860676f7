"""A run is held by one driver at a time, with one descriptor for all of them, and a dead driver holds nothing."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.core import locks
from assay.core.errors import UserError
from assay.core.run import Run
from assay.core.store import Store
from assay.core.study import Outcome

RUN, OTHER = (Run("toy", {"x": x}, 0, {"toy": "1"}) for x in (1, 2))
HOLD = """
import resource, sys
from assay.core.run import Run
from assay.core.store import Store
count, limit = int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
store = Store(sys.argv[1])
held = [store.take(Run("toy", {"x": x}, 0, {"toy": "1"})) for x in range(1, count + 1)]
print(sum(lock is not None for lock in held), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Another process that holds the first `count` runs of tmp_path until it is ended."""

    def start(count: int = 1, descriptors: int = 128) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", HOLD, str(tmp_path), str(count), str(descriptors)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == f"{count}\n"
        return process

    return start


def descriptors() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def test_five_thousand_runs_are_held_with_a_hundred_and_twenty_eight_descriptors(tmp_path: Path, hold) -> None:
    store, holder = Store(tmp_path), hold(5000, 128)
    for x in (1, 2500, 5000):
        assert store.take(Run("toy", {"x": x}, 0, {"toy": "1"})) is None
    with store.lock(Run("toy", {"x": 5001}, 0, {"toy": "1"})) as free:
        assert free
    holder.kill()
    holder.communicate()
    with store.lock(RUN) as free:
        assert free


def test_a_command_whose_cohort_has_more_runs_than_descriptors(tmp_path: Path, cli) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    words = ["toy", "--plugin", Path(__file__).parent.parent / "toy.py", "--xs", "1..100", "--seeds", "0", "--grouped"]
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 50, limits[1]))
    try:
        code, _, err = cli(*words, "--executor", "serial", "--device", "cpu", "--out", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert code == 0, err
    assert len(Store(tmp_path).records()) == 100


def test_sessions_of_one_process_exclude_each_other_by_any_path(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    before = descriptors()
    first, second = Store(tmp_path), Store(tmp_path / "link")
    one, other = first.take(RUN), second.take(OTHER)
    assert one and other and second.take(RUN) is None and first.take(OTHER) is None
    assert descriptors() == before + 1
    one.release()
    assert first.take(OTHER) is None, "giving one run back drops no other lock"
    other.release()
    assert descriptors() == before and not locks._TABLE


def test_giving_one_run_back_drops_no_other_lock(tmp_path: Path, hold) -> None:
    store = Store(tmp_path)
    one, other = store.take(RUN), store.take(OTHER)
    assert one and other
    one.release()
    process = subprocess.run(
        [sys.executable, "-c", HOLD, str(tmp_path), "2", "128"], input="", capture_output=True, text=True, check=True
    )
    assert process.stdout == "1\n"
    other.release()


def test_a_forked_child_holds_nothing_and_takes_nothing_away(tmp_path: Path) -> None:
    store = Store(tmp_path)
    held = store.take(RUN)
    child = os.fork()
    if child == 0:
        taken = store.take(RUN)
        os._exit(1 if taken else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    child = os.fork()
    if child == 0:
        os._exit(1 if store.take(RUN) else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert held is not None
    held.release()


def test_a_run_in_flight_is_not_removed_nor_its_lock(tmp_path: Path, cli, hold) -> None:
    store = Store(tmp_path)
    for run in (RUN, OTHER):
        store.commit(Outcome(run, {"square": 1.0}))
    holder = hold(1)
    code, out, err = cli("rm", "--study", "toy", "--out", tmp_path)
    assert (
        code == 1
        and err == "1 runs, 1 in use and kept\n"
        and f"in use, kept {RUN.id}" in out
        and f"removed {OTHER.id}" in out
    )
    assert [record.run for record in store.records()] == [RUN] and store.take(RUN) is None
    holder.kill()
    holder.communicate()
    code, out, err = cli("rm", RUN.id, RUN.id[:8], "--out", tmp_path)
    assert code == 0 and err == "1 runs\n" and f"removed {RUN.id}" in out
    assert [path.name for path in (tmp_path / ".store" / "toy").iterdir()] == [".locks"]


def test_locks_taken_after_the_file_was_deleted_are_in_the_new_file(tmp_path: Path, hold) -> None:
    store = Store(tmp_path)
    held, path = store.take(RUN), tmp_path / ".store" / "toy" / ".locks"
    path.unlink()
    other = store.take(OTHER)
    assert held and other and held.file != other.file and path.exists()
    ran = subprocess.run(
        [sys.executable, "-c", HOLD, str(tmp_path), "2", "128"], input="", capture_output=True, text=True, check=True
    )
    assert ran.stdout == "1\n", "the run of the new file is held; that of the deleted one no longer"
    held.release()
    other.release()
    assert not locks._TABLE


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_a_lock_file_that_is_none_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ".store" / "toy" / ".locks"
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"\.locks"):
        Store(tmp_path).take(RUN)
    assert not (tmp_path / "nowhere").exists()
