"""The import path that the spec promises for `spec/core.py`."""

from assay.studies.modular.spec.core import *  # noqa: F403
from assay.studies.modular.spec.core import __all__ as __all__
