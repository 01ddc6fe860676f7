"""Measures what a neural architecture can hold, recall, compress and throw away: in minutes, with error bars."""

import os
from typing import TYPE_CHECKING

from assay.core.on_use import on_use

if TYPE_CHECKING:
    from assay.api import Execution, load, run
    from assay.core.errors import UserError
    from assay.results import Results

# Intel's MKL multiplies one matrix alone by another program than several at once, with other last digits: a model's
# numbers would depend on which others are trained beside it. It reads this at its first product.
os.environ.setdefault("MKL_CBWR", "AVX2,STRICT")

__version__ = "0.1.0"
__all__ = ["Execution", "Results", "UserError", "load", "run"]

# Public names are imported on first use (PEP 562): `import assay` alone costs nothing, and `dir(assay)` lists them.
__getattr__, __dir__ = on_use(
    __name__, {"api": ("Execution", "load", "run"), "core.errors": ("UserError",), "results": ("Results",)}
)
