"""`@register("Name")`: the spec's one line that adds an encoder, or a tester with probes of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch.nn.functional as F  # noqa: F401 - the spec imports it beside `register`
from torch import nn

from assay.core.plugin import Plugin, Registry
from assay.encoders import encoders
from assay.encoders.base import Encoder
from assay.studies.expressivity.spec.config import Config
from assay.studies.expressivity.spec.tester import ExpressivityTester

C = TypeVar("C", bound=type)

STANDARD = "ExpressivityTester"
testers: Registry["Tester"] = Registry("tester", "")


@dataclass(frozen=True, kw_only=True)
class ModuleEncoder(Encoder):
    """A module class that is built from a Config, as an encoder plug-in."""

    module_class: ClassVar[type[nn.Module]]

    def build(self, length: int, d_in: int, d_code: int) -> nn.Module:
        """Build from bare sizes: keys and values keep their default sizes, features take the rest."""
        keys = min(8, (length - 1) // 2, d_in // 3)
        values = min(4, d_in // 3)
        features = d_in - keys - values
        keys, features = keys + features % 2, features - features % 2
        return self.module_class(Config(L=length, K_keys=keys, V_dim=values, F_feat=features, D_z=d_code))


@dataclass(frozen=True, kw_only=True)
class Tester(Plugin):
    """The class that measures; its columns follow the spec's."""

    tester_class: ClassVar[type[ExpressivityTester]]


def register(name: str) -> Callable[[C], C]:
    """Class decorator for an `nn.Module` whose constructor takes a Config, or for a subclass of ExpressivityTester."""

    def add(cls: C) -> C:
        members = {"__module__": cls.__module__, "__doc__": cls.__doc__}
        if issubclass(cls, ExpressivityTester):
            testers.register(name)(type(name, (Tester,), members | {"tester_class": cls}))
        else:
            encoders.register(name)(type(name, (ModuleEncoder,), members | {"module_class": cls}))
        return cls

    return add


register(STANDARD)(ExpressivityTester)
