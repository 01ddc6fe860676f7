"""What may be written for a study: its plug-in fields, their words, and the options of the plug-ins chosen.

task:mqar is --task mqar;   --task.num_kv_pairs 4 sets an option of whatever task was chosen
"""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, get_args, get_origin

from assay.core.convert import nearest, option_types
from assay.core.errors import UserError
from assay.core.plugin import Plugin, is_plugin_type
from assay.core.words import printable, split, unwrapped, written

if TYPE_CHECKING:
    from assay.core.study import Study

CHOICE = re.compile(r"(?P<path>[a-z_.]+):(?P<word>.+)", re.DOTALL)
"""`model.seq_mixer:attention` is `--model.seq_mixer attention`."""
WIDTH = 80
"""Of what is printed where there is no terminal."""


def type_at(cls: type[Any], path: str) -> Any:
    """The annotation of the field at a dotted path through plain dataclasses; None if there is none."""
    hint: Any = cls
    for name in path.split("."):
        if not is_dataclass(hint) or name not in (types := option_types(hint)):  # type: ignore[arg-type]
            return None
        hint = types[name]
    return hint


def switch_at(cls: type[Any], path: str) -> tuple[str, bool] | None:
    """The boolean field that a flag sets, and to what: `model.no_tied` -> ("model.tied", False)."""
    if type_at(cls, path) is bool:
        return path, True
    holder, dot, name = path.rpartition(".")
    field = f"{holder}{dot}{name.removeprefix('no_')}"
    return (field, False) if field != path and type_at(cls, field) is bool else None


