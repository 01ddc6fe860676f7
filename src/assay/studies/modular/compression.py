"""The import path that the spec promises for `spec/compression.py`."""

from assay.studies.modular.spec.compression import *  # noqa: F403
from assay.studies.modular.spec.compression import __all__ as __all__
