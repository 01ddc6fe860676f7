"""A store of a stranger: links, pipes, odd types, deep nesting, huge numbers and terminal escapes in it do no harm."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.core.store import Store

TOY = Path(__file__).parent / "toy.py"
Cli = Callable[..., tuple[int, str, str]]
ESCAPE = "\x1b]0;owned\x07\x1b[2J"


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def harm(path: Path) -> None:
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))

    return harm


def replaced(make: Callable[[Path], object]) -> Callable[[Path], object]:
    def harm(path: Path) -> None:
        path.unlink()
        make(path)

    return harm


HARMS: dict[str, Callable[[Path], object]] = {
    "status {}": edited(lambda data: data.update(status={})),
    "status unknown": edited(lambda data: data.update(status=ESCAPE)),
    "finished null": edited(lambda data: data.update(finished=None)),
    "finished escapes": edited(lambda data: data.update(finished=ESCAPE)),
    "metrics a list": edited(lambda data: data.update(metrics=[1])),
    "cost a word": edited(lambda data: data.update(cost="cheap")),
    "seconds a word": edited(lambda data: data["cost"].update(seconds="long")),
    "error a number": edited(lambda data: data.update(error=5)),
    "artifacts a word": edited(lambda data: data.update(artifacts="note.txt")),
    "artifact outside": edited(lambda data: data.update(artifacts=["../../../../etc/passwd"])),
    "place a word": edited(lambda data: data.update(place="first")),
    "provenance null": edited(lambda data: data.update(provenance=None)),
    "seed a word": edited(lambda data: data["run"].update(seed="x")),
    "versions of numbers": edited(lambda data: data["run"].update(versions={"toy": 1})),
    "numerics a list": edited(lambda data: data["run"].update(numerics=[])),
    "run null": edited(lambda data: data.update(run=None)),
    "format a word": edited(lambda data: data.update(format="2")),
    "4,000 digits": lambda path: path.write_text(re.sub(r"(square.: )\S+", r"\g<1>" + "1" * 4000, path.read_text())),
    "infinite": lambda path: path.write_text(re.sub(r"(square.: )\S+", r"\g<1>1e999", path.read_text())),
    "nested": lambda path: path.write_text("[" * 100_000),
    "nested a little": edited(lambda data: data.update(metrics={"square": json.loads("[" * 200 + "]" * 200)})),
    "no UTF-8": lambda path: path.write_bytes(b"\xff\xfe"),
    "empty": lambda path: path.write_text(""),
    "a pipe": replaced(os.mkfifo),
    "a folder": replaced(Path.mkdir),
    "a link": replaced(lambda path: path.symlink_to("/dev/zero")),
    "huge": lambda path: os.truncate(path, 2**40),
}


@pytest.fixture
def words(tmp_path: Path) -> list[str | Path]:
    xs = [str(x) for x in range(1, len(HARMS) + 2)]
    return ["toy", "--plugin", TOY, "--xs", *xs, "--seeds", "0", "--executor", "serial", "--out", tmp_path]


def test_every_reader_skips_what_is_no_record_and_a_driver_computes_it_again(
    cli: Cli, tmp_path: Path, words: list[str | Path]
) -> None:
    assert cli(*words)[0] == 0
    sound, *records = Store(tmp_path).records()
    paths = dict(zip(HARMS, [tmp_path / ".store" / "toy" / r.run.id / "record.json" for r in records], strict=True))
    for name, path in paths.items():
        HARMS[name](path)
    kinds = {path: path.lstat().st_mode for path in paths.values()}
    for verb in (["show"], ["show", "--json"], ["show", sound.run.id], ["report", "--plugin", TOY]):
        code, out, err = cli(*verb, "--out", tmp_path)
        assert code == 0 and "Traceback" not in err and not re.search(r"[\x00-\x09\x0b-\x1f]", out + err), verb
        if verb[-1] != sound.run.id:
            assert sum(str(path) in err for path in paths.values()) == len(HARMS), verb
        if verb == ["show"]:
            assert [line.split()[0] for line in out.splitlines()] == [sound.run.id]
    assert {path: path.lstat().st_mode for path in paths.values()} == kinds, "a reader renames nothing"
    code, _, err = cli(*words)
    assert code == 0 and f"{len(HARMS) + 1} planned, 1 stored, {len(HARMS)} to run" in err and "Traceback" not in err
    assert {r.run.id: r.metrics for r in Store(tmp_path).records()} == {r.run.id: r.metrics for r in (sound, *records)}
    assert len(list(tmp_path.rglob("record.json.unreadable"))) == len(HARMS)


def test_what_a_record_says_is_printed_without_its_escapes(cli: Cli, tmp_path: Path) -> None:
    cli("toy", "--plugin", TOY, "--xs", "1", "2", "--seeds", "0", "--executor", "serial", "--out", tmp_path)

    def taint(data: dict[str, Any]) -> None:
        data["run"]["options"] |= {f"x{ESCAPE}": ESCAPE, "model": {"name": ESCAPE}, "other": {"name": 5}}
        data["run"]["versions"] |= {ESCAPE: ESCAPE}
        data["metrics"] |= {"refused": ESCAPE, ESCAPE: [ESCAPE]}
        data["provenance"]["host"] = f"{ESCAPE}<script>alert(1)</script>"
        data |= {"error": f"Traceback\n{ESCAPE}", "status": "failed", "artifacts": ["note.txt"]}

    tainted = Store(tmp_path).records()[0]
    edited(taint)(tmp_path / ".store" / "toy" / tainted.run.id / "record.json")
    (tmp_path / ".store" / f"study{ESCAPE.replace('/', '')}" / "0123456789abcdef").mkdir(parents=True)
    (tmp_path / ".store" / f"study{ESCAPE}" / "0123456789abcdef" / "record.json").write_text("{")
    for verb in (["show"], ["show", tainted.run.id], ["rm", "--dry-run", "--study", "toy"], ["report"]):
        code, out, err = cli(*verb, "--plugin", TOY, "--out", tmp_path)
        assert code == 0 and not re.search(r"[\x00-\x09\x0b-\x1f]", out + err), verb
    assert "<script>alert(1)" not in (tmp_path / "report.html").read_text()


def test_metrics_of_another_shape_are_one_line_when_a_command_reports_them(cli: Cli, tmp_path: Path) -> None:
    words = ["toy", "--plugin", TOY, "--xs", "1", "--seeds", "0", "--executor", "serial", "--out", tmp_path]
    cli(*words)
    (path,) = tmp_path.rglob("record.json")
    edited(lambda data: data.update(metrics={"round": 1}))(path)
    code, _, err = cli(*words)
    assert code == 1 and "toy could not be reported: KeyError: 'square' (toy.py:" in err and "Traceback" not in err
    code, out, err = cli("report", "--plugin", TOY, "--out", tmp_path)
    assert code == 1 and "toy could not be reported: KeyError: 'square' (toy.py:" in err and "Traceback" not in err
    assert "This section could not be made" in Path(out.strip()).read_text()


def test_a_record_that_its_study_cannot_read_is_left_out_by_name_and_hides_no_other(cli: Cli, tmp_path: Path) -> None:
    words = ["toy", "--plugin", TOY, "--seeds", "0", "--executor", "serial", "--out", tmp_path]
    cli(*words, "--xs", "1", "2", "3", "4", "5")
    odd, *_ = (record for record in Store(tmp_path).records() if record.run.options["x"] == 3)
    edited(lambda data: data["run"].update(options={"odd": 1}))(
        tmp_path / ".store" / "toy" / odd.run.id / "record.json"
    )
    code, out, err = cli("report", "--plugin", TOY, "--out", tmp_path)
    assert code == 0 and f"toy is reported without {odd.run.id}, which cannot be read: KeyError: 'x' (toy.py:" in err
    assert len(err.splitlines()) == 1
    page = Path(out.strip()).read_text()
    assert "could not be made" not in page and all(f"{x * x}.0" in page for x in (1, 2, 4, 5))


def test_a_record_of_a_newer_version_hides_no_other_and_is_left_as_it_is(cli: Cli, tmp_path: Path) -> None:
    words = ["toy", "--plugin", TOY, "--seeds", "0", "--executor", "serial", "--out", tmp_path]
    cli(*words, "--xs", "1", "2")
    newer, other = Store(tmp_path).records()
    path = tmp_path / ".store" / "toy" / newer.run.id / "record.json"
    edited(lambda data: data.update(format=99))(path)
    before = path.read_bytes()
    for verb in (["show"], ["show", "--json"], ["show", other.run.id], ["report", "--plugin", TOY]):
        code, out, err = cli(*verb, "--out", tmp_path)
        assert code == 0 and (("left out" in err and "newer assay" in err) or other.run.id in verb), verb
        assert verb[0] == "report" or (other.run.id in out and newer.run.id not in out), verb
    assert newer.run.id in (told := cli("show", newer.run.id, "--out", tmp_path))[2] and told[0] == 2
    assert cli("rm", "--study", "toy", "--dry-run", "--out", tmp_path)[1].count("would remove") == 1
    assert cli(*words, "--xs", "3")[0] == 0, "another run of that study is computed"
    code, _, err = cli(*words, "--xs", str(newer.run.options["x"]))
    assert code == 2 and "newer assay" in err and path.read_bytes() == before
