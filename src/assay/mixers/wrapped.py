"""A torch module of a user's file is a mixer if its `forward(x)` maps (batch, time, d) to the same.

    assay card my_module.py:MyLayer:heads=4    ->    MyLayer(d_model=..., heads=4)

Its constructor calls the width d_model, dim or hidden_size, and may take `max_len`, the longest sequence; its other
arguments are options, where they are numbers, texts or truth values. It has no `step`: the state is all tokens so far.
"""

from dataclasses import dataclass, make_dataclass
from inspect import Parameter, signature
from types import ModuleType
from typing import Any, ClassVar, get_args

from torch import Tensor, nn

from assay.core.errors import UserError
from assay.mixers.base import Mixer, MixerModule
from assay.nn.axes import Tokens

WIDTHS, LONGEST = ("d_model", "dim", "hidden_size"), "max_len"
Value = int | float | bool | str | None
"""An option whose default does not say what it is."""


@dataclass(frozen=True, kw_only=True)
class Wrapped(Mixer):
    """Every torch module has a class derived from this."""

    module_class: ClassVar[type[nn.Module]]
    arguments: ClassVar[dict[str, Parameter]]
    """The arguments that its constructor is given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, each in self.arguments.items():
            if each.default is Parameter.empty and getattr(self, name, each) is None:
                raise UserError(f"mixer '{self.name}' needs a value of {name}: write {self.name}:{name}=VALUE.")

    def core(self, d_model: int, max_len: int) -> MixerModule:
        sizes = dict.fromkeys(_width(self.arguments), d_model) | {LONGEST: max_len}
        return ForwardAlone(
            self.module_class(**{name: sizes.get(name) or getattr(self, name) for name in self.arguments})
        )


class ForwardAlone(MixerModule):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tokens) -> Tokens:
        if not isinstance(y := self.layer(x), Tensor):
            raise UserError(f"{type(self.layer).__name__} returns a {type(y).__name__}, where a tensor as x is wanted.")
        return y


def layers_of(module: ModuleType) -> dict[str, type[nn.Module]]:
    """Return the torch modules that a file defines, by name, but for private ones."""
    kinds = {name: cls for name, cls in vars(module).items() if isinstance(cls, type) and issubclass(cls, nn.Module)}
    return {name: cls for name, cls in kinds.items() if cls.__module__ == module.__name__ and name[0] != "_"}


BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def wrapped(cls: type[nn.Module]) -> type[Mixer]:
    """Return the mixer of a torch module."""
    told = {name: each for name, each in signature(cls).parameters.items() if each.kind in BY_NAME}
    if told and not _width(told):
        raise UserError(f"{cls.__name__}({', '.join(told)}): name its width d_model, dim or hidden_size.")
    if taken := [name for name in told if hasattr(Mixer, name) or name in Wrapped.__annotations__]:
        raise UserError(f"{cls.__name__}: every mixer has '{taken[0]}' already: rename that argument.")
    sizes = (*_width(told), LONGEST)
    options = {name: option for name, each in told.items() if name not in sizes and (option := _option(each))}
    given = {name: each for name, each in told.items() if name in sizes or name in options}
    members = {"module_class": cls, "arguments": given, "__module__": cls.__module__, "__doc__": cls.__doc__}
    members |= {"ordered": cls.ordered} if hasattr(cls, "ordered") else {}
    fields = [(name, *option) for name, option in options.items()]
    return make_dataclass(cls.__name__, fields, bases=(Wrapped,), namespace=members, frozen=True, kw_only=True)


def _option(told: Parameter) -> tuple[Any, Any] | None:
    """Return the type and the default of an argument; None where a word cannot say its value."""
    if told.default is None or told.default is Parameter.empty:
        return Value, None
    kind = float if told.annotation in (float, "float") else type(told.default)
    return (kind, kind(told.default)) if kind in get_args(Value) else None


def _width(names: dict[str, Parameter]) -> list[str]:
    return [name for name in WIDTHS if name in names][:1]
