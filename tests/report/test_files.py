import csv
import errno
import hashlib
import json
import os

import pytest

from assay.core import store
from assay.core.errors import UserError
from assay.metrics.intervals import Interval
from assay.report.files import write_section
from assay.report.page import build_page
from assay.report.section import Chart, Section


def test_tables_and_charts_are_written_in_every_format(section, tmp_path, hostile):
    paths = write_section(section, tmp_path / "toy")
    assert [path.name for path in paths] == [
        "findings.json",
        "scores.csv",
        "scores.json",
        "lines.pdf",
        "lines.png",
        "lines.vl.json",
        "bars.pdf",
        "bars.png",
        "bars.vl.json",
    ]
    assert sorted(path.name for path in (tmp_path / "toy").glob("[!.]*")) == sorted(path.name for path in paths)
    _, table, data, *drawn = paths
    rows = json.loads(data.read_text(encoding="utf-8"))
    assert rows[1]["Model"] == hostile
    assert rows[0]["R2_0.75"]["n"] == 5
    with table.open(encoding="utf-8", newline="") as file:
        assert [row["Model"] for row in csv.DictReader(file)] == ["gru", hostile, "conv", "lost"]
    starts = {".pdf": b"%PDF", ".png": b"\x89PNG", ".json": b"{"}
    for path in drawn:
        assert path.read_bytes().startswith(starts[path.suffix])


def test_a_chart_is_drawn_again_only_when_its_spec_changed_or_a_picture_is_gone(section, tmp_path, monkeypatch):
    import vl_convert

    drawn = []
    draw = vl_convert.vegalite_to_png
    monkeypatch.setattr(vl_convert, "vegalite_to_png", lambda *args, **more: (drawn.append(1), draw(*args, **more))[1])
    first = write_section(section, tmp_path)
    assert write_section(section, tmp_path) == first and len(drawn) == 2
    (tmp_path / "lines.png").unlink()
    write_section(section, tmp_path)
    assert len(drawn) == 3 and (tmp_path / "lines.png").is_file()
    (tmp_path / "bars.vl.json").write_text("{}")
    write_section(section, tmp_path)
    assert len(drawn) == 4


def test_a_chart_that_would_fetch_something_is_not_drawn(tmp_path):
    import altair as alt

    section = Section("toy")
    section.chart("remote", alt.Chart(alt.UrlData(url="https://example.com/x.json")).mark_point())
    with pytest.warns(UserWarning, match=r"the chart remote cannot be drawn \(.*example\.com"):
        assert write_section(section, tmp_path) == []


