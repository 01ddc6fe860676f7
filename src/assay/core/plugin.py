"""Plug-ins are frozen dataclasses; the files of a folder are the choices.

A plug-in's fields are its options and its methods its behaviour, so one object is hashable, printable, JSON, a word
on the command line and a label in a table:

    encoders.parse("self_attn:heads=4")  ->  SelfAttn(heads=4)  ->  {"name": "self_attn", "heads": 4, "width": 72}

Listing a folder imports nothing: names, aliases and summaries are read from the source with `ast`.
"""

import ast
import dataclasses
import importlib
import importlib.metadata
import re
import sys
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePath
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

from assay.core import words
from assay.core.convert import construct, nearest, stated
from assay.core.errors import UserError
from assay.core.foreign import SESSION, Source, loaded_sources, on_reload, read_source, session_version, source_of
from assay.core.run import finite

ENTRY_POINTS = "assay.plugins"
REGISTERED = re.compile(r"^@\w+\.register\([^\n]*\n(?:@[^\n]*\n)*class [^\n]*\n(?:(?:[ \t][^\n]*)?\n)*", re.MULTILINE)
"""A class under a decorator that registers it, to its last line."""
METHODS = re.compile(r"^    (?:@|def |async def )(?s:.*)", re.MULTILINE)
"""A class's first method, and what follows it."""


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """Base of everything a researcher can add."""

    name: ClassVar[str] = ""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Spellings that a spec gave it; the first of them is its label."""
    other_names: ClassVar[tuple[str, ...]] = ()
    """What others call it. A command understands them; labels and records keep the name."""
    version: ClassVar[int] = 1
    """Part of every run id: raise it when the numbers this plug-in gives change."""
    registry: ClassVar["Registry[Any]"]

    def spec(self) -> dict[str, Any]:
        """Return the JSON form: the name and every option, defaults written out (but for those of `added` options)."""
        return {"name": self.name} | {key: to_json(value) for key, value in stated(self)}

    @property
    def label(self) -> str:
        """The shortest word that parses back to this plug-in, under the name a spec gave it where there is one."""
        values = {f: getattr(self, f.name) for f in dataclasses.fields(self)}
        changed = [f":{f.name}={words.written(value)}" for f, value in values.items() if not _same(value, f.default)]
        return (self.aliases or (self.name,))[0] + "".join(changed)

    def __str__(self) -> str:
        return self.label

    @classmethod
    def component_version(cls) -> str:
        """Return what identifies the code behind the name: the hand-kept version, or the hash of a foreign file."""
        return str(cls.version) if cls.__module__.startswith("assay.") else _foreign_version(cls)  # type: ignore[arg-type]

    @cached_property
    def _settled(self) -> tuple[dict[str, Any], dict[str, str]]:
        versions = {f"{self.registry.kind}/{self.name}": self.component_version()}
        return settled({"name": self.name} | dict(stated(self)), versions), versions


class Sized(Plugin):
    """A plug-in whose integer options are sizes: at least 1, or 0 where 0 is the default, or `may_be_none` names the
    option, and 0 means "none"."""

    may_be_none: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):
            value, default = getattr(self, option.name), option.default
            least = 0 if option.name in self.may_be_none else 1
            if type(value) is int and type(default) is int and value < min(least, default):
                raise UserError(
                    f"{self.registry.kind} '{self.name}': {option.name}={value} is too small; the default is {default}."
                )


P = TypeVar("P", bound=Plugin)


def to_json(value: Any) -> Any:
    """Return plug-ins, dataclasses, tuples and paths as plain JSON values."""
    if isinstance(value, Plugin):
        return value.spec()
    if dataclasses.is_dataclass(value):
        value = dict(stated(value))
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return str(value) if isinstance(value, PurePath) else value


def settled(value: Any, versions: dict[str, str]) -> Any:
    """Return an option as JSON for a run's id, and add the versions of all plug-ins inside to those given. A number
    that is not finite is a ValueError. The JSON of plug-ins is shared between runs: do not change it."""
    if value is None or type(value) in (str, bool, int):  # first, since most values are these
        return value
    if isinstance(value, Plugin):
        plain, found = value._settled
        versions |= found
        return plain
    if dataclasses.is_dataclass(value):
        value = dict(stated(value))
    if isinstance(value, Mapping):
        return {key: settled(item, versions) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [settled(item, versions) for item in value]
    plain, whole = finite(to_json(value))
    if not whole:
        raise ValueError("not a finite number")
    return plain


def plugins_in(value: Any) -> Iterator[Plugin]:
    """Yield every plug-in inside a value, the value itself included."""
    if isinstance(value, Plugin):
        yield value
    if dataclasses.is_dataclass(value):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        value = list(value.values())
    for item in value if isinstance(value, list | tuple) else ():
        yield from plugins_in(item)


@dataclass(frozen=True)
class Entry:
    """One choice of a registry, read from its source without importing it."""

    name: str
    aliases: tuple[str, ...]
    summary: str
    module: str


class Registry(Generic[P]):
    """The choices of one kind: the files of a package, installed entry points, and files given with `--plugin`.

    The variable that holds it is named like the folder. Without a package it has only what files register.
    """

    def __init__(self, kind: str, package: str, *, wraps: str = "") -> None:
        """`wraps` is a module that makes plug-ins of other classes: `layers_of` finds them in a file."""
        self.kind, self.package, self.wraps = kind, package, wraps
        self._classes: dict[str, type[P]] = {}

    def register(self, name: str) -> Callable[[type[P]], type[P]]:
        """Return a class decorator; the name is the file's stem."""

        if not words.is_name(name):
            rule = 'a name is printable, begins with no dot, and has no spaces and none of : , = + ( ) " / \\'
            raise UserError(f"{self.kind} {name!r}: {rule}.")

        def add(cls: type[P]) -> type[P]:
            if not issubclass(cls, Plugin):
                way = "Mixer or leave the decorator away" if self.wraps else f"a class of {self.package}.base"
                raise UserError(f"{self.kind} '{name}': derive from {way}.")
            other = self._classes.get(name)
            if other and not _same_origin(other, cls):
                raise UserError(
                    f"{self.kind} '{name}' is defined twice: in {other.__module__} and in {cls.__module__}. Rename one."
                )
            ours = {alias for entry in self.folder.values() for alias in (entry.name, *entry.aliases)}
            if not cls.__module__.startswith(self.package) and ours.intersection((name, *_spellings(cls))):
                raise UserError(f"{self.kind} '{name}' comes with assay: give yours another name.")
            cls.name, cls.registry = name, self
            self._classes[name] = cls
            on_reload(cls.__module__, lambda: self._classes.__setitem__(name, cls))
            return cls

        return add

    def wrap(self, word: str) -> bool:
        """Make a plug-in of the class of that name in a file that was loaded, if there is one."""
        if not self.wraps or not loaded_sources():
            return False
        maker = importlib.import_module(self.wraps)
        # By path: of a file that was edited the last counts.
        found = {each.path: maker.layers_of(sys.modules[each.module_name]) for each in loaded_sources()}
        files = [path for path, layers in found.items() if word in layers]
        if len(files) > 1:
            raise UserError(f"{self.kind} '{word}' is in {' and in '.join(files)}. Rename one.")
        for path in files:
            self.register(word)(maker.wrapped(found[path][word]))
        return bool(files)

    @cached_property
    def folder(self) -> dict[str, Entry]:
        """The choices that come with assay."""
        if not self.package:
            return {}
        root = Path(next(iter(importlib.import_module(self.package).__path__)))
        return {entry.name: entry for path in sorted(root.rglob("*.py")) for entry in _scan(path, root, self.package)}

    @cached_property
    def installed(self) -> dict[str, importlib.metadata.EntryPoint]:
        """The choices of other distributions: entry points `assay.plugins` named `<folder>/<name>`."""
        prefix = self.package.rpartition(".")[2] + "/"
        points = _points(importlib.metadata.entry_points)
        return {point.name.removeprefix(prefix): point for point in points if point.name.startswith(prefix)}

    def entries(self) -> tuple[Entry, ...]:
        classes = self._classes.items()
        loaded = {name: Entry(name, _spellings(cls), _first_line(cls.__doc__), cls.__module__) for name, cls in classes}
        outside = {name: Entry(name, (), f"from {point.value}", point.value) for name, point in self.installed.items()}
        every = outside | loaded | self.folder
        return tuple(every[name] for name in sorted(every))

    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries())

    def brought(self, sources: Container[Source]) -> tuple[str, ...]:
        """Return the choices that these files registered."""
        return tuple(name for name, cls in self._classes.items() if source_of(cls.__module__) in sources)

    def __getitem__(self, word: str) -> type[P]:
        """Return the class behind a name or an alias."""
        if word in self._classes:
            return self._classes[word]
        name = self.resolve(word)
        if name not in self._classes and name in self.folder:
            importlib.import_module(self.folder[name].module)
        if name not in self._classes and name in self.installed:
            self.installed[name].load()
        if name not in self._classes:
            raise UserError(f"{self.kind} '{name}': loading it registered no class of that name.")
        return self._classes[name]

    def parse(self, text: str) -> P:
        """Parse `self_attn:heads=4:width=64` to SelfAttn(heads=4, width=64)."""
        name, *options = words.split(words.unwrapped(text), ":")
        pairs = [option.partition("=") for option in options]
        for key, equals, _ in pairs:
            if not equals:
                raise UserError(f"'{text}': '{key}' has no value. Write {name}:option=value")
        given = {key: words.Word(value) for key, _, value in pairs}
        return construct(cls := self[name], given, what=f"{self.kind} '{cls.name}'")

    def load(self, spec: Mapping[str, Any]) -> P:
        """Return the plug-in of a JSON spec; a value that is no text may be given as one: {"sizes": "0..4"}."""
        if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
            raise UserError(f"{self.kind}: expected a name with options, got {spec!r}.")
        cls = self[spec["name"]]
        given = {key: value for key, value in spec.items() if key != "name"}
        return construct(cls, given, what=f"{self.kind} '{cls.name}'", exact=True)

    def label_of(self, spec: Mapping[str, Any]) -> str:
        """Return the label of a record's plug-in, which may be one whose file this command was not given."""
        with suppress(UserError):
            if (made := self.load(spec)).name == spec["name"]:  # records have no other names: that is somebody else's
                return made.label
        options = (f"{key}={words.written(value)}" for key, value in spec.items() if key != "name")
        return ":".join([spec["name"], *options])

    def resolve(self, word: str) -> str:
        """Return the name that a name or an alias stands for, written in any case and punctuation that no other has."""
        spellings = {alias: entry.name for entry in self.entries() for alias in (entry.name, *entry.aliases)}
        if word not in spellings and self.wrap(word):
            return word
        alike = {name for alias, name in spellings.items() if words.folded(alias) == words.folded(word)}
        if word not in spellings and len(alike) != 1:
            known = [" = ".join((entry.name, *entry.aliases)) for entry in self.entries()]
            raise UserError(
                f"no {self.kind} named '{word}'.{nearest(word, spellings)} Known: {', '.join(known)}. "
                f"To add one, write a file with a class under @{self.package.rpartition('.')[2]}.register('{word}') "
                "and give it with --plugin FILE."
            )
        return spellings.get(word) or alike.pop()


