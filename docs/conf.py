"""Settings of the documentation's site (`make site`): the pages are the Markdown files of this folder."""

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

project = "assay"
author = "The assay authors"
copyright = author
release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "assay"
myst_heading_anchors = 3
myst_links_external_new_tab = True
suppress_warnings = ["misc.highlighting_failure", "toc.not_included"]


def source_read(app: Any, name: str, source: list[str]) -> None:
    """Turn links that leave this folder into plain text, and give the start page its list of pages."""
    source[0] = re.sub(r"\[([^]]+)\]\(\.\./[^)]+\)", r"\1", source[0])
    if name == "index":
        first = ["expressivity", "icl", "perplexity", "sae", "modular"]
        others = sorted({path.stem for path in (ROOT / "docs").glob("*.md")} - {*first, "index"})
        for caption, pages in (("The five studies", first), ("More", others)):
            listed = "\n".join(pages)
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"


def setup(app: Any) -> None:
    app.connect("source-read", source_read)
