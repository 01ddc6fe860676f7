"""Builds `--help` and `--choices` from dataclasses: fields, annotations, defaults, and the strings below fields."""

import argparse
import ast
import inspect
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from assay.command.flags import flag_of, members, options, plugin_options
from assay.core.declared import TEXTS, texts_below
from assay.core.plugin import Plugin, is_plugin_type
from assay.core.study import Study
from assay.core.words import printable, written
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
    # Descriptions are left alone: they are wrapped already.
    layout: Any = partial(argparse.RawDescriptionHelpFormatter, max_help_position=INDENT, width=_width())
    parser = argparse.ArgumentParser(
        prog, f"{prog} [-h] [OPTIONS]", description, formatter_class=layout, conflict_handler="resolve"
    )
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
            text = f"{texts[holder].get(name, '')} ({default})".strip().replace("%", "%%")
            takes = {"action": "store_true"} if option.hint is bool else {"metavar": _metavar(option.hint)}
            groups[holder].add_argument(flag_of(option, held), help=text, **takes)
    print(parser.format_help(), end="")


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
    """Lists the flags of each plug-in that a study holds and their values: `task mqar: --task.vocab_size 256, ...`."""
    blocks = []
    for path, plugin in held_plugins(study):
        values = {f"--{path}.{option.name}": getattr(plugin, option.name) for option in fields(plugin)}
        flags = ", ".join(f"{flag} {_shown(value)}" for flag, value in values.items()) or "no options"
        indent: dict[str, Any] = {"initial_indent": "  ", "subsequent_indent": "    "}
        blocks.append(textwrap.fill(f"{path} {plugin.name}: {flags}", _width(), break_on_hyphens=False, **indent))
    return "\n".join(["\noptions of the chosen plug-ins:", *blocks, ""]) if blocks else ""


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
    return f"default: {' '.join(map(_shown, held)) or 'none' if isinstance(held, tuple) else _shown(held)}"


def _shown(value: Any) -> str:
    """Returns the value as it is typed after a flag; text needs no quotes there."""
    return printable(value if isinstance(value, str) else written(value)) or "''"


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
