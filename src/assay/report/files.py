"""A section on disk: each table as CSV and JSON, each chart as PDF and PNG, made without a network."""

import json
from collections.abc import Iterator
from pathlib import Path

from assay.core.store import disk_errors, write_file
from assay.report.section import Chart, Section
from assay.report.style import vegalite_version

PNG_SCALE = 2


def write_section(section: Section, folder: Path) -> list[Path]:
    """Write everything the section holds; the paths in the order of its tables and charts."""
    return [_write(folder / name, data) for name, data in _contents(section)]


def _contents(section: Section) -> Iterator[tuple[str, bytes]]:
    for table in section.tables:
        yield f"{table.name}.csv", table.csv().encode()
        text = json.dumps(table.json_rows(), indent=1, ensure_ascii=False, allow_nan=False)
        yield f"{table.name}.json", f"{text}\n".encode()
    for chart in section.charts:
        yield from _pictures(chart)


def _pictures(chart: Chart) -> Iterator[tuple[str, bytes]]:
    import vl_convert

    version, nowhere = vegalite_version(), list[str]()
    yield f"{chart.name}.pdf", vl_convert.vegalite_to_pdf(chart.spec, vl_version=version, allowed_base_urls=nowhere)
    yield (
        f"{chart.name}.png",
        vl_convert.vegalite_to_png(chart.spec, vl_version=version, scale=PNG_SCALE, allowed_base_urls=nowhere),
    )


def _write(path: Path, data: bytes) -> Path:
    with disk_errors(path):
        write_file(path, data)
    return path
