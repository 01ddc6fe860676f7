"""The spec's names, of `compression` and of `core`; each is loaded on first use (PEP 562)."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.studies.modular.compression import *  # noqa: F403
    from assay.studies.modular.core import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        for home in ("compression", "core"):
            module = importlib.import_module(f"{__name__}.{home}")
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
