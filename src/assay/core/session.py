"""Classes of a notebook or a script have no file that travels: the text of the cell, or of the script, identifies them.

class Scale(nn.Module): ...            a plug-in's version is the hash of its own text, and of the classes and
class Mine(Mixer): ... Scale(...)      functions of the session that it uses, and that those use
"""

import ast
import hashlib
import linecache
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from assay.core.errors import UserError

SESSION = "__main__"


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
        text = "".join(linecache.getlines(function.__code__.co_filename))
        found = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == thing.__name__
        ]
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
