"""Plug-ins from outside the tree come in files (`--plugin FILE`), or are classes of a notebook or a script.

A file is known by its text: the sha256 of the text is the version of every plug-in in it, and jobs carry the text, so
that a worker on another machine runs the same code. Classes of a session have no file that travels: the text of the
cell, or of the script, identifies them.

class Scale(nn.Module): ...            a plug-in's version is the hash of its own text, and of the classes and
class Mine(Mixer): ... Scale(...)      functions of the session that it uses, and that those use
"""

import ast
import contextlib
import hashlib
import io
import linecache
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from assay.core.errors import UserError
from assay.core.files import read_file

SESSION = "__main__"


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
    if Path(path).suffix != ".py":
        raise UserError(f"cannot read the plug-in file '{path}': its name does not end in .py. Give a Python file.")
    try:
        text = io.TextIOWrapper(io.BytesIO(read_file(path)), encoding="utf-8").read()  # universal newlines
        return Source(str(path), text)
    except FileNotFoundError as error:
        from assay.core.convert import nearest  # which imports this module

        close = nearest(Path(path).name, [each.name for each in Path(path).parent.glob("*.py")])
        raise UserError(f"cannot read the plug-in file '{path}': {error.strerror}.{close}") from None
    except (OSError, ValueError) as error:  # not UTF-8
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"cannot read the plug-in file '{path}': {reason}. Give a Python file.") from None


def load_source(source: Source) -> ModuleType:
    """Run a foreign file once; its classes register themselves."""
    if any(project in source.text for project in ("measure", "modular_addition")):
        import assay.originals  # noqa: F401 - as a spec writes it

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
    """Return `line 3: NameError: name 'encoder' is not defined`; of a syntax error also the line."""
    if isinstance(error, SyntaxError):
        text = (error.text or "").strip()
        return f"line {error.lineno}: SyntaxError: {error.msg}{f', in `{text}`' if text else ''}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    where = f"line {lines[-1]}: " if lines else ""
    return f"{where}{type(error).__name__}: {error}"


def session_version(cls: type[Any]) -> str:
    """Return the hash of a class's text and of what it uses of the session, or raise where there is no text."""
    texts: dict[str, str] = {}
    _collect(cls, texts)
    return hashlib.sha256("\n".join(texts[name] for name in sorted(texts)).encode()).hexdigest()


def _collect(thing: Any, texts: dict[str, str]) -> None:
    node, space = _definition(thing)
    texts[thing.__name__] = ast.unparse(node)
    for name in {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} - texts.keys():
        used = space.get(name)
        if isinstance(used, type | FunctionType) and used.__module__ == SESSION:
            _collect(used, texts)
        elif isinstance(used, int | float | str | tuple):
            texts[name] = f"{name} = {used!r}"


def _definition(thing: Any) -> tuple[ast.AST, dict[str, Any]]:
    """Return the statement that defines a class or a function, and the names around it. Python finds the text of a
    function, also of a notebook's; of a class without a file only that of its methods."""
    for function in _functions(thing):
        nodes = ast.walk(ast.parse("".join(linecache.getlines(function.__code__.co_filename))))
        named = (node for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef))
        found = [node for node in named if node.name == thing.__name__]
        if found:
            return found[-1], function.__globals__
    raise UserError(
        f"'{thing.__name__}' is defined where its source cannot be read, so that its results could not be told from "
        "those of another version. Write it to a file of its own and give that with plugins=[FILE] (--plugin FILE)."
    )


def _functions(thing: Any) -> Iterator[FunctionType]:
    if isinstance(thing, FunctionType):
        yield thing
        return
    for member in vars(thing).values():
        inner = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if isinstance(inner, FunctionType) and inner.__module__ == SESSION:
            yield inner
