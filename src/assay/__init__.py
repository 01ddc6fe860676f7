"""Measures what a neural architecture can hold, recall, compress and throw away: in minutes, with error bars."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.api import Results, load, run
    from assay.core.errors import UserError

__version__ = "0.1.0"
__all__ = ["Results", "UserError", "load", "run"]


def __getattr__(name: str) -> Any:
    """Public names are imported on first use (PEP 562): `import assay` alone costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'assay' has no attribute '{name}'")
    return getattr(importlib.import_module("assay.core.errors" if name == "UserError" else "assay.api"), name)
