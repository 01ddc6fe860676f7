"""Builds the HTML page: one file that needs no network. The findings come first, as cards, then a section per study.

Foreign text stays inert in three ways: Jinja escapes it in the markup, chart data goes into `application/json` blocks
with `<`, `>` and `&` as \\u003c and so on, and the page's policy allows only scripts whose hash it lists, and no
fetching. The policy needs no 'unsafe-eval', because vega-embed's `ast` mode interprets expressions.
"""

import base64
import hashlib
import importlib.metadata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from assay.core.errors import UserError
from assay.core.files import disk_errors, read_sealed, write_sealed
from assay.core.run import Record
from assay.data import places
from assay.report import views
from assay.report.section import Section
from assay.report.style import vegalite_version

CONTENT_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; "
    "base-uri 'none'; form-action 'none'"
)
LARGEST_SCRIPT = 2**24
"""Most bytes of the script in the cache."""
Sections = Sequence[tuple[str, str, Section]]
"""(study, its question, its section)."""


def long_tables(sections: Sections) -> Iterator[tuple[str, str]]:
    """Yield the path, from the page, and the CSV of each table that is not wholly on it."""
    for study, _, section in sections:
        for place, table in enumerate(section.tables):
            if place >= views.TABLES or len(table.rows) > views.ROWS:
                yield views.file_of(study, table), table.csv()


def build_page(
    sections: Sections,
    records: Sequence[Record],
    *,
    title: str = "assay report",
    files: Mapping[str, str] | None = None,
    cards: bool = True,
) -> str:
    """Build the page from the sections and the records behind them; `files` are shown whole, by name. With `cards` the
    findings of each section stand on the first screen too."""
    scripts = [asset("page.js")]
    if any(section.charts for _, _, section in sections):
        scripts.insert(0, vega())
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    room = views.room_for(section for _, _, section in sections)
    studies = [views.study_view(number, study, records, room, {}) for number, study in enumerate(sections, start=1)]
    return rendered(
        "page.html.j2",
        title=title,
        policy=CONTENT_POLICY.format(scripts=" ".join(f"'sha256-{digest}'" for digest in digests)),
        style=asset("page.css"),
        scripts=scripts,
        studies=studies,
        files=files or {},
        cards=cards,
        **overview(sections, records),
    )


def overview(sections: Sections, records: Sequence[Record]) -> dict[str, Any]:
    """What a first page says of the store as a whole."""
    known = {study for study, _, _ in sections}
    return {
        "unknown": sorted(Counter(record.run.study for record in records if record.run.study not in known).items()),
        "missing": views.missing_view(records),
        "provenance": views.provenance(records),
    }


def rendered(template: str, **values: Any) -> str:
    """Fill a template of the assets; a name that it lacks is an error, not an empty text."""
    page: str = _templates().get_template(template).render(**values)
    return page.encode(errors="backslashreplace").decode()  # lone surrogates come from file names that are no UTF-8


@cache
def _templates() -> Any:
    """Compiled once for all pages: that takes longer than filling them."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("assay.report", "assets"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def vega() -> str:
    """Vega, Vega-Lite and vega-embed as one script."""
    script = bundle()
    assert "</script" not in script.lower(), "the bundle would end its own script element"
    return script


def bundle() -> str:
    """Return the script of the versions installed here. It is made once per version, since that takes two seconds, and
    kept in assay's cache; a file that was cut short or changed is made again. Altair, whose version decides that of
    Vega-Lite, is imported only where the script has to be made."""
    versions = "-".join(importlib.metadata.version(library) for library in ("vl-convert-python", "altair"))
    path = places.cache() / f"vega-{versions}.js"
    with suppress(OSError, ValueError):
        return read_sealed(path, LARGEST_SCRIPT).decode()
    import vl_convert

    made: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vegalite_version())
    with suppress(UserError), disk_errors(path):  # a cache that cannot be written costs time, not the page
        write_sealed(path, made.encode())
    return made


def asset(name: str) -> str:
    from importlib.resources import files

    return files("assay.report").joinpath("assets", name).read_text(encoding="utf-8")
