"""The disk guard: a sweep whose artifacts cannot fit is refused before anything is computed."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from assay.core.errors import UserError
from assay.core.memory import size
from assay.core.run import Run
from assay.core.study import Study

WORTH_SAYING = 10**9
"""Bytes from which a plan says what its runs will store."""


def check_disk(study: Study, runs: Sequence[Run], out: Path) -> int:
    """Return what the runs will store, or raise where the folder's disk has less room. `Study.disk` counts artifacts
    alone, so what passes may still fill the disk; a full one stops the runs and loses nothing that is stored."""
    needed = study.disk(runs)
    if needed < WORTH_SAYING:
        return needed
    here = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(here).free
    if needed > free:
        raise UserError(
            f"{study.name}: {len(runs)} runs would store about {size(needed)}, and '{out}' has {size(free)} "
            f"free. Choose another folder (--out). {study.less_disk}".rstrip()
        )
    return needed