def is_plugin_type(hint: Any) -> bool:
    """Return whether a field with this annotation holds a plug-in, or a tuple of them."""
    inner = get_args(hint)[0] if get_origin(hint) is tuple else hint
    return isinstance(inner, type) and issubclass(inner, Plugin)


@cache
def registries() -> dict[str, Registry[Any]]:
    """Return every plug-in folder by its name: the packages whose `__init__` makes a Registry."""
    root = Path(__file__).parent.parent
    found: dict[str, Registry[Any]] = {}
    for init in sorted(root.rglob("__init__.py")):
        if "Registry(" in init.read_text(encoding="utf-8"):
            module = ".".join(("assay", *init.parent.relative_to(root).parts))
            found[init.parent.name] = getattr(importlib.import_module(module), init.parent.name)
    return found


@cache
def _points(find: Callable[..., Any]) -> tuple[importlib.metadata.EntryPoint, ...]:
    """Return the entry points of all folders, read once: every installed distribution has a file to look into."""
    return tuple(find(group=ENTRY_POINTS))


@cache
def _foreign_version(cls: type[Plugin]) -> str:
    """Return the hash of the file that a class was loaded from, read once."""
    source = source_of(cls.__module__)
    file = getattr(sys.modules[cls.__module__], "__file__", None)
    if source is None and (file is None or cls.__module__ == SESSION):
        return session_version(cls)
    return (source or read_source(str(file))).sha256