def plugin_fields(cls: type[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted path and annotation of each field that holds a plug-in or several, in declaration order."""
    for name, hint in option_types(cls).items():
        if is_plugin_type(hint):
            yield f"{prefix}{name}", hint
        elif is_dataclass(hint):
            yield from plugin_fields(hint, f"{prefix}{name}.")  # type: ignore[arg-type]


def is_plugin_option(cls: type[Any], path: str) -> bool:
    """Whether a dotted path goes through a field that holds a plug-in, or several."""
    return any(path.startswith(f"{field}.") for field, _ in plugin_fields(cls))


def words_by_flag(flags: Sequence[str]) -> dict[str, list[str]]:
    """`[--task boolean --seeds 0 1]` -> {"task": ["boolean"], "seeds": ["0", "1"]}; of a flag given twice, the last."""
    given: dict[str, list[str]] = {}
    path = ""
    for flag in flags:
        if flag.startswith("--"):
            name, equals, value = flag.removeprefix("--").partition("=")
            path = name.replace("-", "_")
            given[path] = [value] if equals else []
        elif path:
            given[path].append(flag)
    return given


def plugin_words(cls: type[Any], flags: Sequence[str]) -> dict[str, Any]:
    """`[--task boolean --seeds 0]` -> {"task": "boolean"}: the plug-ins that flags choose."""
    given = words_by_flag(flags)
    chosen = {field: (hint, given[field]) for field, hint in plugin_fields(cls) if given.get(field)}
    return {field: words if get_origin(hint) is tuple else words[0] for field, (hint, words) in chosen.items()}


def options_in_words(cls: type[Any], said: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, str, str]]:
    """{"task": ["mqar:num_kv_pairs=4"]} -> ("task", "num_kv_pairs", "mqar:num_kv_pairs=4"): what words set."""
    for path, words in said.items():
        if not is_plugin_type(type_at(cls, path)):
            continue
        for word in (unwrapped(str(word)) for word in words):
            for option in split(word, ":")[1:]:
                yield path, option.partition("=")[0], word


def require_one_choice(cls: type[Any], flags: Sequence[str]) -> None:
    """A UserError where two flags choose for one field: the parser would keep the last alone."""
    given = [flag.removeprefix("--").partition("=")[0].replace("-", "_") for flag in flags if flag.startswith("--")]
    for path, hint in plugin_fields(cls):
        if (count := given.count(path)) > 1:
            one = f"name them all after one --{path}" if get_origin(hint) is tuple else "choose one"
            raise UserError(f"{path} is chosen {count} times: {one}, or compare with --grid {path}=A,B.")


def print_choices(study: "Study") -> None:
    """A panel for each plug-in field, with every word that may stand there."""
    from rich.console import Console, Group
    from rich.panel import Panel
    from rich.rule import Rule
    from rich.text import Text

    terminal = sys.stdout.isatty()
    # Where there is no terminal, neither COLUMNS nor FORCE_COLOR may change what a script reads.
    console = Console() if terminal else Console(width=WIDTH, force_terminal=False, color_system=None)
    with console.capture() as panels:  # rich ends the process with 1 where a reader (`| head`) has left
        for path, hint in plugin_fields(type(study)):
            words = [f"{path}:{name}" for name in _plugin_type(hint).registry.names()]
            usage = Text(f"[{{{','.join(words)}}}]", no_wrap=True, overflow="ellipsis")
            default = Text(f"(default: {_default(path, attrgetter(path)(study))})", no_wrap=True, overflow="ellipsis")
            lines = [Text(f"    {word}", overflow="fold") for word in words]
            panel = Group(default, Rule(style="dim"), usage, *lines)
            console.print(Panel(panel, title=f"{path} choices", title_align="left", border_style="dim"))
    print(panels.get(), end="")


def describe(study: "Study") -> str:
    """The head of a study's help: the question, and how presets, words and options are written."""
    cls = type(study)
    lines = [cls.question, f"Presets: {', '.join(cls.presets) or 'none'}; --preset NAME starts from one."]
    for path, hint in [*plugin_fields(cls)][:1]:
        plugins = _members(attrgetter(path)(study))
        name = plugins[0].name if plugins else _plugin_type(hint).registry.names()[0]
        example = "".join(
            f", such as --{path}.{option.name} {_shown(getattr(plugin, option.name))}"
            for plugin in plugins[:1]
            for option in fields(plugin)[:1]
        )
        lines += [
            f"Words choose plug-ins, in any order: {path}:{name} is --{path} {name}; --choices lists them.",
            f"Options of plug-ins are dotted flags{example}; those of the plug-ins chosen stand at the end.",
        ]
    lines += [
        "Switches are read in every spelling, whatever the default: --x, --no_x, --x False; below a dot --a.no_x."
    ]
    lines += [f"{flag}: {what}" for flag, what in cls.shorthands.items()]
    return "\n\n".join(textwrap.fill(line, _width(), break_on_hyphens=False) for line in lines)


def chosen_options(study: "Study") -> str:
    """The flags of each plug-in that a study holds, with their values: `task mqar: --task.vocab_size 256, ...`."""
    blocks = []
    for path, _ in plugin_fields(type(study)):
        for plugin in _members(attrgetter(path)(study)):
            values = {f"--{path}.{field.name}": getattr(plugin, field.name) for field in fields(plugin)}
            flags = ", ".join(f"{flag} {_shown(value)}" for flag, value in values.items()) or "no options"
            blocks.append(_wrapped(f"{path} {plugin.name}: {flags}"))
    return "\n".join(["options of the chosen plug-ins:", *blocks, ""]) if blocks else ""


def flags_of(part: Any, prefix: str = "") -> Iterator[str]:
    """The flags of a dataclass or an instance of one: `seeds`, `train.max_steps`, `no_context_sweep`. Of a boolean
    it is the one spelling that changes what is held."""
    types = option_types(part if isinstance(part, type) else type(part))
    for option in fields(part):
        held = getattr(part, option.name, option.default)
        if is_dataclass(types[option.name]) and not is_plugin_type(types[option.name]):
            inner = held if isinstance(held, types[option.name]) else types[option.name]
            yield from flags_of(inner, f"{prefix}{option.name}.")
        else:
            yield f"{prefix}{'no_' if held is True else ''}{option.name}"


def not_known(lost: Sequence[str], parts: Iterable[Any], study: "Study | None") -> Iterator[str]:
    """What to say of the words that the parser of some dataclasses had no use for, and what was perhaps meant."""
    flags, words = [f"--{flag}" for part in parts for flag in flags_of(part)], list[str]()
    if study is not None:
        from assay.studies import studies

        paths = [path for path, _ in plugin_fields(type(study))]
        plugins = [(path, plugin) for path in paths for plugin in _members(attrgetter(path)(study))]
        flags += [f"--{path}.{option.name}" for path, plugin in plugins for option in fields(plugin)]
        flags += [word.split()[0] for word in study.shorthands] + [f"--{flag}" for flag in study.renamed]
        words = [name.removeprefix(f"{study.name}.") for name in studies.names() if name.startswith(f"{study.name}.")]
        words += [*paths, "wandb"]
    a_flags = False
    for word in lost:
        name = word.partition("=")[0] if word.startswith("--") else word.partition(":")[0]
        if word.startswith("--"):
            yield f"no flag '{name}'.{nearest(name, flags)}"
        elif not a_flags:  # behind a flag that is not known stand its values
            yield f"'{name}' is not known, or belongs to no flag.{nearest(name, words)}"
        a_flags = a_flags or word.startswith("--")


def _members(held: Any) -> tuple[Plugin, ...]:
    return held if isinstance(held, tuple) else (held,)


def _plugin_type(hint: Any) -> type[Plugin]:
    return get_args(hint)[0] if get_origin(hint) is tuple else hint


def _default(path: str, held: Any) -> str:
    """`task:mqar`; several are a flag with several words."""
    if isinstance(held, tuple):
        return f"--{path} {' '.join(map(_word, held))}" if held else "none named"
    return f"{path}:{_word(held)}"


def _word(plugin: Plugin) -> str:
    """The label, under the registered name: that is the one which stands in the list."""
    _, colon, options = plugin.label.partition(":")
    return f"{plugin.name}{colon}{options}"


def _shown(value: Any) -> str:
    """As it is typed behind a flag, where a text needs no quotes."""
    return printable(value if isinstance(value, str) else written(value)) or "''"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _width(), initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
