"""Vega, Vega-Lite and vega-embed as one script, made once per version: bundling them takes two seconds.

It is kept in assay's cache; a file that was cut short or changed is made again.
"""

import importlib.metadata
from contextlib import suppress

from assay.core.errors import UserError
from assay.core.files import disk_errors, read_sealed, write_sealed
from assay.data.places import cache
from assay.report.style import vegalite_version

SCRIPT = "window.vegaEmbed = vegaEmbed;"
LARGEST = 2**24


def bundle() -> str:
    """Return the script of the versions installed here. Altair, whose version decides that of Vega-Lite, is imported
    only where the script has to be made."""
    versions = "-".join(importlib.metadata.version(library) for library in ("vl-convert-python", "altair"))
    path = cache() / f"vega-{versions}.js"
    with suppress(OSError, ValueError):
        return read_sealed(path, LARGEST).decode()
    import vl_convert

    made: str = vl_convert.javascript_bundle(SCRIPT, vegalite_version())
    with suppress(UserError), disk_errors(path):  # a cache that cannot be written costs time, not the page
        write_sealed(path, made.encode())
    return made
