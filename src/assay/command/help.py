"""Builds `--help` and `--choices` from dataclasses: fields, annotations, defaults, and the strings below fields."""

import argparse
import ast
import inspect
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from assay.command.flags import flag_of, members, options, plugin_options
from assay.core.convert import option_types
from assay.core.declared import TEXTS, texts_below
from assay.core.plugin import Plugin, is_plugin_type
from assay.core.study import Study
from assay.core.words import written
from assay.studies import studies

WIDTH = 80
"""Columns of the output where there is no terminal."""
ASCII = str.maketrans("╭╮╰╯─│…", "++++-|~")
"""Box characters and their ASCII replacements, for terminals whose encoding lacks them."""
SWITCHES = "Switches are read in every spelling, whatever the default: --x, --no_x, --x False; below a dot --a.no_x."
INDENT = 26
"""Columns before the text of a flag; a longer flag has a line of its own."""


def print_help(prog: str, description: str, parts: Iterable[Any]) -> None:
    """Prints the flags of dataclass instances, which hold the defaults; each nested part is a group."""
    parser = _parser(prog=prog, usage=f"{prog} [-h] [OPTIONS]", description=description)
    runner: Any = None
    for part in parts:
        if not isinstance(part, Plugin):
            runner = runner or parser.add_argument_group(RUNNER)
        groups: dict[str, Any] = {"": runner or parser}
        texts = {"": field_texts(type(part))}
        for option in options(type(part)):
            holder, _, name = option.path.rpartition(".")
            if option.is_part:
                doc = inspect.cleandoc(option.hint.__doc__ or "")
                about = "" if doc.startswith(f"{option.hint.__name__}(") else doc  # a signature, where there is no text
                groups[option.path] = parser.add_argument_group(f"{option.path} options", about)
                texts[option.path] = field_texts(option.hint)
                continue
            held = attrgetter(option.path)(part)
            # A switch that is on is listed as the flag that turns it off: "default: True" beside that is a puzzle.
            default = "on by default; this turns it off" if held is True else _default(held, of=name)
            metavar = None if option.hint is bool else _metavar(option.hint)
            _add(groups[holder], flag_of(option, held), metavar, texts[holder].get(name, ""), default)
    print(parser.format_help(), end="")


class _Layout(argparse.RawDescriptionHelpFormatter):
    """Leaves descriptions alone, which are wrapped already; texts begin in one column, however short the flags are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=INDENT, width=_width())
        self._action_max_length = INDENT


def _parser(**given: Any) -> argparse.ArgumentParser:
    """Returns a parser that only prints, so that names may clash."""
    return argparse.ArgumentParser(formatter_class=_Layout, conflict_handler="resolve", **given)


def _add(group: Any, flag: str, metavar: str | None, text: str, default: str) -> None:
    """Adds a flag with its text and its default; without a metavar it takes no value."""
    takes: dict[str, Any] = {"metavar": metavar} if metavar else {"action": "store_true"}
    group.add_argument(flag, help=f"{text} ({default})".strip().replace("%", "%%"), **takes)


RUNNER = "how it is run (options of every study)"


def field_texts(cls: type[Any]) -> dict[str, str]:
    """Reads the string below each field from the class's source; {} where there is no source."""
    texts: dict[str, str] = {}
    for base in reversed([base for base in cls.__mro__ if is_dataclass(base)]):
        if TEXTS in vars(base):
            texts |= vars(base)[TEXTS]
            continue
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, SyntaxError):
            continue
        if isinstance(tree, ast.ClassDef):
            texts |= texts_below(tree)
    return texts


def describe(study: Study) -> str:
    """Returns the head of a study's help: the question, and how presets, words and options are written."""
    cls = type(study)
    lines = [cls.question, f"Presets: {', '.join(cls.presets) or 'none'}; --preset NAME starts from one."]
    for option in plugin_options(cls)[:1]:
        plugins = members(attrgetter(option.path)(study))
        name = plugins[0].name if plugins else _plugin_type(option.hint).registry.names()[0]
        example = "".join(
            f", such as --{option.path}.{inner.name} {_shown(getattr(plugin, inner.name))}"
            for plugin in plugins[:1]
            for inner in fields(plugin)[:1]
        )
        lines += [
            f"Words choose plug-ins, in any order: {option.path}:{name} is --{option.path} {name}; --choices lists "
            "them.",
            f"Options of plug-ins are dotted flags{example}; those of the plug-ins chosen stand at the end.",
        ]
    lines += [SWITCHES, *(f"{flag}: {what}" for flag, what in cls.shorthands.items())]
    return "\n\n".join(textwrap.fill(line, _width(), break_on_hyphens=False) for line in lines)


def chosen_options(study: Study) -> str:
    """Lists the flags of each plug-in that a study holds, laid out like the study's own."""
    chosen = [each for path, plugin in held_plugins(study) for each in _with_inner(path, plugin)]
    return "\n".join(["\noptions of the chosen plug-ins:\n", *(_about(*each) for each in chosen)]) if chosen else ""


def _with_inner(path: str, plugin: Plugin) -> Iterator[tuple[str, Plugin]]:
    """Yields a plug-in, and those that its own options hold. Of several in one option none, since a flag would have to
    be an option of each."""
    yield path, plugin
    for option in plugin_options(type(plugin)):
        held = members(getattr(plugin, option.path))
        for inner in held if len(held) == 1 else ():
            yield from _with_inner(f"{path}.{option.path}", inner)


