"""Promises that several folders make, for their contracts to call."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
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


def training_reach(
    module: nn.Module, x: Float[Tensor, "batch time d"], chosen: Callable[[Tensor], Tensor]
) -> Bool[Tensor, "batch time"]:
    """The inputs that have a gradient from the chosen outputs in training mode, where batch statistics mix inputs."""
    given = x.clone().requires_grad_()
    y = chosen(module.train()(given))
    if y.requires_grad:
        (y * torch.randn(y.shape, generator=stream(0, "contract", "weights"))).sum().backward()
    module.eval()
    return torch.zeros_like(x[..., 0], dtype=torch.bool) if given.grad is None else given.grad.ne(0).any(dim=2)


def assert_loads_back(plugin: Plugin) -> None:
    """The JSON spec and the label lead back to an equal plug-in."""
    assert plugin.registry.load(plugin.spec()) == plugin, f"{plugin.spec()} loaded as another {plugin.registry.kind}"
    assert plugin.registry.parse(plugin.label) == plugin, f"{plugin.label} parsed as another {plugin.registry.kind}"
