"""The drills judge as they say: what they let pass is what assay promises, and they leave nothing behind."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(
    0, str(Path(__file__).parents[1] / "drills")
)  # scripts beside the package, which import each other by their names

import bench
import groups

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
