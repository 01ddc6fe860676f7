"""Declarations are read from source, without importing the modules they stand in, which takes seconds (torch).

    declared(studies, "icl")  ->  a class with the fields, defaults and class variables of the real one, and no methods

`--help`, `--choices` and the check of flags need no more. A name is looked up as Python would: in the statement of its
module that binds it, whose own names are looked up in turn. The core and the standard library are imported as they are,
and other modules of assay are read. Where a declaration needs any other library, the class itself is imported.
"""

import ast
import dataclasses
import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from assay.core.plugin import Entry, Registry, registered_names, registries

ROOT = Path(__file__).parent.parent
TEXTS = "__field_texts__"
"""Where a class that was read keeps the strings below its fields; an imported one has its source (inspect)."""


class Unreadable(Exception):
    """A declaration needs something that has to be imported."""


def declared(registry: Registry[Any], word: str) -> type[Any]:
    """Return the class behind a name or an alias as its source declares it; the class itself where it comes from a file
    of the user's, from another distribution, or cannot be read alone."""
    name = registry.resolve(word)
    with suppress(Unreadable):
        if name in registry.folder:
            return _registered(registry, name)
    return registry[name]


@cache
def _registered(registry: Registry[Any], name: str) -> type[Any]:
    source = _source(registry.folder[name].module)
    variable = registry.package.rpartition(".")[2]
    classes = {key: node for key, node in source.bound.items() if isinstance(node, ast.ClassDef)}
    (class_name,) = (key for key, node in classes.items() if name in registered_names(node, variable))
    cls = source.value(class_name)
    cls.name, cls.registry = name, _declarations(registry)
    return cls


class Declarations(Registry[Any]):
    """The choices of a registry, as their sources declare them."""

    def __init__(self, registry: Registry[Any]) -> None:
        super().__init__(registry.kind, registry.package)
        self._registry = registry

    def entries(self) -> tuple[Entry, ...]:
        return self._registry.entries()

    def __getitem__(self, word: str) -> type[Any]:
        return declared(self._registry, word)


_declarations = cache(Declarations)


class _Source:
    """A module that is read: what its top-level names are bound to."""

    def __init__(self, module: str) -> None:
        place = ROOT.joinpath(*module.split(".")[1:])
        self.module, self.path = module, place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        self.bound = {name: node for node in tree.body for name in _names_bound_by(node)}
        self._values: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        """`from assay.data import text` binds a module; `text.PYDOC` is looked up there."""
        if name.startswith("__") or name not in self.bound:
            raise AttributeError(name)
        return self.value(name)

    def value(self, name: str) -> Any:
        """Return what a top-level name is bound to."""
        if name not in self._values:
            node = self.bound[name]
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._values[name] = _imported(node, name)
            else:
                self._values[name] = self._executed(node, name)
        return self._values[name]

    def _executed(self, node: ast.stmt, name: str) -> Any:
        """Run one statement, without methods and annotations of functions, in a namespace of the names it uses."""
        pruned = _pruned(node)
        used = {each.id for each in ast.walk(pruned) if isinstance(each, ast.Name)} - {name}
        space: dict[str, Any] = {"__name__": self.module}
        for each in used & self.bound.keys():
            space[each] = _Absent()
            with suppress(Unreadable):
                space[each] = self.value(each)
        try:
            exec(compile(ast.Module([pruned], []), str(self.path), "exec"), space)
        except Unreadable:
            raise
        except Exception as error:  # whatever it is, importing the module is right, and only slower
            raise Unreadable(f"{self.module}.{name}: {error}") from error
        if isinstance(node, ast.ClassDef):
            fields = dataclasses.fields(space[name]) if dataclasses.is_dataclass(space[name]) else ()
            if any(isinstance(part, _Absent) for field in fields for part in (field.type, field.default)):
                raise Unreadable(f"{self.module}.{name} has a field of another library's type")
            setattr(space[name], TEXTS, texts_below(node))
        return space[name]


_source = cache(_Source)


class _Absent:
    """Stands for what cannot be read, such as a name of torch. A class variable may hold it; a class that derives from
    it, a field of its type and a value computed with it cannot be read either."""


def _names_bound_by(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.Import(names) | ast.ImportFrom(names=names):
            yield from (each.asname or each.name.partition(".")[0] for each in names)
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))
        case ast.AnnAssign(target=ast.Name(name), value=ast.expr()):
            yield name


def _imported(node: ast.Import | ast.ImportFrom, name: str) -> Any:
    """Return what an import binds: of assay's modules above the core what was read, of the core and of the standard
    library the thing itself."""
    (original,) = (each.name for each in node.names if (each.asname or each.name.partition(".")[0]) == name)
    module = original if isinstance(node, ast.Import) else node.module or ""
    top = module.partition(".")[0]
    if top != "assay" and top not in sys.stdlib_module_names:
        return _Absent()
    if isinstance(node, ast.Import):
        return importlib.import_module(top)
    if top != "assay" or module.startswith("assay.core"):
        return getattr(importlib.import_module(module), original)
    if (ROOT.joinpath(*module.split(".")[1:]) / f"{original}.py").exists():
        return _source(f"{module}.{original}")
    if registry := registries().get(original):
        return _declarations(registry)
    return _source(module).value(original)


def _pruned(node: ast.stmt) -> ast.stmt:
    """Drop the methods and foreign decorators of a class, and the annotations of a function."""
    match node:
        case ast.ClassDef():
            body = [each for each in node.body if not isinstance(each, ast.FunctionDef)] or [ast.Pass()]
            kept = [each for each in node.decorator_list if ast.unparse(each).startswith("dataclass")]
            shorter = dict(ast.iter_fields(node)) | {"body": body, "decorator_list": kept}
            return ast.fix_missing_locations(ast.copy_location(ast.ClassDef(**shorter), node))
        case ast.FunctionDef():
            bare = ast.parse(ast.unparse(node)).body[0]
            for each in ast.walk(bare):
                if isinstance(each, ast.arg):
                    each.annotation = None
                if isinstance(each, ast.FunctionDef):
                    each.returns = None
            return bare
    return node


def texts_below(node: ast.ClassDef) -> dict[str, str]:
    """Return the string below each field of a class, on one line."""
    return {
        statement.target.id: " ".join(below.value.value.split())
        for statement, below in pairwise(node.body)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }
