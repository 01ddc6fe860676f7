"""Data is looked up in the user's folders, then in assay's own cache.

Nothing of a path is in a data set's options, so that a run has one id on every machine. Files are looked for in the
folder that the environment variable ASSAY_DATA names (`--data_dir`, where a command has it, sets it), then in ./data,
then in the cache. Nothing is fetched from the Hugging Face hub unless `hub` is named in a folder's place.
"""

import os
from pathlib import Path

from assay.core.errors import UserError
from assay.core.files import exists, is_there

FOLDER = "ASSAY_DATA"
"""Environment variable that names the data folder; worker processes inherit it."""
HUB = "hub"
"""Given in place of a folder, it means the Hugging Face hub, where it has the data set."""


def cache() -> Path:
    """Return the folder for what was fetched or can be made again: ASSAY_CACHE, or the user's cache folder."""
    return Path(os.environ.get("ASSAY_CACHE") or user_cache() / "assay")


def folders(folder: Path | None = None, *, remedy: str) -> list[Path]:
    """Return where to look, in order: the folder that is named, here or by ASSAY_DATA, then ./data, then the cache."""
    named = str(folder or os.environ.get(FOLDER, ""))
    first = [Path(named)] if named and not is_hub(named) else []
    if first and not is_there(first[0], folder=True):
        raise UserError(f"the data folder '{named}' does not exist: name one that does, or none. {remedy}")
    return [*first, Path("data"), cache()]


def found(*names: str, folder: Path | None = None, remedy: str) -> Path | None:
    """Return the first of these names that exists in a data folder, or None."""
    places = (place / name for place in folders(folder, remedy=remedy) for name in names)
    return next((place for place in places if exists(place)), None)


def find(*names: str, what: str, folder: Path | None = None, remedy: str) -> Path:
    """Return the same, or raise a UserError that says where it was looked for."""
    there = found(*names, folder=folder, remedy=remedy)
    if there is None:
        *places, last = (f"'{place}'" for place in folders(folder, remedy=remedy))
        raise UserError(f"{what} is not in {', '.join(places)} or assay's cache, {last}. {remedy}")
    return there


def is_hub(name: Path | str | None) -> bool:
    """Return whether this means the hub: an existing folder of that name is a folder."""
    return str(name) == HUB and not Path(HUB).is_dir()


def user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
