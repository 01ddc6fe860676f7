"""The drills judge as they say: what they let pass is what assay promises, and they leave nothing behind."""

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(
    0, str(Path(__file__).parents[1] / "drills")
)  # scripts beside the package, which import each other by their names

import bench
import groups
import run

sys.path.pop(0)

PLAN = "expressivity: 20 planned, 3 stored, 17 to run (about 4 s)\n"
LAST = "2 files in results/expressivity\n"
WORDS = {
    2: "assay: interrupted; every finished run is stored. Repeat the command to resume.\n",
    15: "assay: terminated; every finished run is stored. Repeat the command to resume.\n",
}


@pytest.mark.parametrize(
    ("number", "code", "err"),
    [
        (15, -15, ""),
        (2, -2, "Traceback (most recent call last):\nKeyboardInterrupt\n"),
        (2, 1, ""),
        (2, 130, WORDS[2]),
        (2, 130, PLAN + WORDS[2]),
        (15, 143, PLAN + WORDS[15]),
        (15, 0, PLAN + LAST),
        (15, -15, PLAN + LAST),
    ],
)
def test_an_end_that_heeds_its_signal_passes(number: int, code: int, err: str) -> None:
    bench.Ended(code, "", err).expect_heeded(number)


@pytest.mark.parametrize(
    ("number", "code", "err"),
    [
        (15, -15, PLAN),  # died without a word in the middle of its work
        (2, -2, PLAN),
        (15, 143, PLAN),
        (15, 130, PLAN + WORDS[2]),
        (2, 0, PLAN),
        (2, 130, PLAN + "Traceback (most recent call last):\n" + WORDS[2]),
        (15, 0, ""),
        (15, -9, ""),
        (15, 1, PLAN + LAST),
    ],
)
def test_an_end_that_does_not_heed_its_signal_is_noticed(number: int, code: int, err: str) -> None:
    with pytest.raises(bench.Missed):
        bench.Ended(code, "", err).expect_heeded(number)


def mounted(folder: Path, *, second: str | None, first: bool) -> Path:
    """A list of mounts: version 2 with these controllers, and version 1 with memory."""
    lines = ["proc /proc proc rw 0 0", f"tmpfs {folder} tmpfs rw 0 0"]
    if first:
        lines.append(f"cgroup {folder}/memory cgroup rw,relatime,memory 0 0")
    if second is not None:
        (folder / "unified").mkdir()
        (folder / "unified" / "cgroup.controllers").write_text(second)
        lines.append(f"cgroup2 {folder}/unified cgroup2 rw,relatime 0 0")
    (folder / "mounts").write_text("\n".join(lines))
    return folder / "mounts"


@pytest.mark.parametrize(
    ("second", "first", "limits"),
    [
        ("cpu memory pids", True, ["memory.max", "memory.limit_in_bytes"]),
        ("cpu memory pids", False, ["memory.max"]),
        ("hugetlb", True, ["memory.limit_in_bytes"]),
        (None, True, ["memory.limit_in_bytes"]),
        ("hugetlb", False, []),
    ],
)
def test_memory_is_limited_by_the_version_that_has_the_controller(
    tmp_path: Path, second: str | None, first: bool, limits: list[str]
) -> None:
    assert [tree.limit for tree in groups.hierarchies(mounted(tmp_path, second=second, first=first))] == limits


def test_a_machine_without_memory_groups_cannot_do_the_drill(tmp_path: Path) -> None:
    with pytest.raises(bench.Cannot), groups.memory_group(2**30, mounted(tmp_path, second="cpu", first=False)):
        pass


def test_a_memory_group_is_gone_afterwards_with_whoever_is_in_it() -> None:
    left = subprocess.Popen(["sleep", "600"])
    try:
        with groups.memory_group(2**30) as group:
            (group / "cgroup.procs").write_text(str(left.pid))
            assert str(left.pid) in (group / "cgroup.procs").read_text().split()
        assert left.wait(60) == -9 and not group.exists()
    except bench.Cannot as reason:
        pytest.skip(str(reason))
    finally:
        left.kill()
        left.wait()


def store(out: Path, run_id: str, status: str = "done", **metrics: float) -> Path:
    """Write a record as assay does: whole, by renaming."""
    folder = out / ".store" / "icl" / run_id
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "new").write_text(json.dumps({"status": status, "metrics": metrics, "artifacts": []}))
    return (folder / "new").rename(folder / "record.json")


def test_a_record_that_is_written_twice_is_noticed_but_not_a_failed_one_that_is_tried_again(tmp_path: Path) -> None:
    watch = bench.Watch(tmp_path)
    for status in ("failed", "done"):
        store(tmp_path, "a", status)
        watch.look()
    watch.look()
    watch.expect_once()
    store(tmp_path, "a")
    watch.look()
    with pytest.raises(bench.Missed, match="computed twice"):
        watch.expect_once()


@pytest.mark.parametrize("change", ["another number", "missing", "too many"])
def test_a_store_that_differs_from_the_undisturbed_one_is_noticed(tmp_path: Path, change: str) -> None:
    for out in (tmp_path / "one", tmp_path / "two"):
        for name in ("a", "b"):
            store(out, name, score=0.1)
    wanted = bench.contents(tmp_path / "one")
    bench.expect_same(bench.contents(tmp_path / "two"), wanted)
    if change == "missing":
        (tmp_path / "two" / ".store" / "icl" / "a" / "record.json").unlink()
    else:
        store(tmp_path / "two", {"another number": "b", "too many": "c"}[change], score=0.1 + 1e-16)
    with pytest.raises(bench.Missed):
        bench.expect_same(bench.contents(tmp_path / "two"), wanted)


def test_a_lock_counts_as_held_while_it_is(tmp_path: Path) -> None:
    path = tmp_path / ".locks"
    with path.open("w") as file:
        assert path.stat().st_ino not in bench.held_files()
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 10**17)
        assert path.stat().st_ino in bench.held_files()
    assert path.stat().st_ino not in bench.held_files()


def test_the_table_sums_over_studies_and_names_those_that_broke_or_could_not_be_run() -> None:
    kills = [bench.Drill({"drivers killed": 3, "workers killed": count}, 10) for count in (3, 4)]
    text = run.table(
        [
            run.Attempt("killed processes", "icl", kills[0], "", True),
            run.Attempt("killed processes", "sae", kills[1], "", True),
            run.Attempt("full disk", "icl", None, "no tmpfs", True),
            run.Attempt("full disk", "sae", None, "a record is missing", False),
        ],
        120,
    )
    assert "| killed processes | 6 drivers killed, 7 workers killed | 2 | 20 | held |" in text
    assert "| full disk | - | 0 | 0 | BROKEN (sae): a record is missing; not run (icl): no tmpfs |" in text


def test_cases_that_are_repeated_alone_replace_their_rows() -> None:
    old = "\n| case | result |\n|---|---|\n| lock deleted | BROKEN |\n| full disk | held |\n\n15 minutes.\n"
    new = "| case | result |\n|---|---|\n| lock deleted | held |\n\n1 minute."
    assert run.replaced(old, new) == old.replace("BROKEN", "held").strip()
