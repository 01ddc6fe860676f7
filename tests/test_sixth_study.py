"""A study in one file of less than 60 lines has everything that the five have: table, chart, page, resume, claims."""

import json
from collections.abc import Callable
from pathlib import Path

STUDY = Path(__file__).parent / "sixth_study.py"
Cli = Callable[..., tuple[int, str, str]]


def test_a_sixth_study_gets_table_chart_page_and_resume_from_one_short_file(cli: Cli, tmp_path: Path) -> None:
    assert len(STUDY.read_text().splitlines()) < 60
    words = ["counting", "--plugin", STUDY, "--executor", "serial", "--out", tmp_path]
    code, out, _ = cli(*words, "--grid", "xs=1,2,3")
    assert code == 0 and [line.split()[0] for line in out.splitlines()[2:5]] == ["1", "2", "3"], out
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert {"squares.csv", "squares.json", "square_by_x.png", "square_by_x.pdf"} <= files
    (table,) = tmp_path.rglob("squares.json")
    assert json.loads(table.read_text())[1]["square"]["mean"] == 4.05
    code, again, err = cli(*words, "--grid", "xs=1,2,3")
    assert code == 0 and "6 stored, nothing to run" in err and again == out
    code, _, err = cli("report", "--plugin", STUDY, "--out", tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert code == 0 and "What is the square of x?" in page and "square_by_x" in page, err