def classes_in_session() -> set[str]:
    """Return the plug-ins that a notebook or a script defines itself, under the names of `Run.versions`."""
    found = set[str]()
    for folder, registry in registries().items():
        here = [name for name, cls in registry._classes.items() if cls.__module__ == SESSION]
        found |= {name if folder == "studies" else f"{registry.kind}/{name}" for name in here}
    return found


def _same_origin(old: type, new: type) -> bool:
    """Return whether both come from one file: a file loaded again, perhaps edited, may replace what it registered."""
    before, now = source_of(old.__module__), source_of(new.__module__)
    return bool(before and now and before.path == now.path) or old.__module__ == new.__module__


@cache
def _scan(path: Path, root: Path, package: str) -> tuple[Entry, ...]:
    """Return the classes of one file that are under `@<registry>.register("name")`."""
    text = path.read_text(encoding="utf-8")
    if ".register(" not in text:
        return ()
    variable = package.rpartition(".")[2]
    module = ".".join((package, *path.relative_to(root).with_suffix("").parts))
    # `assay list` reads every file, and most of its time went to parsing what it does not show.
    heads = [METHODS.sub("    ...\n", found) for found in REGISTERED.findall(text)]
    tree = ast.parse("".join(heads) if len(heads) == text.count(f"\n@{variable}.register(") else text)
    return tuple(
        Entry(name, _literal_aliases(node), _first_line(ast.get_docstring(node) or _docstring_of(text)), module)
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for name in registered_names(node, variable)
    )


