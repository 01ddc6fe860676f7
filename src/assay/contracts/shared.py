"""Several folders make these promises; their contracts call them."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from assay.core.convert import option_types
from assay.core.plugin import Plugin, Registry
from assay.core.run import canonical
from assay.nn.random import stream

P = TypeVar("P", bound=Plugin)
Q = ParamSpec("Q")
T = TypeVar("T")


def shared(compute: Callable[Concatenate[P, Q], T]) -> Callable[Concatenate[P, Q], T]:
    """The promises of one check share what this computes of their plug-in. An equal plug-in that is another object is
    computed anew: its class may have been changed since."""
    last: list[Any] = [None, {}]

    @wraps(compute)
    def call(plugin: P, /, *args: Q.args, **kwargs: Q.kwargs) -> T:
        if last[0] is not plugin:
            last[:] = plugin, {}
        key = args, tuple(sorted(kwargs.items()))
        if key not in last[1]:
            last[1][key] = compute(plugin, *args, **kwargs)
        return last[1][key]

    return call


def assert_close(one: Tensor, other: Tensor, tolerance: float, what: str) -> None:
    assert one.shape == other.shape, f"{what} have shapes {tuple(one.shape)} and {tuple(other.shape)}"
    gap = (one - other).abs().max().item()
    assert gap <= tolerance, f"{what} differ by {gap:.2e}, more than {tolerance:.0e}"


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
    """Return the inputs with a gradient from the chosen outputs in training, where batch statistics mix inputs."""
    given = x.clone().requires_grad_()
    y = chosen(module.train()(given))
    if y.requires_grad:
        (y * torch.randn(y.shape, generator=stream(0, "contract", "weights"))).sum().backward()
    module.eval()
    if given.grad is None:
        return torch.zeros_like(x[..., 0], dtype=torch.bool)
    return (given.grad.abs() > 0).any(dim=2)


TEXTS = (
    "plain", "", " ", "a b", "c++", "/data/c++/a:b.txt", "a+b", "x=y", "a,b", "(", ")", "(a)", "a)b:c=1", '"', '"a"',
    "'", "\\", 'a\\"', "none", "None", "true", "5", "-1.5e+3", "0..4", "two\nlines", "\x1b[31m", "\udcff", "naïve",
)  # fmt: skip
"""Texts that a careless reader splits at separators, or takes for a number or for nothing."""
VALUES: Mapping[type, Sequence[Any]] = {
    str: TEXTS,
    Path: tuple(Path(text) for text in TEXTS if text),
    int: (0, 1, -1, 7, 10**20),
    float: (0.0, -0.0, 0.1, 1e-7, 1e20, -1.5e300),
    bool: (False, True),
    type(None): (None,),
}


def loads_back(plugin: Plugin) -> None:
    """The JSON spec and the label lead back to an equal plug-in, with any value that an option takes."""
    for changed in (plugin, *hostile(plugin)):
        kind, spec, label = plugin.registry.kind, changed.spec(), changed.label
        for made, source in ((plugin.registry.load(spec), spec), (plugin.registry.parse(label), label)):
            # Compared as JSON too, as ids are: in Python 1, 1.0 and true are equal, and -0.0 and 0.0 are.
            assert made == changed and canonical(made.spec()) == canonical(spec), f"{source} is read as another {kind}"


def hostile(plugin: Plugin, values: Callable[[Any], Iterable[Any]] | None = None) -> Iterator[Plugin]:
    """Yield the plug-in with each option at values that are easily misread, except those it refuses."""
    for name, hint in option_types(type(plugin)).items():
        for value in (values or values_of)(hint):
            with suppress(Exception):
                yield replace(plugin, **{name: value})


def values_of(hint: Any) -> Iterator[Any]:
    """Yield values of a type that are easily misread; tuples with none, one and several members."""
    origin, args = get_origin(hint), get_args(hint)
    if registry := getattr(hint, "registry", None):
        yield from _plugins_of(registry)
    elif origin is Literal:
        yield from args
    elif origin in (Union, UnionType):
        yield from (value for one in args for value in values_of(one))
    elif origin is tuple and args[-1:] == (...,):
        members = list(values_of(args[0]))
        yield from [(), *((member,) for member in members), tuple(members)]
    elif origin is tuple:
        yield from zip(*(itertools.islice(itertools.cycle(values_of(one)), 30) for one in args), strict=True)
    else:
        yield from VALUES.get(hint, ())


def _plugins_of(registry: Registry[Any]) -> Iterator[Plugin]:
    """Yield every choice as it is, and with one option changed."""
    for name in registry.names():
        with suppress(Exception):  # a broken plug-in of someone else's is tested under its own name
            plain = registry[name]()
            yield plain
            # Options that hold no plug-in alone: those would be changed in turn, without an end.
            others = hostile(plain, lambda hint: VALUES.get(hint, ()))
            yield from itertools.islice((other for other in others if other != plain), 3)
