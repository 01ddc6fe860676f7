"""What is stored, as `assay show` and the page have it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.core.store import Store

TOY = Path(__file__).parent / "toy.py"
Cli = Callable[..., tuple[int, str, str]]


def test_a_run_that_was_refused_is_called_so_in_the_list_and_alone(cli: Cli, tmp_path: Path) -> None:
    cli("toy", "--plugin", TOY, "--xs", "2", "--seeds", "0", "--executor", "serial", "--out", tmp_path)
    (path,) = tmp_path.rglob("record.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"metrics": {"refused": "too few keys"}}))
    listed = cli("show", "--out", tmp_path)[1].split()
    assert listed[1] == "refused" and f"run {listed[0]}: refused, " in cli("show", listed[0], "--out", tmp_path)[1]


def test_the_list_reads_each_record_once(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("toy", "--plugin", TOY, "--xs", "2", "--seeds", "0", "--executor", "serial", "--out", tmp_path)
    reads, read = [], Store._read
    monkeypatch.setattr(Store, "_read", lambda store, path: reads.append(path) or read(store, path))
    assert cli("show", "--out", tmp_path)[0] == 0 and len(reads) == 1


@pytest.mark.parametrize("shows", [True, False])
def test_the_page_shows_failed_runs_where_the_study_does(cli: Cli, tmp_path: Path, shows: bool) -> None:
    plugin, name = tmp_path / "mine.py", f"toy_that_{'shows' if shows else 'hides'}"
    text = Path(TOY).read_text().replace('register("toy")', f'register("{name}")')
    text = text.replace('    presets = {"tiny"', f'    shows_failures = {shows}\n    presets = {{"tiny"')
    plugin.write_text(text.replace('r.metrics["square"]', 'r.metrics.get("square", "was trapped")'))
    (tmp_path / "x=2").write_text("always raise")
    words = [name, "--plugin", plugin, "--xs", "1", "2", "--seeds", "0", "--trap", tmp_path, "--executor", "serial"]
    assert cli(*words, "--out", tmp_path / "out")[0] == 1
    assert cli("report", "--plugin", plugin, "--out", tmp_path / "out")[0] == 0
    assert (">was trapped<" in (tmp_path / "out" / "report.html").read_text()) is shows
