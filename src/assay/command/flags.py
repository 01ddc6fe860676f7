"""Words of a command line become values at dotted paths, in one pass.

    task:mqar --task.num-kv-pairs 4 --seeds 0..2 7 --model.no_tied
      ->  task: mqar    task.num_kv_pairs: 4    seeds: (0, 1, 2, 7)    model.tied: False

A flag, or a word `path:word`, names an option; the words behind it are its values while it takes any. `Line.values`
converts them with the core's converter, and `core.plan.assign` puts them into a study (study_command._configured).
`--grid` is read by `core.plan.parse_grid` (study_command._axes), which gives a study per combination of values.
"""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from math import inf
from operator import attrgetter
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_origin

from assay.core.convert import TRUTH, convert, nearest, option_types
from assay.core.errors import UserError
from assay.core.plugin import Plugin, is_plugin_type

HELP = frozenset(("-h", "--help"))
CHOICE = re.compile(r"(?P<path>[a-z][a-z0-9_.-]*):(?P<word>.+)", re.DOTALL)
"""`model.seq_mixer:attention` is `--model.seq_mixer attention`."""


@dataclass(frozen=True)
class Option:
    """An option is a field that a command can set: a study's, one of a part of it, or the command's own."""

    owner: type[Any] | None
    """The dataclass it belongs to; None for an unknown flag."""
    path: str
    hint: Any
    """The annotation; None for an option of a plug-in, which knows its type once it is chosen."""
    negated: bool = False
    """Whether the flag was `--no_x`."""

    @property
    def is_plugin(self) -> bool:
        return is_plugin_type(self.hint)

    @property
    def is_part(self) -> bool:
        """Whether it is a plain dataclass, which is set only through its own options."""
        return is_dataclass(self.hint) and not self.is_plugin

    @property
    def counts(self) -> tuple[float, float]:
        """The fewest and the most words it takes."""
        if self.hint in (None, bool):
            return 0, 1
        union = get_origin(self.hint) in (Union, UnionType)
        for hint in get_args(self.hint) if union else (self.hint,):
            if get_origin(hint) is tuple:
                return (int(union), inf) if get_args(hint)[-1] is Ellipsis else (len(get_args(hint)),) * 2
        return 1, 1

    def takes(self, word: str, words: Sequence[str]) -> bool:
        """Returns whether it takes one more word that is neither a flag nor a choice."""
        return len(words) < self.counts[1] and (self.hint is not bool or word.lower() in TRUTH)

    def value(self, words: Sequence[str]) -> Any:
        """Converts the words to the field's type; `assign` converts those for a plug-in's option."""
        flag = f"--{self.path}"
        if len(words) < self.counts[0]:
            raise UserError(f"{flag} needs a value.")
        if self.hint is None:
            return words[0] if words else "true"
        if self.hint is bool:
            return convert(bool, words[0] if words else "true", what=flag) is not self.negated
        # A field of several gets a list, so that the plus of a file name `a+b` separates nothing.
        alone = len(words) == 1 and get_origin(self.hint) is not tuple
        return convert(self.hint, words[0] if alone else list(words), what=flag)


@dataclass(frozen=True)
class Line:
    """A line holds a parsed command line: the options in order with their words, and the unknown words."""

    options: Sequence[tuple[Option, list[str]]]
    unknown: Sequence[str]
    help: bool

    def of(self, owner: type[Any]) -> list[tuple[Option, list[str]]]:
        """Returns the options of one dataclass, with their words."""
        return [(option, words) for option, words in self.options if option.owner is owner]

    def given(self, owner: type[Any], path: str) -> list[list[str]]:
        """Returns the words behind an option, for each time that it is named."""
        return [words for option, words in self.of(owner) if option.path == path]

    def values(self, owner: type[Any]) -> dict[str, Any]:
        """Converts the options of one dataclass: dotted path -> value. A flag given twice has its last value."""
        return {option.path: option.value(words) for option, words in self.of(owner)}


def read(words: Sequence[str], *parts: type[Any]) -> Line:
    """Reads a command line whose options are the fields of these dataclasses."""
    known = {option.path: option for part in reversed(parts) for option in options(part)}
    renamed = getattr(parts[0], "renamed", {})
    found, unknown = list[tuple[Option, list[str]]](), list[str]()
    for word in words:
        option, values = found[-1] if found else (None, [])
        if word in HELP:
            continue
        if option and len(values) < option.counts[0] and not word.startswith("--"):  # even `--model model:answer`
            values.append(word)
        elif opened := _opened(word, known, renamed):
            found.append(opened)
            unknown += [] if opened[0].owner else [word.partition("=")[0]]
        elif option and option.takes(word, values):
            values.append(word)
        else:
            unknown.append(word.partition(":")[0])
    return Line(found, unknown, not HELP.isdisjoint(words))


