"""Where data lies: in folders of the user's, and in assay's own cache.

Nothing of a path is in a data set's options, so that a run has one id on every machine. Files are looked for in the
folder that the environment variable ASSAY_DATA names (`--data_dir`, where a command has it, sets it), then in ./data,
then in the cache. Nothing is fetched from the Hugging Face hub unless `hub` is named in a folder's place.
"""

import os
from pathlib import Path

from assay.core.errors import UserError

FOLDER = "ASSAY_DATA"
"""The environment variable: worker processes inherit it."""
HUB = "hub"
"""In the place of a folder: from the Hugging Face hub, where a data set is there."""


def cache() -> Path:
    """Where what was fetched, or can be made again, is kept: ASSAY_CACHE, or the user's cache folder."""
    return Path(os.environ.get("ASSAY_CACHE") or user_cache() / "assay")


def find(*names: str, what: str, remedy: str) -> Path:
    """The first of these names that exists in a data folder."""
    folders = [Path(folder) for folder in (os.environ.get(FOLDER, ""), "data") if folder]
    if os.environ.get(FOLDER) and not folders[0].is_dir():
        raise UserError(f"the data folder '{folders[0]}' does not exist. {remedy}")
    for folder in (*folders, cache()):
        for name in names:
            if (folder / name).exists():
                return folder / name
    looked = " and ".join(f"'{folder}'" for folder in folders)
    raise UserError(f"{what} is not in {looked}. {remedy}")


def user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
