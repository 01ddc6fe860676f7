"""Every promise of a folder, tried on one plug-in as `assay check` tries them."""

from assay.contracts import base
from assay.core.plugin import Plugin


def broken(folder: str, plugin: Plugin) -> list[str]:
    """The promises that the plug-in does not keep, each with what was seen: one test says all of them, and the
    promises share what they compute of it."""
    return [f"{verdict.name}: {verdict.seen}" for verdict in base.check(folder, plugin) if not verdict.kept]
