"""Where assay keeps what it can fetch or make again."""

import os
from pathlib import Path


def cache() -> Path:
    """ASSAY_CACHE, or a folder in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("ASSAY_CACHE") or Path(base) / "assay")