def test_a_full_disk_is_said_in_one_line(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", full)
    section = Section("toy")
    section.table("scores", [{"a": 1}])
    with pytest.raises(UserError, match=r"scores\.csv: No space left.*--out"):
        write_section(section, tmp_path)
    assert list(tmp_path.iterdir()) == []


def of(first, *names, documents=()):
    """A section with a table and others of these names."""
    section = Section("toy")
    for name in (first, *names):
        section.table(name, [{"a": 1}])
    for name in documents:
        section.document(name, "mine")
    return section


def there(folder):
    return sorted(path.name for path in folder.glob("[!.]*"))


def test_a_command_takes_its_predecessors_tables_and_figures_away(section, tmp_path):
    write_section(section, tmp_path)
    (tmp_path / "lines_of_mine.png").write_bytes(b"mine")
    paths = write_section(of("scores", "ranking"), tmp_path)
    assert there(tmp_path) == sorted(["lines_of_mine.png", *(path.name for path in paths)])


def test_documents_and_what_belongs_to_another_table_stay(tmp_path):
    write_section(of("one", "detail", documents=["one_2025.json"]), tmp_path)
    write_section(of("two"), tmp_path)
    write_section(of("one"), tmp_path)
    assert there(tmp_path) == ["one.csv", "one.json", "one_2025.json", "two.csv", "two.json"]


def test_a_figure_that_somebody_changed_is_theirs(tmp_path):
    write_section(of("one", "detail"), tmp_path)
    (tmp_path / "detail.csv").write_text("with my remarks")
    write_section(of("one"), tmp_path)
    assert there(tmp_path) == ["detail.csv", "one.csv", "one.json"]


NOTHING = hashlib.sha256(b"").hexdigest()


@pytest.mark.parametrize("text", ["", "[1]", '{"one": 3}', f'{{"one": {{"../theirs.csv": "{NOTHING}"}}}}'])
def test_a_list_that_is_not_ours_removes_nothing(tmp_path, text):
    folder = tmp_path / "toy"
    write_section(of("one", "detail"), folder)
    (tmp_path / "theirs.csv").write_bytes(b"")
    (folder / ".written.json").write_text(text)
    write_section(of("one"), folder)
    assert (tmp_path / "theirs.csv").exists() and "detail.csv" in there(folder)


ODD_LISTS = {
    "a pipe": os.mkfifo,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": lambda path: path.mkdir(),
    "nested": lambda path: path.write_text("[" * 100_000),
    "huge": lambda path: (path.touch(), os.truncate(path, 2**40)),
    "numbers": lambda path: path.write_text('{"one": [[1, 2]]}'),
}


@pytest.mark.parametrize("kind", ODD_LISTS)
def test_a_list_that_is_no_file_or_no_list_neither_hangs_nor_ends_the_command(tmp_path, kind):
    write_section(of("one", "detail"), tmp_path)
    (tmp_path / ".written.json").unlink()
    ODD_LISTS[kind](tmp_path / ".written.json")
    if kind == "a folder":
        with pytest.raises(UserError, match=r"cannot write .*written\.json"):
            write_section(of("one"), tmp_path)
    else:
        write_section(of("one"), tmp_path)
        assert list(json.loads((tmp_path / ".written.json").read_bytes())) == ["one"]
    assert "detail.csv" in there(tmp_path)


def test_a_list_removes_plain_files_of_its_own_folder_alone(tmp_path):
    folder = tmp_path / "toy"
    write_section(of("one"), folder)
    outside = tmp_path / "theirs.csv"
    outside.write_bytes(b"")
    (folder / "deeper").mkdir()
    kept = [folder / "deeper" / "a.csv", folder / "theirs.csv", folder / "a.csv"]
    for path in kept:
        path.write_bytes(b"")
    (folder / "link.csv").symlink_to(outside)
    names = [
        str(outside),
        "../theirs.csv",
        "deeper/a.csv",
        "./a.csv",
        "..",
        ".",
        "",
        "link.csv",
        "x" * 300,
        "a\0",
        "\ud800",
    ]
    (folder / ".written.json").write_text(json.dumps({"one": dict.fromkeys([*names, "gone.csv"], NOTHING)}))
    (folder / "gone.csv").write_bytes(b"")
    write_section(of("one"), folder)
    assert not (folder / "gone.csv").exists(), "the list was read"
    assert outside.exists() and (folder / "link.csv").is_symlink() and all(path.exists() for path in kept)


def named(name: str) -> Section:
    from assay.report.charts import interval_bars

    rows = [{"Model": each, "R": Interval(0.5, 0.4, 0.6, 3)} for each in (name, "other")]
    section = Section("toy")
    section.table("scores", rows)
    section.chart("bars", interval_bars(rows, label="Model", value="R", dots=[], references={}))
    return section


def test_a_name_that_the_renderer_aborts_at_is_drawn_all_the_same(tmp_path):
    """A character that XML has not is a Rust panic that ends the process: no exception, no table, no report."""
    name = "a\0\x07\x1b[31m\ufffe\udcffb"
    found = [path.name for path in write_section(named(name), tmp_path)]
    assert found == ["scores.csv", "scores.json", "bars.pdf", "bars.png", "bars.vl.json"]
    assert json.loads((tmp_path / "scores.json").read_bytes())[0]["Model"] == name
    assert "\\ufffdb" in (tmp_path / "bars.vl.json").read_text()


def test_a_chart_that_cannot_be_drawn_is_named_and_loses_nothing_else(tmp_path):
    section = named("a")
    section.charts.insert(0, Chart("broken", {"mark": 7}))
    with pytest.warns(UserWarning, match=r"the chart broken cannot be drawn \(.+\); the tables are whole"):
        found = [path.name for path in write_section(section, tmp_path)]
    assert found == ["scores.csv", "scores.json", "bars.pdf", "bars.png", "bars.vl.json"]


def test_a_document_may_be_written_out_only_where_files_are(tmp_path):
    asked = []
    section = of("scores")
    section.document("late.txt", lambda: asked.append(1) or "as it was asked for")
    build_page([("toy", "Why?", section)], [])
    assert not asked, "a page shows no documents"
    write_section(section, tmp_path)
    assert (tmp_path / "late.txt").read_text() == "as it was asked for"
