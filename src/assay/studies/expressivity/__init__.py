"""The names a user's own file imports, each loaded on first use (PEP 562), so that listing studies stays instant."""

from assay.core.on_use import on_use

_HOME = {
    "spec.config": ("Config",),
    "spec.registration": ("F", "nn", "register"),
    "spec.tester": ("ExpressivityTester", "HybridGenerator"),
}

__getattr__, __dir__ = on_use(__name__, _HOME)
