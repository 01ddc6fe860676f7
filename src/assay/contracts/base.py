"""The promises of a plug-in folder are functions: `assay check` prints them, tests/contracts runs them on every name.

contracts/<folder>.py holds one function per promise. It takes a plug-in, its docstring states the promise in one
sentence, and it raises AssertionError, with what was seen, where the promise is broken.
"""

import importlib
import importlib.util
import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from assay.core.errors import UserError
from assay.core.foreign import source_of
from assay.core.plugin import Plugin, registries
from assay.core.run import Numerics

Promise = Callable[[Plugin], None]


@dataclass(frozen=True)
class Verdict:
    promise: str
    kept: bool
    seen: str = ""
    name: str = ""
    """Of the function that tries it."""


def promises(folder: str) -> list[Promise]:
    """Return the public functions of contracts/<folder>.py in the order they are written, then what every plug-in
    promises."""
    try:
        module = importlib.import_module(f"assay.contracts.{folder}")
    except ModuleNotFoundError:
        known = ", ".join(sorted(name for name in registries() if has_contract(name)))
        raise UserError(f"'{folder}' has no contract to check. Folders that have: {known}.") from None
    from assay.contracts.shared import loads_back

    found = [f for _, f in inspect.getmembers(module, inspect.isfunction) if f.__module__ == module.__name__]
    public = [f for f in found if not f.__name__.startswith("_")]
    return [*sorted(public, key=lambda f: f.__code__.co_firstlineno), loads_back]


def check(folder: str, plugin: Plugin) -> list[Verdict]:
    """Try every promise of the folder on one plug-in, with the numerics that runs have on a CPU."""
    from assay.train.device import activate

    with activate(Numerics()):
        return [_try(promise, plugin) for promise in promises(folder)]


def made(folder: str, word: str) -> tuple[Plugin | str, list[Verdict]]:
    """Return the plug-in of a word, or the word and the verdict that says why none can be made. Refused options raise
    UserError, since the user can fix them."""
    registry = registries()[folder]
    registry[word.partition(":")[0]]
    try:
        return registry.parse(word), []
    except Exception as error:
        if isinstance(error, UserError) and ":" in word:
            raise
        return word, [Verdict("It can be made with these options.", False, f"{type(error).__name__}: {error}")]


def _try(promise: Promise, plugin: Plugin) -> Verdict:
    text = (promise.__doc__ or promise.__name__).strip()
    try:
        promise(plugin)
    except (AssertionError, UserError) as error:
        return Verdict(text, False, str(error), promise.__name__)
    except Exception as error:  # noqa: BLE001 - a plug-in that raises has broken the promise, and the person wants to see how
        frames = traceback.extract_tb(error.__traceback__)
        source = source_of(type(plugin).__module__)
        frame = next((f for f in reversed(frames) if source and f.filename == source.path), frames[-1])
        seen = f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
        return Verdict(text, False, seen, promise.__name__)
    return Verdict(text, True, name=promise.__name__)


def has_contract(folder: str) -> bool:
    return importlib.util.find_spec(f"assay.contracts.{folder}") is not None
