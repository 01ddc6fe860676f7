"""Writes options as words: a plug-in by its name and what is not at its default, a setup by what all rows share."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from assay.core.grouping import grouped
from assay.core.plugin import registries, to_json
from assay.core.run import canonical


def labels(values: Sequence[Any], *, short: bool = False) -> list[Any]:
    """Option values as a table shows them; a plug-in spec as its name, the options that are not at their default, and
    those that tell it apart from others of its name. `short` names the latter alone: where the setup says the rest.

    {"name": "gru", "width": 8}, {"name": "gru", "width": 16}, {"name": "mlp", "width": 8}        (the default is 8)
        ->  gru:width=8, gru:width=16, mlp
    """
    shown = [",".join(str(item) for item in labels(v)) if isinstance(v, list | tuple) else v for v in values]
    plugins = [place for place, value in enumerate(values) if is_spec(value)]
    for name, places in grouped(plugins, lambda place: values[place]["name"]).items():
        specs = [values[place] for place in places]
        told, defaults = _told_apart(specs), {} if short else defaults_of(specs[0])
        for number, place in enumerate(places):
            own = specs[number]
            changed = {key for key in own.keys() & defaults.keys() if own[key] != defaults[key]}
            words = {key: word(own[key]) for key in changed} | {key: told[key][number] for key in told}
            shown[place] = ":".join([name, *(f"{key}={words[key]}" for key in own if key in words)])
    return shown


def tails(paths: Iterable[str]) -> list[str]:
    """The last word of each dotted path, or the whole paths where two end alike."""
    paths = list(paths)
    last = [path.rpartition(".")[2] for path in paths]
    return [tail if last.count(tail) == 1 else path for tail, path in zip(last, paths, strict=True)]


def word(value: Any) -> str:
    """An option's value as the command line takes it."""
    return f"{value:g}" if isinstance(value, float) else _wrapped(labels([value])[0], value)


def _wrapped(label: Any, value: Any) -> str:
    """A label inside another: a plug-in with options of its own stands in parentheses, as on the command line."""
    return f"({label})" if is_spec(value) and ":" in str(label) else str(label)


def _told_apart(specs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The options in which specs of one name differ -> their values as words, one for each spec."""
    keys = dict.fromkeys(key for spec in specs for key in spec if key != "name")
    values = {key: [spec.get(key) for spec in specs] for key in keys}
    return {key: list(map(_wrapped, labels(own), own)) for key, own in values.items() if differ(own)}


def defaults_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of a plug-in's options as JSON. Folders may share a name: the one that knows most of the options
    counts. Empty for a plug-in whose file this command was not given."""
    name, found = spec["name"], list[dict[str, Any]]()
    for registry in registries().values():
        if name in registry.names():
            known = fields(registry[name])
            made = {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in known}
            found.append({key: to_json(value) for key, value in made.items() if value is not MISSING})
    return max(found, key=lambda defaults: len(defaults.keys() & spec.keys()), default={})


def leaves(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield options under dotted paths; a plug-in spec is one value."""
    for key, value in options.items():
        if isinstance(value, Mapping) and not is_spec(value):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def is_spec(value: Any) -> bool:
    """Return whether an option is a plug-in: {"name": ..., its options}."""
    return isinstance(value, Mapping) and isinstance(value.get("name"), str)


def differ(values: Sequence[Any]) -> bool:
    """Return whether values are not all the same JSON."""
    return len({canonical(value) for value in values}) > 1
