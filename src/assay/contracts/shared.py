"""Promises that several folders make, for their contracts to call."""

import torch
from torch import Tensor, nn

from assay.core.plugin import Plugin
from assay.nn.random import stream


def assert_trains(module: nn.Module, output: Tensor) -> None:
    """Each parameter that asks for a gradient gets a finite one, from `output`, that is not zero."""
    if output.requires_grad:
        (output * torch.randn(output.shape, generator=stream(0, "contract", "weights"))).sum().backward()
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        assert parameter.grad is not None, f"{name} got no gradient: the forward pass does not use it"
        assert torch.isfinite(parameter.grad).all(), f"the gradient of {name} is not finite"
        assert parameter.grad.abs().max() > 0, f"the gradient of {name} is exactly zero"


def assert_loads_back(plugin: Plugin) -> None:
    """The JSON spec and the label lead back to an equal plug-in."""
    assert plugin.registry.load(plugin.spec()) == plugin, f"{plugin.spec()} loaded as another {plugin.registry.kind}"
    assert plugin.registry.parse(plugin.label) == plugin, f"{plugin.label} parsed as another {plugin.registry.kind}"
