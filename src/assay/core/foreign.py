"""Plug-in files from outside the tree are given with `--plugin FILE`.

A file is known by its text: the sha256 of the text is the version of every plug-in in it, and jobs carry the text, so
that a worker on another machine runs the same code.
"""

import contextlib
import hashlib
import io
import linecache
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType

from assay.core.errors import UserError
from assay.core.files import read_file


@dataclass(frozen=True)
class Source:
    """One foreign file and its text."""

    path: str
    text: str

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def module_name(self) -> str:
        return f"assay_plugin_{self.sha256[:16]}"


_LOADED: dict[str, Source] = {}
_REGISTERED: dict[str, list[Callable[[], None]]] = {}


def read_source(path: str | Path) -> Source:
    """Return the file as text, or raise a UserError."""
    try:
        text = io.TextIOWrapper(io.BytesIO(read_file(path)), encoding="utf-8").read()  # universal newlines
        return Source(str(path), text)
    except (OSError, ValueError) as error:  # not UTF-8
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"cannot read the plug-in file '{path}': {reason}. Give a Python file.") from None


def load_source(source: Source) -> ModuleType:
    """Run a foreign file once; its classes register themselves."""
    name = source.module_name
    if name in _LOADED:
        for register in _REGISTERED.get(name, []):  # an edit that was undone gets its names back
            register()
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = source.path
    # The text may not be on this machine's disk: tracebacks and inspect read it from here.
    linecache.cache[source.path] = (len(source.text), None, source.text.splitlines(keepends=True), source.path)
    sys.modules[name], _LOADED[name] = module, source
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for results
            exec(compile(source.text, source.path, "exec"), module.__dict__)
    except BaseException as error:
        del sys.modules[name], _LOADED[name]
        if isinstance(error, Exception | SystemExit) and not isinstance(error, UserError):
            raise UserError(f"the plug-in file '{source.path}' does not load: {_cause(error, source.path)}") from None
        raise
    return module


def source_of(module_name: str) -> Source | None:
    """Return the foreign file a module was made from, if it was."""
    return _LOADED.get(module_name)


def on_reload(module_name: str, register: Callable[[], None]) -> None:
    """Remember what a foreign module registered."""
    if module_name in _LOADED:
        _REGISTERED.setdefault(module_name, []).append(register)


def loaded_sources() -> tuple[Source, ...]:
    return tuple(_LOADED.values())


def _cause(error: BaseException, path: str) -> str:
    """Return `line 3: NameError: name 'encoder' is not defined`."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: SyntaxError: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    where = f"line {lines[-1]}: " if lines else ""
    return f"{where}{type(error).__name__}: {error}"
