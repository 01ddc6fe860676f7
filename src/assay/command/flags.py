"""Flags into dataclasses: tyro reads them, and what it would refuse is refused before, in the words of the house.

Verbs, which take few flags and words without one, have argparse, held to the same: `Parser`.
"""

import argparse
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import MISSING, fields, make_dataclass
from typing import Annotated, Any, NoReturn, get_args, get_origin

from assay.command.choices import flags_of, not_known, switch_at, type_at, words_by_flag
from assay.core.convert import TRUTH, convert, integers, nearest
from assay.core.errors import UserError
from assay.core.plugin import Plugin, Registry

HELP = frozenset(("-h", "--help"))


class Parser(argparse.ArgumentParser):
    """Of a verb: refuses what it cannot read in one line, as studies do."""

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


def parsed(prog: str, description: str, flags: Sequence[str], **parts: Any) -> Any:
    """Flags into dataclasses: a part is an instance, which holds the defaults, or a class with fields to be given."""
    import tyro

    _refuse_misread(prog, flags, parts.values())
    shape: list[Any] = []
    for key, part in parts.items():
        kind, default = (part, ()) if isinstance(part, type) else (type(part), (part,))
        shape.append((key, Annotated[kind, tyro.conf.arg(name="")], *default))
    read: tuple[Any, list[str]] = tyro.cli(
        make_dataclass("Command", shape, frozen=True),
        prog=prog,
        description=description,
        args=_switched(flags, parts.values()),
        config=(tyro.conf.FlagCreatePairsOff,),
        registry=_constructors(),
        use_underscores=True,
        return_unknown_args=True,
    )
    made, lost = read
    if lost:
        said = " ".join(not_known(lost, parts.values(), parts.get("study")))
        raise UserError(f"{said} `{prog} --help` lists all flags.")
    return made


def _switched(flags: Sequence[str], parts: Collection[Any]) -> list[str]:
    """Booleans as tyro knows them: it has the one spelling that changes what is held, and no value.

    model.tied is True:   --model.tied  ->  nothing;   --model.no_tied, --model.tied False  ->  --model.no_tied
    """
    classes = [part if isinstance(part, type) else type(part) for part in parts]
    rest, switches, words = list[str](), dict[str, bool](), deque(flags)
    while words:
        word = words.popleft()
        flag, equals, value = word.partition("=")
        path = flag.removeprefix("--").replace("-", "_")
        found = next((found for cls in classes if (found := switch_at(cls, path))), None)
        if not word.startswith("--") or found is None:
            rest.append(word)
            continue
        if not equals:
            value = words.popleft() if words and words[0].lower() in TRUTH else "true"
        field, on = found
        switches[field] = convert(bool, value, what=flag) is on
    changing = {flag for part in parts for flag in flags_of(part)}
    for field, on in switches.items():
        holder, dot, name = field.rpartition(".")
        spelled = field if on else f"{holder}{dot}no_{name}"
        rest += [f"--{spelled}"] if spelled in changing else []
    return rest


def _refuse_misread(prog: str, flags: Sequence[str], parts: Iterable[Any]) -> None:
    """A value that is not what its field takes, a flag without one, a field that must be given and is not."""
    if HELP.intersection(flags):
        return
    given = words_by_flag(flags)
    for part in parts:
        cls = part if isinstance(part, type) else type(part)
        for path, words in given.items():
            hint = type_at(cls, path)
            if hint not in (None, bool):
                _read_values(f"--{path}", hint, words)
        if part is cls:
            for option in fields(cls):
                if option.default is MISSING and option.default_factory is MISSING and option.name not in given:
                    raise UserError(f"{prog} needs --{option.name}: `{prog} --help` says what that is.")


def _read_values(flag: str, hint: Any, words: Sequence[str]) -> None:
    if get_origin(hint) is tuple and get_args(hint)[-1] is Ellipsis:
        for word in words:
            convert(hint, word, what=flag)
    elif not words:
        raise UserError(f"{flag} needs a value.")
    else:
        convert(hint, list(words) if get_origin(hint) is tuple else words[0], what=flag)


def _constructors() -> Any:
    """How tyro reads a plug-in word and a list of integers."""
    import tyro

    from assay.core.study import Reading, Study

    registry = tyro.constructors.ConstructorRegistry()
    spec = tyro.constructors.PrimitiveConstructorSpec

    @registry.primitive_rule
    def plugin_word(info: Any) -> Any:
        if not (isinstance(info.type, type) and issubclass(info.type, Plugin)) or issubclass(
            info.type, Study | Reading
        ):
            return None
        kind: Registry = info.type.registry
        return spec(
            1, kind.kind.upper(), lambda args: kind.parse(args[0]), lambda x: isinstance(x, Plugin), lambda x: [x.label]
        )

    @registry.primitive_rule
    def integer_list(info: Any) -> Any:
        if info.type != tuple[int, ...]:
            return None
        return spec(
            "*", "INT|A..B", lambda args: integers(args), lambda x: isinstance(x, tuple), lambda x: [*map(str, x)]
        )

    return registry
