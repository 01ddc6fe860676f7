"""A section on disk: each table as CSV and JSON, each chart as PDF, PNG and the Vega-Lite spec they are drawn from."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from assay.core.errors import UserError
from assay.core.store import disk_errors, write_file
from assay.report.section import Chart, Section
from assay.report.style import house_spec, vegalite_version

PNG_SCALE = 2


def write_section(section: Section, folder: Path) -> list[Path]:
    """Write everything the section holds; the paths in the order of its tables, charts and files."""
    return [_write(folder / name, data) for name, data in _contents(section, folder)] + [
        _write(path, data) for path, data in section.files
    ]


def _contents(section: Section, folder: Path) -> Iterator[tuple[str, bytes]]:
    for table in section.tables:
        yield f"{table.name}.csv", table.csv().encode()
        text = json.dumps(table.json_rows(), indent=1, ensure_ascii=False, allow_nan=False)
        yield f"{table.name}.json", f"{text}\n".encode()
    for name, text in section.documents.items():
        yield name, text.encode()
    for chart in section.charts:
        yield from _pictures(chart, folder)


def _pictures(chart: Chart, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Drawing takes a second, so a chart whose spec is there already keeps its pictures; the spec is written last."""
    import vl_convert

    names = f"{chart.name}.pdf", f"{chart.name}.png", f"{chart.name}.vl.json"
    spec = json.dumps(chart.spec, sort_keys=True).encode()
    there = [(folder / name).read_bytes() for name in names if (folder / name).is_file()]
    if len(there) == len(names) and there[-1] == spec:
        yield from zip(names, there, strict=True)
        return

    version, nowhere = vegalite_version(), list[str]()
    yield names[0], vl_convert.vegalite_to_pdf(chart.spec, vl_version=version, allowed_base_urls=nowhere)
    yield (
        names[1],
        vl_convert.vegalite_to_png(chart.spec, vl_version=version, scale=PNG_SCALE, allowed_base_urls=nowhere),
    )
    yield names[2], spec


def drawn(chart: Any, suffix: str) -> bytes:
    """One Altair chart in the house style as .pdf, .png or .svg: for a file whose name somebody else chose."""
    import vl_convert

    draws: dict[str, Callable[..., bytes]] = {
        ".pdf": vl_convert.vegalite_to_pdf,
        ".png": lambda spec, **rest: vl_convert.vegalite_to_png(spec, scale=PNG_SCALE, **rest),
        ".svg": lambda spec, **rest: vl_convert.vegalite_to_svg(spec, **rest).encode(),
    }
    if suffix not in draws:
        raise UserError(f"a figure cannot end in '{suffix}': name it .pdf, .png or .svg.")
    return draws[suffix](house_spec(chart), vl_version=vegalite_version(), allowed_base_urls=list[str]())


def _write(path: Path, data: bytes) -> Path:
    with disk_errors(path):
        write_file(path, data)
    return path
