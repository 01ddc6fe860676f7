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
        "bars.pdf",
        "bars.png",
    ]
    assert sorted(path.name for path in (tmp_path / "toy").iterdir()) == sorted(path.name for path in paths)
    rows = json.loads(paths[1].read_text(encoding="utf-8"))
    assert rows[1]["Model"] == hostile
    assert rows[0]["R2_0.75"]["n"] == 5
    with paths[0].open(encoding="utf-8", newline="") as file:
        assert [row["Model"] for row in csv.DictReader(file)] == ["gru", hostile, "conv", "lost"]
    for path in paths[2:]:
        assert path.read_bytes().startswith(b"%PDF" if path.suffix == ".pdf" else b"\x89PNG")


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
