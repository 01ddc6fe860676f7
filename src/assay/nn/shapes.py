"""Modules are built for their shapes alone on the meta device, where nothing is allocated or drawn.

A plug-in's `build` may look at values (`torch.linspace(0, 1, 4).tolist()`), which tensors there do not have. Such a
module is as good as any other: its shapes are just not known before it is built for real.
"""

from collections.abc import Callable

import torch
from torch import nn

from assay.core.errors import UserError
from assay.nn.random import initialised_from

BUILT_TO_COUNT = 2**26
"""Most parameters of a module that is built for real in order to count them: 256 MB in float32."""


def built_for_shapes(build: Callable[[], nn.Module]) -> nn.Module | None:
    """Return what `build` returns on the meta device, or None where it fails there. A UserError passes through; the
    real build will tell whether anything else is a fault of the plug-in."""
    try:
        with torch.device("meta"):
            return build()
    except UserError:
        raise
    except Exception:  # noqa: BLE001 - a build without values may fail in any way
        return None


def parameter_count(build: Callable[[], nn.Module], *, expected: int) -> int:
    """Return the parameters of what `build` returns: from shapes, or, where it does not build on the meta device, from
    a real build on the CPU, if the `expected` number of them is small enough for that."""
    if (module := built_for_shapes(build)) is None:
        if expected > BUILT_TO_COUNT:
            raise UserError(
                f"a module of about {expected:,} parameters is too large to be built only to count them, and its "
                "`build` fails on torch's meta device, where that is free. Let `build` look at no tensor's values."
            )
        with torch.device("cpu"), initialised_from(0, "shape"):
            module = build()
    return sum(parameter.numel() for parameter in module.parameters())
