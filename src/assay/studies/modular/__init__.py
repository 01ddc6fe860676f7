"""Offers the spec's names from `compression` and `core`; each is loaded on first use (PEP 562)."""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.studies.modular.spec.compression import *  # noqa: F403
    from assay.studies.modular.spec.core import *  # noqa: F403


def __getattr__(name: str) -> Any:
    # `from assay.studies.modular import files` asks here first: a module of this folder is no name of the spec.
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}") is None:
        for home in ("spec.compression", "spec.core"):
            module = importlib.import_module(f"{__name__}.{home}")
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
