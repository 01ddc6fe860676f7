import csv
import errno
import json

import pytest

from assay.core import store
from assay.core.errors import UserError
from assay.report.files import write_section
from assay.report.section import Section


def test_tables_and_charts_are_written_in_every_format(section, tmp_path, hostile):
    paths = write_section(section, tmp_path / "toy")
    assert [path.name for path in paths] == [
        "scores.csv",
        "scores.json",
        "lines.pdf",
        "lines.png",
        "lines.vl.json",
        "bars.pdf",
        "bars.png",
        "bars.vl.json",
    ]
    assert sorted(path.name for path in (tmp_path / "toy").iterdir()) == sorted(path.name for path in paths)
    rows = json.loads(paths[1].read_text(encoding="utf-8"))
    assert rows[1]["Model"] == hostile
    assert rows[0]["R2_0.75"]["n"] == 5
    with paths[0].open(encoding="utf-8", newline="") as file:
        assert [row["Model"] for row in csv.DictReader(file)] == ["gru", hostile, "conv", "lost"]
    starts = {".pdf": b"%PDF", ".png": b"\x89PNG", ".json": b"{"}
    for path in paths[2:]:
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


def test_a_chart_that_would_fetch_something_is_refused(tmp_path):
    import altair as alt

    section = Section("toy")
    section.chart("remote", alt.Chart(alt.UrlData(url="https://example.com/x.json")).mark_point())
    with pytest.raises(ValueError, match=r"example\.com"):
        write_section(section, tmp_path)


def test_a_full_disk_is_said_in_one_line(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", full)
    section = Section("toy")
    section.table("scores", [{"a": 1}])
    with pytest.raises(UserError, match=r"scores\.csv: No space left.*--out"):
        write_section(section, tmp_path)
    assert list(tmp_path.iterdir()) == []
