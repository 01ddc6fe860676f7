"""Builds a small static site: the cards on `index.html`, a page per study, and one per plug-in that was run.

All files lie in one folder and link to each other by name, so that any static host serves them, and a browser opens
them from a disk. Scripts and style are files of the site, shared by its pages; the policy allows those and nothing
else from anywhere.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.core.errors import UserError
from assay.core.grouping import grouped
from assay.core.plugin import registries
from assay.core.run import Record
from assay.report import views
from assay.report.page import Sections, asset, long_tables, overview, rendered, vega
from assay.report.section import Section

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
OURS = '<meta name="generator" content="assay">'
Used = Mapping[str, Sequence[str]]
"""The plug-ins that a study's records name, as `kind/name`, by study."""


@dataclass(frozen=True)
class PluginPage:
    """One plug-in of the site: its file, and the words by which tables name it."""

    kind: str
    name: str
    file: str
    aliases: tuple[str, ...] = ()
    summary: str = ""

    @property
    def spellings(self) -> set[str]:
        return {word.lower() for word in (self.name, *self.aliases)}


def build_site(sections: Sections, records: Sequence[Record], used: Used) -> Iterator[tuple[str, str]]:
    """Yield the path in the site and the text of every file."""
    title = "assay report"
    plugins = {key: _plugin(key) for key in sorted({key for keys in used.values() for key in keys})}
    looks = views.room_for(section for _, _, section in sections).looks
    studies = []
    for number, study in enumerate(sections, start=1):
        links = {word: plugins[key].file for key in used.get(study[0], ()) for word in plugins[key].spellings}
        view = views.study_view(number, study, records, views.Room(views.CHART_BYTES, looks), links)
        studies.append(view | {"file": f"study-{_slug(study[0])}.html", "links": links})
    by_kind = grouped(plugins.values(), lambda plugin: plugin.kind)
    menu = {"policy": POLICY, "site": title, "studies": studies, "plugins": by_kind}
    told = overview(sections, records)
    yield "index.html", rendered("site_index.html.j2", title=title, here="index.html", **menu, **told)
    for view in studies:
        yield view["file"], rendered("site_study.html.j2", title=view["name"], here=view["file"], study=view, **menu)
    for key, plugin in plugins.items():
        mine = [(view, s) for view, (name, _, s) in zip(studies, sections, strict=True) if key in used.get(name, ())]
        found = [{**view, "tables": _tables(section, plugin, view)} for view, section in mine]
        here = {"title": plugin.name, "here": plugin.file, "plugin": plugin}
        yield plugin.file, rendered("site_plugin.html.j2", found=found, **here, **menu)
    yield from long_tables(sections)
    yield from (("vega.js", vega()), ("page.js", asset("page.js")), ("page.css", asset("page.css")))


def check_folder(folder: Path) -> None:
    """Raise where the site would overwrite somebody's own page."""
    index = folder / "index.html"
    if index.exists() and OURS not in index.read_text(encoding="utf-8", errors="replace"):
        raise UserError(f"'{index}' was not written by assay and stays; name another folder with --site.")


def _plugin(key: str) -> PluginPage:
    """The page of `kind/name`, with what its source says of it where this installation has it."""
    kind, _, name = key.partition("/")
    known = [registry for registry in registries().values() if registry.kind == kind]
    entry = next((entry for registry in known for entry in registry.entries() if entry.name == name), None)
    file = f"plugin-{_slug(kind)}-{_slug(name)}.html"
    return PluginPage(kind, name, file, entry.aliases, entry.summary) if entry else PluginPage(kind, name, file)


def _tables(section: Section, plugin: PluginPage, study: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a study's tables that name the plug-in, in tables that have some."""
    own = [replace(table, rows=views.rows_of(table, plugin.spellings)) for table in section.tables]
    return [views.table_view(study["name"], table, study["links"]) for table in own if table.rows]


def _slug(name: str) -> str:
    """A name as a part of a file name that needs no quoting in an address."""
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII)