def _about(path: str, plugin: Plugin) -> str:
    """Returns `task mqar:`, a summary, and a flag per option; its value too, where a study or a word changed that."""
    cls = type(plugin)
    summary = next(entry.summary for entry in plugin.registry.entries() if entry.name == plugin.name)
    told = [] if summary.startswith(f"{cls.__name__}(") else [textwrap.fill(summary, _width() - 2)]
    told += [] if fields(plugin) else ["It has no options."]
    parser, texts, hints = _parser(usage=argparse.SUPPRESS, add_help=False), field_texts(cls), option_types(cls)
    group = parser.add_argument_group(f"{path} {plugin.name}", "\n\n".join(told))
    for option in fields(plugin):
        held = getattr(plugin, option.name)
        own = option.default if option.default_factory is MISSING else option.default_factory()
        default = _default(own, of=option.name)
        value = default if held == own else f"here: {_listed(held)}; {default}"
        # `--task.no_x` is not read below a plug-in, whose class is known only later.
        metavar = "{true,false}" if hints[option.name] is bool else _metavar(hints[option.name])
        _add(group, f"--{path}.{option.name}", metavar, texts.get(option.name, ""), value)
    return parser.format_help()


def held_plugins(study: Study) -> list[tuple[str, Plugin]]:
    """Returns (path, plug-in) for every plug-in that a study's options hold."""
    paths = [option.path for option in plugin_options(type(study))]
    return [(path, plugin) for path in paths for plugin in members(attrgetter(path)(study))]


def other_words(study: Study) -> tuple[list[str], list[str]]:
    """Returns flags that are not fields of the study, and words without a flag, that the user may have meant."""
    flags = [f"--{path}.{option.name}" for path, plugin in held_plugins(study) for option in fields(plugin)]
    flags += [flag.split()[0] for flag in study.shorthands] + [f"--{flag}" for flag in study.renamed]
    verbs = [name.removeprefix(f"{study.name}.") for name in studies.names() if name.startswith(f"{study.name}.")]
    return flags, [*verbs, *(option.path for option in plugin_options(type(study))), "wandb"]


def print_choices(study: Study) -> None:
    """Prints a panel for each plug-in option, with every word that can be chosen."""
    width, lines = _width() - 4, list[str]()
    for option in plugin_options(type(study)):
        words = [f"{option.path}:{name}" for name in _plugin_type(option.hint).registry.names()]
        held = attrgetter(option.path)(study)
        chosen = " ".join(map(_word, members(held)))
        several = f"--{option.path} {chosen}" if chosen else "none named"
        default = f"(default: {several if isinstance(held, tuple) else f'{option.path}:{chosen}'})"
        together = textwrap.wrap(f"[{{{', '.join(words)}}}]", width)  # broken after commas
        inside = [*textwrap.wrap(default, width), "─" * width, *(line.replace(", ", ",") for line in together)]
        inside += [line for word in words for line in textwrap.wrap(f"    {word}", width)]
        lines.append(f"╭{f'─ {option.path} choices ':─<{width + 2}}╮")
        lines += [f"│ {line:<{width}} │" for line in inside]
        lines.append(f"╰{'─' * (width + 2)}╯")
    text = "\n".join(lines)
    lined = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    print(text if lined else text.translate(ASCII))


def _plugin_type(hint: Any) -> type[Plugin]:
    return get_args(hint)[0] if get_origin(hint) is tuple else hint


def _word(plugin: Plugin) -> str:
    """Returns the label under the registered name, which is the one in the list, rather than an alias."""
    _, colon, inner = plugin.label.partition(":")
    return f"{plugin.name}{colon}{inner}"


def _metavar(hint: Any) -> str:
    """Returns the placeholder of a value in the help: `INT`, `{last,mean}`, `[ENCODER ...]`, `PATH|none`."""
    if is_plugin_type(hint) and get_origin(hint) is not tuple:
        return str(hint.registry.kind.upper())
    inner = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return "|".join(_metavar(option) for option in sorted(inner, key=lambda option: option is NoneType))
    if get_origin(hint) is Literal:
        return f"{{{','.join(map(str, inner))}}}"
    if get_origin(hint) is tuple and inner[-1] is Ellipsis:
        return f"[{'INT|A..B' if inner[0] is int else _metavar(inner[0])} ...]"
    if get_origin(hint) is tuple:
        return " ".join(map(_metavar, inner))
    return "none" if hint is NoneType else str(getattr(hint, "__name__", hint)).upper()


def _default(held: Any, *, of: str) -> str:
    if held is MISSING:
        return "required"
    if of == "seeds" and isinstance(held, tuple) and held:  # `default: 2` beside it would read as two of them
        count = "one seed, the number" if len(held) == 1 else f"{len(held)} seeds, the numbers"
        return f"default: {count} {' '.join(map(_shown, held))}"
    return f"default: {_listed(held)}"


def _listed(held: Any) -> str:
    return " ".join(map(_shown, held)) or "none" if isinstance(held, tuple) else _shown(held)


def _shown(value: Any) -> str:
    """Returns the value as it is typed after a flag; text needs no quotes there."""
    return value or "''" if isinstance(value, str) else written(value)


def _width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH


def hanging(head: str, text: str) -> str:
    """Returns a line of a list, wrapped below its text to the width of a terminal, or to COLUMNS; a pipe without that
    gets it whole, for grep."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return f"{head}{text}"
    indent, width = len(head), shutil.get_terminal_size().columns
    below: dict[str, Any] = {"initial_indent": head, "subsequent_indent": " " * indent}
    return textwrap.fill(text, max(width, indent + 20), break_on_hyphens=False, **below)