def _docstring_of(text: str) -> str | None:
    return ast.get_docstring(ast.parse(text))


def registered_names(node: ast.ClassDef, variable: str) -> Iterator[str]:
    """Yield the names under which decorators of a class register it with the registry of that variable."""
    for decorator in node.decorator_list:
        match decorator:
            case ast.Call(func=ast.Attribute(ast.Name(owner), "register"), args=[ast.Constant(name)]):
                if owner == variable:
                    yield str(name)


def _literal_aliases(node: ast.ClassDef) -> tuple[str, ...]:
    """Return what `_spellings` gives of the class."""
    found = dict[str, tuple[str, ...]]()
    for statement in node.body:
        match statement:
            case ast.Assign([ast.Name("aliases" | "other_names" as which)], value):
                found[which] = tuple(ast.literal_eval(value))
            case ast.AnnAssign(ast.Name("aliases" | "other_names" as which), _, ast.expr() as value):
                found[which] = tuple(ast.literal_eval(value))
    return (*found.get("aliases", ()), *found.get("other_names", ()))


def _spellings(cls: type[Plugin]) -> tuple[str, ...]:
    """Return the aliases and other names of a class. What others call a class is no name of one derived from it."""
    return (*cls.aliases, *vars(cls).get("other_names", ()))


def _same(value: Any, default: Any) -> bool:
    """Return whether an option is at its default. -0.0 is not, if that is 0.0: equal in Python, they differ in JSON."""
    signs = {words.written(either).count("-") for either in (value, default)}
    return value is default or (bool(value == default) and len(signs) == 1)


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().partition("\n")[0]
