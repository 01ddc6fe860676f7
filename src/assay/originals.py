"""Two original projects by their own names, once this is imported; loading a plug-in imports it.

    import assay.originals
    from modular_addition.compression import run_sweep

Where a module of that name is found, it is that one.
"""

import sys
from importlib import import_module
from importlib.util import find_spec

HOMES = {
    "measure": "assay.studies.expressivity",
    "modular_addition": "assay.studies.modular",
    "modular_addition.compression": "assay.studies.modular.compression",
    "modular_addition.core": "assay.studies.modular.core",
}

for _project in ("measure", "modular_addition"):
    if _project not in sys.modules and find_spec(_project) is None:
        sys.modules |= {name: import_module(home) for name, home in HOMES.items() if name.startswith(_project)}
