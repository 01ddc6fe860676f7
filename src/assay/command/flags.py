"""Words of a command line become values at dotted paths, in one pass.

    task:mqar --task.num-kv-pairs 4 --seeds 0..2 7 --model.no_tied
      ->  task: mqar    task.num_kv_pairs: 4    seeds: (0, 1, 2, 7)    model.tied: False

A flag, or a word `path:word`, names an option; the words behind it are its values while it takes any. `Line.values`
converts them with the core's converter, and `core.plan.assign` puts them into a study.
"""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, is_dataclass, replace
from math import inf
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_origin

from assay.core.convert import TRUTH, convert, nearest, option_types
from assay.core.errors import UserError
from assay.core.plugin import is_plugin_type

HELP = frozenset(("-h", "--help"))
CHOICE = re.compile(r"(?P<path>[a-z_.]+):(?P<word>.+)", re.DOTALL)
"""`model.seq_mixer:attention` is `--model.seq_mixer attention`."""


@dataclass(frozen=True)
class Option:
    """A field that a command can set: a study's, one of a part of it, or the command's own."""

    part: type[Any]
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
        """Whether it holds options of its own and is set through them alone."""
        return is_dataclass(self.hint) and not self.is_plugin

    @property
    def counts(self) -> tuple[float, float]:
        """The least and the most words it takes."""
        if self.hint in (None, bool):
            return 0, 1
        union = get_origin(self.hint) in (Union, UnionType)
        sizes = [
            get_args(hint) for hint in (get_args(self.hint) if union else [self.hint]) if get_origin(hint) is tuple
        ]
        if not sizes:
            return 1, 1
        return (int(union), inf) if sizes[0][-1] is Ellipsis else (len(sizes[0]), len(sizes[0]))

    def value(self, words: Sequence[str]) -> Any:
        """The words as the field's type; those for a plug-in's option are converted when that is set."""
        flag = f"--{self.path}"
        if len(words) < self.counts[0]:
            raise UserError(f"{flag} needs a value.")
        if self.hint in (None, bool):
            said = words[0] if words else "true"
            return said if self.hint is None else convert(bool, said, what=flag) is not self.negated
        # A list, so that the plus of `a+b`, a file's name, separates nothing.
        alone = len(words) == 1 and get_origin(self.hint) is not tuple
        return convert(self.hint, words[0] if alone else list(words), what=flag)


@dataclass(frozen=True)
class Said:
    """An option that a command line names, and the words behind it; without an option, a flag that is not known."""

    option: Option | None
    words: list[str] = field(default_factory=list)

    def needs(self) -> bool:
        return self.option is not None and len(self.words) < self.option.counts[0]

    def takes(self, word: str) -> bool:
        if self.option is None:  # behind a flag that is not known stand its values
            return True
        return len(self.words) < self.option.counts[1] and (self.option.hint is not bool or word.lower() in TRUTH)


@dataclass(frozen=True)
class Line:
    """A command line that was read: its options in order, the words that mean nothing, and whether it asks for help."""

    said: Sequence[Said]
    lost: Sequence[str]
    help: bool

    def paths(self, part: type[Any]) -> list[str]:
        """The options of a dataclass that are named."""
        return [said.option.path for said in self.said if said.option and said.option.part is part]

    def given(self, part: type[Any], path: str) -> list[list[str]]:
        """The words behind an option, for each time that it is named."""
        return [
            said.words for said in self.said if said.option and (said.option.part, said.option.path) == (part, path)
        ]

    def values(self, part: type[Any]) -> dict[str, Any]:
        """Dotted path -> value; a flag given twice has its last value."""
        named = [(said.option, said.words) for said in self.said if said.option and said.option.part is part]
        return {option.path: option.value(words) for option, words in named}