def _opened(word: str, known: Mapping[str, Option], renamed: Mapping[str, str]) -> tuple[Option, list[str]] | None:
    """Returns the option that a flag or a choice names and the value inside the word; None for any other word."""
    if word.startswith("--"):
        flag, equals, value = word.partition("=")
        option = _found(flag.removeprefix("--").replace("-", "_"), known, renamed)
        return option or Option(None, flag, tuple[str, ...]), [value] if equals else []
    if (choice := CHOICE.fullmatch(word)) and (option := _found(choice["path"], known, renamed)):
        return option, [choice["word"]]
    return None


def _found(path: str, known: Mapping[str, Option], renamed: Mapping[str, str]) -> Option | None:
    path = renamed.get(path, path)
    if path in known:
        return None if known[path].is_part else known[path]
    for option in known.values():
        if option.is_plugin and path.startswith(f"{option.path}."):
            return Option(option.owner, path, None)
    holder, dot, name = path.rpartition(".")
    switch = known.get(f"{holder}{dot}{name.removeprefix('no_')}")
    return replace(switch, negated=True) if switch and switch.hint is bool else None


def options(cls: type[Any], prefix: str = "", owner: type[Any] | None = None) -> Iterator[Option]:
    """Yields every option of a dataclass and of its parts in declaration order; a part comes before its options."""
    for name, hint in option_types(cls).items():
        option = Option(owner or cls, f"{prefix}{name}", hint)
        yield option
        if option.is_part:
            yield from options(hint, f"{option.path}.", option.owner)


def plugin_options(cls: type[Any]) -> list[Option]:
    """Returns the options that hold a plug-in or several."""
    return [option for option in options(cls) if option.is_plugin]


def members(held: Any) -> tuple[Any, ...]:
    """Returns the plug-ins of an option that holds one or several."""
    return held if isinstance(held, tuple) else (held,)


def flag_of(option: Option, held: Any) -> str:
    """Returns the option's flag; for a boolean the spelling that changes its value, such as `--no_context_sweep`. Both
    spellings are read: a study's has underscores, as specs write it, and one of every study hyphens, as in the docs."""
    holder, dot, name = option.path.rpartition(".")
    flag = f"--{holder}{dot}{'no_' if held is True else ''}{name}"
    return flag if option.owner and issubclass(option.owner, Plugin) else flag.replace("_", "-")


def _choice(word: str, parts: Sequence[Any]) -> str:
    """Says how a plug-in is chosen, where a word names one: `delta_net` is `model.seq_mixer:delta_net`."""
    for option in (each for part in parts for each in plugin_options(type(part))):
        registry = getattr(option.hint, "registry", None)
        if registry and word.partition(":")[0] in registry.names():
            return f"'{word}' is a {registry.kind}: write {option.path}:{word}."
    return ""


def refuse_unknown(
    prog: str, line: Line, parts: Sequence[Any], flags: Sequence[str] = (), words: Sequence[str] = ()
) -> None:
    """Raises a UserError for unknown flags and words, and suggests similar ones. `parts` are instances with the
    defaults; `flags` and `words` are those the command takes besides their fields."""
    own = [flag_of(o, attrgetter(o.path)(part)) for part in parts for o in options(type(part)) if not o.is_part]
    said = [
        f"no flag '{word}'.{nearest(word, [*own, *flags])}"
        if word.startswith("--")
        else _choice(word, parts) or f"'{word}' is not known, or belongs to no flag.{nearest(word, words)}"
        for word in line.unknown
    ]
    if said:
        raise UserError(f"{' '.join(said)} `{prog} --help` lists all flags.")


OUT = "the results folder; results by default"
DEVICE = "auto (the default: a GPU where there is one), cpu, cuda or cuda:N; mps where torch offers it"
BACKEND = "what computes recurrent mixers: torch (the default), or on CUDA triton (our kernels) or fla (its own)"
EXECUTOR = "where runs are computed: serial (in this process), local (the default: worker processes) or ray (a cluster)"
WORKERS = "worker processes, or tasks in flight; 0, the default: one per core or GPU"
RAY_ADDRESS = "the Ray cluster, such as auto; without it --executor ray starts one here"
"""What flags that several verbs have say in their help."""


class Parser(argparse.ArgumentParser):
    """Verbs have few flags and take words without one, so argparse reads them; errors are one line, as studies' are.
    A flag is spelled out: `--seed` is not `--seeds`."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **given})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        read, lost = super().parse_known_args(args, namespace)
        if not lost:
            return read, lost
        flags = [word.partition("=")[0] for word in lost if word.startswith("-")]
        known = [flag for action in self._actions for flag in action.option_strings]
        raise self._refusal(f"no flag '{flags[0]}'.{nearest(flags[0], known)}" if flags else f"'{lost[0]}': not known.")

    def error(self, message: str) -> NoReturn:
        raise self._refusal(f"{message}.")

    def _refusal(self, said: str) -> UserError:
        return UserError(f"{said} `{self.prog} --help` says what there is.")
