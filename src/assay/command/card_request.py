"""The flags of `assay card` and its verbs say which plug-ins are asked, next to whom, and where it is computed."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from assay.command import flags
from assay.command.flags import Parser
from assay.command.plugin_files import plugins_of
from assay.command.progress import say
from assay.command.reproduce import computed
from assay.core.convert import nearest
from assay.core.errors import UserError
from assay.core.files import check_writable, is_there
from assay.core.plugin import registries
from assay.core.words import split

if TYPE_CHECKING:
    from assay.card.request import Request

UNITS = {"s": 1, "m": 60, "h": 3600}
PLACING = ("out", "device", "executor", "workers", "ray_address")
SEEDS = "score these mixers with so many seeds, more than the field's"
MIXERS, METHODS = "mixers", "attention"
"""The plug-in folders that a card can be of."""


def parser_of(verb: str, description: str) -> argparse.ArgumentParser:
    from assay.card.protocol import TIERS

    parser = Parser(prog=f"assay {verb}", description=description)
    parser.add_argument("--vs", nargs="+", metavar="NAME", help="the field; default: everything whose records ship")
    parser.add_argument(
        "--tier",
        choices=list(TIERS),
        help="how much mixers are asked: smoke (the default) on 2 cores, standard on a GPU, full on a GPU for hours",
    )
    parser.add_argument(
        "--own-baselines", action="store_true", help="compute the field here, whatever ships with assay"
    )
    parser.add_argument("--out", default="results", help=flags.OUT)
    parser.add_argument("--device", help="auto, cpu, cuda or cuda:N; default: that of the tier")
    parser.add_argument("--executor", default="local", help=flags.EXECUTOR)
    parser.add_argument("--workers", type=int, default=0, help=flags.WORKERS)
    parser.add_argument("--ray-address", help=flags.RAY_ADDRESS)
    return parser


def request_of(args: argparse.Namespace) -> "Request":
    """Return what the flags ask for."""
    from assay.card.request import Request

    placing = {key: getattr(args, key) for key in PLACING if getattr(args, key) is not None}
    # A store of its own: rates that were tried for a card are no results of the study that trains them.
    placing["out"] = str(Path(args.out) / "card")
    for folder in filter(None, (placing["out"], getattr(args, "ship", None))):
        check_writable(Path(folder) / "card.json")
    vs = _listed(args.vs or ())
    more = {key: getattr(args, key) for key in ("stored", "budget", "seeds", "text") if hasattr(args, key)}
    if asked := getattr(args, "questions", None):
        more["questions"] = _listed(asked) or asked  # of commas alone: they are no question, and are told of
    return Request(computed, vs=vs, own=args.own_baselines, tier=args.tier, placing=placing, **more)


def _listed(words: Sequence[str]) -> list[str]:
    """Return the words of a list, between which there are spaces or commas; a file's name may have one."""
    return [each for word in words for each in ([word] if is_there(word) else split(word, ",")) if each]


def seconds(word: str) -> float:
    """Read a time: 10m, 90s, 1h, or seconds."""
    number, unit = (word[:-1], word[-1]) if word[-1:] in UNITS else (word, "s")
    if not number.isdecimal() or not int(number):
        raise argparse.ArgumentTypeError(f"{word} is no time: give one such as 10m, 90s or 1h")
    return float(number) * UNITS[unit]


def chosen(words: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """Return the kind of plug-in, the words of those that are asked, and which of them come from a file. A name with
    options may stand beside its file: `my_mixer.py mine:width=2`."""
    from assay.core.foreign import loaded_sources

    words = [_apart(word) for word in _listed(words) or words]
    files = [word for word in words if word.endswith(".py") or is_there(word)]
    found = {file: [own for own in plugins_of(file, []) if own[0] in (MIXERS, METHODS)] for file in files}
    if empty := [file for file, own in found.items() if not own]:
        raise UserError(
            f"'{empty[0]}' has neither a mixer nor an attention method: a class under @mixers.register('name') or "
            "@attention.register('name') is one."
        )
    names = [word for word in words if word not in files]  # after the files, whose names are known now
    named = [own for each in found.values() for own in each] + [(_kind_of(word), word) for word in names]
    kinds = {kind for kind, _ in named}
    if len(kinds) > 1:
        told = "; ".join(f"{kind}: {', '.join(w for k, w in named if k == kind)}" for kind in (MIXERS, METHODS))
        raise UserError(f"a card is of mixers or of attention methods, and these are both ({told}). Ask for one kind.")
    (folder,) = kinds
    names, foreign = spelled(folder, names), [word for own in found.values() for _, word in own]
    chosen = [word for word in names if word.partition(":")[0] in foreign]
    mine = [word for word in foreign if word not in {each.partition(":")[0] for each in chosen}] + chosen
    modules = {source.module_name for source in loaded_sources()}  # a file that --plugin named is a file too
    brought = [word for word in names if type(registries()[folder].parse(word)).__module__ in modules]
    return folder, list(dict.fromkeys([*mine, *names])), list(dict.fromkeys([*mine, *brought]))


def _apart(word: str) -> str:
    """Return `NAME:conv=4` for `my_mixer.py:NAME:conv=4`, and for `my_mixer.py:conv=4` if the file has one plug-in; any
    other word as it is."""
    file, colon, rest = word.partition(":")
    if not (colon and file.endswith(".py")):
        return word
    named = "=" not in rest.partition(":")[0]
    own = [name for kind, name in plugins_of(file, [rest] if named else []) if kind in (MIXERS, METHODS)]
    return (own[0] if named else f"{own[0]}:{rest}") if len(own) == 1 else word


def _kind_of(word: str) -> str:
    """Return the folder of a name."""
    name = word.partition(":")[0]
    spellings = {
        spelled: kind
        for kind in (MIXERS, METHODS)
        for e in registries()[kind].entries()
        for spelled in (e.name, *e.aliases)
    }
    if name.endswith(".py") and is_there(name):
        options = word.partition(":")[2]
        raise UserError(f"options go with the name of a mixer: `assay card {name} NAME:{options}`.")
    if name not in spellings and (file := Path(f"{name}.py")).is_file():
        raise UserError(f"no mixer or attention method named '{name}'. Did you mean the file '{file}'?")
    if name not in spellings:
        raise UserError(
            f"no mixer or attention method named '{name}'.{nearest(name, spellings)} `assay list mixers` and "
            "`assay list attention` list them."
        )
    return spellings[name]


def spelled(folder: str, words: Sequence[str]) -> list[str]:
    """The one spelling of each word, so that none stands twice in a field."""
    return [registries()[folder].parse(word).label for word in words]


def check_promises(words: Sequence[str], folder: str = MIXERS) -> None:
    """Stop at the first broken promise: a card of a mixer that looks ahead would say nothing."""
    from assay.contracts.base import check
    from assay.core.foreign import source_of

    of = "mixers" if folder == MIXERS else "attention methods"
    for word in words:
        for verdict in check(folder, registries()[folder].parse(word)):
            if not verdict.kept:
                source = source_of(type(registries()[folder].parse(word)).__module__)
                raise UserError(
                    f"{word} breaks a promise of {of} ({verdict.name.replace('_', ' ')}), so a card would say nothing. "
                    f"Promised: {verdict.promise} Seen: {verdict.seen}. "
                    f"`assay check {source.path if source else folder} {word}` tries every promise."
                )
        say(f"{word} keeps every promise of {of}")