def options(cls: type[Any], prefix: str = "", part: type[Any] | None = None) -> Iterator[Option]:
    """Every option of a dataclass and of its parts in declaration order; a part comes before its options."""
    for name, hint in option_types(cls).items():
        option = Option(part or cls, f"{prefix}{name}", hint)
        yield option
        if option.is_part:
            yield from options(hint, f"{option.path}.", option.part)


def plugin_options(cls: type[Any]) -> list[Option]:
    """The options that hold a plug-in or several."""
    return [option for option in options(cls) if option.is_plugin]


def read(words: Sequence[str], *parts: type[Any]) -> Line:
    """Read a command line whose options are the fields of these dataclasses."""
    known = {option.path: option for part in reversed(parts) for option in options(part)}
    renamed = getattr(parts[0], "renamed", {})
    said, lost = list[Said](), list[str]()
    for word in words:
        if word in HELP:
            continue
        if said and said[-1].needs() and not word.startswith("--"):  # even `--model model:answer`, which is no choice
            said[-1].words.append(word)
        elif opened := _opened(word, known, renamed):
            said.append(opened)
            lost += [] if opened.option else [word.partition("=")[0]]
        elif said and said[-1].takes(word):
            said[-1].words.append(word)
        else:
            lost.append(word.partition(":")[0])
    return Line(said, lost, not HELP.isdisjoint(words))


def _opened(word: str, known: Mapping[str, Option], renamed: Mapping[str, str]) -> Said | None:
    """What a flag or a choice names, with the value in it; None for any other word."""
    if word.startswith("--"):
        flag, equals, value = word.removeprefix("--").partition("=")
        return Said(_found(flag.replace("-", "_"), known, renamed), [value] if equals else [])
    if (choice := CHOICE.fullmatch(word)) and (option := _found(choice["path"], known, renamed)):
        return Said(option, [choice["word"]])
    return None


def _found(path: str, known: Mapping[str, Option], renamed: Mapping[str, str]) -> Option | None:
    path = renamed.get(path, path)
    if path in known:
        return None if known[path].is_part else known[path]
    holder = next((o for o in known.values() if o.is_plugin and path.startswith(f"{o.path}.")), None)
    if holder:
        return Option(holder.part, path, None)
    before, dot, name = path.rpartition(".")
    switch = known.get(f"{before}{dot}{name.removeprefix('no_')}")
    return replace(switch, negated=True) if switch and switch.hint is bool else None


def flags_of(part: Any) -> list[str]:
    """The flags of a dataclass or an instance of one: `--seeds`, `--train.max_steps`, `--no_context_sweep`."""
    cls = part if isinstance(part, type) else type(part)
    return [flag_of(option, held_at(part, option.path)) for option in options(cls) if not option.is_part]


def flag_of(option: Option, held: Any) -> str:
    """The option's flag; a boolean's is the spelling that changes what it holds."""
    holder, dot, name = option.path.rpartition(".")
    return f"--{holder}{dot}{'no_' if held is True else ''}{name}"


def held_at(part: Any, path: str) -> Any:
    """What an instance holds at a dotted path; for a class the default, or MISSING where a value must be given."""
    name, _, rest = path.partition(".")
    if isinstance(part, type):
        declared = part.__dataclass_fields__[name]
        held = declared.default if declared.default_factory is MISSING else declared.default_factory()
    else:
        held = getattr(part, name)
    return held_at(held, rest) if rest and held is not MISSING else held


def refuse_unknown(prog: str, line: Line, flags: Sequence[str], words: Sequence[str]) -> None:
    """Raise a UserError for flags and words that mean nothing, with the known ones that they resemble."""
    said = [
        f"no flag '{word}'.{nearest(word, flags)}"
        if word.startswith("--")
        else f"'{word}' is not known, or belongs to no flag.{nearest(word, words)}"
        for word in line.lost
    ]
    if said:
        raise UserError(f"{' '.join(said)} `{prog} --help` lists all flags.")


class Parser(argparse.ArgumentParser):
    """The parser of a verb, which takes few flags and words without one: its errors are one line, as studies' are."""

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
