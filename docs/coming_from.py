"""Write the tables of coming-from.md: every command and name of the specs, what it is here, and what differs.

    python docs/coming_from.py           (`make docs` runs it too)

The data is names.toml; what differs is found by comparing its signatures with those of the code.
"""

import ast
import importlib
import inspect
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
PAGE = HERE / "coming-from.md"
BEGIN, END = "<!-- made by docs/coming_from.py from here on -->", "<!-- to here -->"
NONE = object()


class Signature(NamedTuple):
    """A signature's name, its parameters with their defaults as text (NONE without), and those by name alone."""

    name: str
    ordered: Mapping[str, Any]
    named: Mapping[str, Any]


def specs() -> dict[str, Any]:
    return tomllib.loads((HERE / "names.toml").read_text(encoding="utf-8"))


def entries(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each signature of a spec, and what to know about it."""
    for entry in spec.get("names", ()):
        yield (entry, "") if isinstance(entry, str) else (entry[0], entry[1])


def there(text: str) -> Signature:
    """Read a signature as it is written: `name(a, b=1, *, c)`."""
    name, _, inner = text.partition("(")
    function = ast.parse(f"def f({inner}: pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    defaults = [NONE] * (len(given.args) - len(given.defaults)) + [ast.unparse(value) for value in given.defaults]
    ordered = {arg.arg: default for arg, default in zip(given.args, defaults, strict=True)}
    pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    return Signature(name, ordered, {arg.arg: NONE if value is None else ast.unparse(value) for arg, value in pairs})


def found(module: str, name: str) -> Any:
    """Import what a spec names, a method as Class.method."""
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def here(module: str, name: str) -> Signature:
    """The signature in the code, without `self`."""
    parameters = list(inspect.signature(found(module, name)).parameters.values())
    parameters = parameters[1:] if parameters and parameters[0].name == "self" else parameters
    text = {p.name: NONE if p.default is p.empty else repr(p.default) for p in parameters}
    ordered = {p.name: text[p.name] for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
    return Signature(name, ordered, {p.name: text[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY})


def faults(theirs: Signature, ours: Signature) -> list[str]:
    """What makes a call that is right there wrong here."""
    said = [f"no `{name}`" for name in (*theirs.ordered, *theirs.named) if name not in {**ours.ordered, **ours.named}]
    said += [
        f"`{name}` is not argument {place}"
        for place, name in enumerate(theirs.ordered, start=1)
        if name in ours.ordered and list(ours.ordered)[place - 1 : place] != [name]
    ]
    optional = {**theirs.ordered, **theirs.named}
    return said + [
        f"`{name}` must be given"
        for name, default in {**ours.ordered, **ours.named}.items()
        if default is NONE and optional.get(name) is not NONE
    ]


def differences(theirs: Signature, ours: Signature) -> list[str]:
    """What is not the same, though every call from there is right here."""
    known, own = {**theirs.ordered, **theirs.named}, {**ours.ordered, **ours.named}
    said = faults(theirs, ours)
    for name, default in own.items():
        if name in known and default != known[name] and default is not NONE and len(str(default)) < 20:
            before = "" if known[name] is NONE else f", there `{known[name]}`"
            said.append(f"`{name}={default}`{before}")
    more = [f"`{name}`" for name in own if name not in known and name not in ("args", "kwargs")]
    return said + ([f"also {', '.join(more)}"] if more else [])


def tables() -> str:
    lines = [BEGIN]
    for spec in specs().values():
        lines += ["", f"## {spec['title']}"]
        if spec.get("commands"):
            lines += ["", "| there | here |", "|---|---|"]
            lines += [f"| `{command[0]}` | `{command[1]}` |" for command in spec["commands"]]
        if spec.get("names"):
            lines += [
                "",
                f"From `{spec['module']}`{originally(spec)}:",
                "",
                "| there, and here unless said | what differs |",
                "|---|---|",
            ]
        for text, note in entries(spec):
            theirs = there(text)
            said = "; ".join([*differences(theirs, here(spec["module"], theirs.name)), *([note] if note else [])])
            lines.append(f"| `{text}` | {said or 'nothing'} |")
        lines += [f"| `{name}` | not a name here: {said} |" for name, said in spec.get("absent", ())]
    return "\n".join([*lines, "", END])


def originally(spec: Mapping[str, Any]) -> str:
    """Where a script imports the names as the original has them."""
    return f", or from `{spec['there']}` below the line `import assay.originals`" if "there" in spec else ""


def page() -> str:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    return before.rstrip() + "\n\n" + tables() + rest.partition(END)[2].rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
