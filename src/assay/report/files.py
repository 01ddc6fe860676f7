"""Writes a section: its findings as JSON, each table as CSV and JSON, each chart as PDF, PNG and the Vega-Lite spec
they are drawn from.

Tables and charts are views of one command. The next command whose first table has the same name removes those that it
does not write again, so that no outdated figure stays. A small file in the folder lists what was written, by first
table, with its hash: nothing else is ever removed. The folder may come from elsewhere, so that list is not trusted:
only plain files of this folder are removed.
"""

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from assay.core.errors import UserError
from assay.core.files import TEXT, read_plain, reason
from assay.core.reading import parsed
from assay.core.store import disk_errors, write_file
from assay.report.section import Chart, Section
from assay.report.style import house_spec, vegalite_version

PNG_SCALE = 2
FINDINGS = "findings.json"
"""[{"sentence": ..., "chart": "the chart that shows it, or nothing"}]"""
WRITTEN = ".written.json"
"""{"icl": {"icl.csv": sha256, "mse_by_step.pdf": sha256, ...}}: the views in a folder, by their first table."""


def write_section(section: Section, folder: Path) -> list[Path]:
    """Write everything the section holds; return the paths in the order of its findings, tables, documents, charts and
    files."""
    paths, views = [], dict[str, str]()
    for name, data in _contents(section, folder):
        paths.append(_write(folder / name, data))
        if name not in section.documents:
            views[name] = hashlib.sha256(data).hexdigest()
    if section.tables:
        _replace_views(folder, section.tables[0].name, views)
    return paths + [_write(path, data) for path, data in section.files]


def _replace_views(folder: Path, first: str, views: Mapping[str, str]) -> None:
    """Remove unchanged files that the last command with that first table wrote and this one did not."""
    listed = _listed(folder)
    others = {name for key, names in listed.items() if key != first for name in names}
    for name, written in listed.get(first, {}).items():
        if name not in views and name not in others and name == Path(name).name:
            found = _there(folder / name)
            if found is not None and hashlib.sha256(found).hexdigest() == written:
                with disk_errors(folder / name):
                    (folder / name).unlink(missing_ok=True)
    _write(folder / WRITTEN, f"{json.dumps({**listed, first: views}, indent=1)}\n".encode())


def _listed(folder: Path) -> dict[str, dict[str, str]]:
    with suppress(OSError, ValueError):
        return dict(parsed(read_plain(folder / WRITTEN, TEXT), {str: {str: str}}))
    return {}  # missing or malformed: nothing is removed


def _there(path: Path) -> bytes | None:
    """Read a plain file; None for anything else, and where there is none."""
    with suppress(OSError, ValueError):
        return read_plain(path)
    return None


def _contents(section: Section, folder: Path) -> Iterator[tuple[str, bytes]]:
    if section.findings:
        said = json.dumps([vars(finding) for finding in section.findings], indent=1, ensure_ascii=False)
        yield FINDINGS, _utf8(f"{said}\n")
    for table in section.tables:
        yield f"{table.name}.csv", _utf8(table.csv())
        text = json.dumps(table.json_rows(), indent=1, ensure_ascii=False, allow_nan=False)
        yield f"{table.name}.json", _utf8(f"{text}\n")
    for name, document in section.documents.items():
        yield name, _utf8(document if isinstance(document, str) else document())
    for chart in section.charts:
        try:
            yield from _pictures(chart, folder)
        except (ValueError, RuntimeError) as error:  # raised by vl-convert; a lost chart must not cost the tables
            lost = f"the chart {chart.name} cannot be drawn ({reason(error)}); the tables are whole"
            warnings.warn(lost, stacklevel=2)


def _utf8(text: str) -> bytes:
    """Encode text; lone surrogates, from file names that are no UTF-8, become \\udcff, which JSON reads back."""
    return text.encode(errors="backslashreplace")


def _pictures(chart: Chart, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Draw a chart unless its spec is unchanged on disk, since drawing takes a second; the spec is written last."""
    names = f"{chart.name}.pdf", f"{chart.name}.png", f"{chart.name}.vl.json"
    spec = json.dumps(chart.spec, sort_keys=True).encode()
    there = [data for name in names if (data := _there(folder / name)) is not None]
    if len(there) < len(names) or there[-1] != spec:
        there = [_drawn(chart.spec, ".pdf"), _drawn(chart.spec, ".png"), spec]  # all of a chart, or nothing of it
    yield from zip(names, there, strict=True)


def drawn(chart: Any, suffix: str) -> bytes:
    """Draw an Altair chart in the house style as .pdf, .png or .svg, for a file that the user named."""
    try:
        return _drawn(house_spec(chart), suffix)
    except (ValueError, RuntimeError) as error:  # raised by vl-convert
        raise UserError(f"the figure cannot be drawn: {reason(error)}.") from None


def _drawn(spec: dict[str, Any], suffix: str) -> bytes:
    import vl_convert

    options: dict[str, Any] = {"vl_version": vegalite_version(), "allowed_base_urls": list[str]()}
    match suffix:
        case ".pdf":
            return vl_convert.vegalite_to_pdf(spec, **options)
        case ".png":
            return vl_convert.vegalite_to_png(spec, scale=PNG_SCALE, **options)
        case ".svg":
            return vl_convert.vegalite_to_svg(spec, **options).encode()
    raise UserError(f"a figure cannot end in '{suffix}': name it .pdf, .png or .svg.")


def _write(path: Path, data: bytes) -> Path:
    with disk_errors(path):
        write_file(path, data)
    return path
