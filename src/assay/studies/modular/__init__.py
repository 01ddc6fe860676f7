"""The spec's names, from its `compression` and `core`, each loaded on first use (PEP 562)."""

from assay.core.on_use import on_use
from assay.studies.modular import compression, core

__getattr__, __dir__ = on_use(__name__, {"compression": compression.__all__, "core": core.__all__})
