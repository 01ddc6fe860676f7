"""The names a user's own file imports; each is loaded on first use (PEP 562), so listing studies stays instant."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch.nn.functional as F
    from torch import nn

    from assay.studies.expressivity.spec.config import Config
    from assay.studies.expressivity.spec.generator import HybridGenerator
    from assay.studies.expressivity.spec.registration import register
    from assay.studies.expressivity.spec.tester import ExpressivityTester

__all__ = ["Config", "ExpressivityTester", "F", "HybridGenerator", "nn", "register"]

_HOME = {
    "Config": "assay.studies.expressivity.spec.config",
    "ExpressivityTester": "assay.studies.expressivity.spec.tester",
    "HybridGenerator": "assay.studies.expressivity.spec.generator",
    "register": "assay.studies.expressivity.spec.registration",
}


def __getattr__(name: str) -> Any:
    if name == "nn":
        return importlib.import_module("torch.nn")
    if name == "F":
        return importlib.import_module("torch.nn.functional")
    if name not in _HOME:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)
