"""`assay card my_mixer.py` says what a sequence mixer, or an attention method, can do next to the field, on one screen.

$ assay card my_mixer.py                      the mixers of a file, next to every mixer whose records ship
$ assay card delta_net:beta_max=2 --vs delta_net mamba2 gru
$ assay card my_mixer.py --questions recall   one question, for a quick look
$ assay card my_mixer.py --text FOLDER        its language model reads your text; the field of that is trained here
$ assay card my_method.py                     the attention methods of a file: what a language model loses with them
$ assay card diff before.json after.json      exit code 1 where a question is answered worse
$ assay card submit my_mixer.py FOLDER        the file, its records and its card, for a pull request
$ assay card verify FOLDER                    what a reader runs: promises, ids, one cell computed again
$ assay card validity                         do the questions rank mixers as a small language model does?
"""

import inspect
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from assay.command.card_exchange import diff, submit, verify
from assay.command.card_request import MIXERS, SEEDS, check_promises, chosen, parser_of, request_of, seconds, spelled
from assay.command.flags import Parser
from assay.command.progress import say
from assay.core.errors import UserError
from assay.core.files import disk_errors, write_file
from assay.core.plugin import registries
from assay.report.section import Table, Value
from assay.report.text import render

if TYPE_CHECKING:
    from assay.card.request import AnyCard, Battery, Request


def card(words: list[str]) -> int:
    """What a sequence mixer can do, next to the field: `assay card my_mixer.py`; what is lost with an attention method:
    `assay card my_method.py`; also diff, submit, verify and validity, each with --help."""
    verbs: dict[str, Callable[[list[str]], int]] = {"diff": diff, "submit": submit, "verify": verify}
    verbs["validity"] = _validity
    if words and words[0] in verbs:
        return verbs[words[0]](words[1:])
    parser = parser_of("card", card.__doc__ or "")
    parser.add_argument(
        "plugins", nargs="+", metavar="FILE|MIXER|METHOD", help="a Python file with mixers or methods, or their names"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be run, and about how long it takes")
    parser.add_argument("--json", action="store_true", help="print the card as JSON")
    parser.add_argument(
        "--budget", type=seconds, metavar="TIME", help="leave out what, by estimate, does not fit: 10m, 90s, 1h"
    )
    parser.add_argument("--stored", action="store_true", help="ask only questions whose records are stored or ship")
    parser.add_argument("--questions", nargs="+", metavar="NAME", help="ask only these, such as recall and parity")
    parser.add_argument("--seeds", type=int, metavar="N", help=SEEDS)
    parser.add_argument("--text", metavar="FOLDER", help="ask `language` of these texts, and train its field here")
    parser.add_argument("--ship", type=Path, metavar="FOLDER", help="write the records there, as those that ship")
    args = parser.parse_args(words)
    if args.dry_run and args.json:
        raise UserError("--dry-run prints text: leave --json out.")
    folder, mine, foreign = chosen(args.plugins)
    request = request_of(args)
    _refuse_early(folder, request, mine)
    check_promises(foreign, folder)
    battery = _battery(folder, request, mine)
    for note in battery.notes:
        say(note)
    if args.dry_run:
        print("\n".join(battery.plan()))
        return 0
    if outlook := battery.outlook():
        say(outlook)
    cards = battery.made()
    if args.ship:
        _ship(args.ship, battery)
    for each in cards:
        say(f"page: {_page(each, battery, folder, beside=bool(request.vs))}")
    if args.json:
        print(_json(cards, battery))
    else:
        from assay.card.side_by_side import side_by_side

        # What is noted belongs to the result: standard error is not kept with it.
        notes = ["\n".join(battery.notes)] * bool(battery.notes)
        print("\n\n".join([*[side_by_side(cards)] * (len(cards) > 1), *(each.text() for each in cards), *notes]))
    return 1 if len(cards) < len(mine) or any(each.failed for each in cards) else 0


def _refuse_early(folder: str, request: "Request", mine: Sequence[str]) -> None:
    """Raise for a wrong name, tier or question before promises are tried, which takes seconds."""
    spelled(folder, request.vs)
    if folder == MIXERS:
        from assay.card.mixer_battery import runner_of

        runner_of(request, mine)


def _json(cards: "Sequence[AnyCard]", battery: "Battery") -> str:
    told = [each.to_json() | {"notes": list(battery.notes)} for each in cards]
    return json.dumps(told, indent=1, allow_nan=False)


def _battery(folder: str, request: "Request", mine: Sequence[str]) -> "Battery":
    if folder == MIXERS:
        from assay.card.mixer_battery import battery_of

        return battery_of(request, mine)
    from assay.card import method_battery

    return method_battery.battery_of(request, mine)


def _ship(folder: Path, battery: "Battery") -> None:
    """Add the records of cards to those that ship in a folder."""
    from assay.core import shipped

    shipped.add(battery.ships_as(), folder, battery.records())


def _page(one: "AnyCard", battery: "Battery", folder: str, *, beside: bool) -> Path:
    """Write the card's page, its badge, and the card as JSON, beside the store. One that is not whole, with a field of
    its own `beside` it or some of the questions, is named by that, and takes no whole one's place."""
    from assay.card.badge import badge

    stem = re.sub(r"[^\w.=-]+", "_", ".".join([one.stem, *["vs"] * beside, *one.part]))
    path = battery.out / f"{stem}.html"
    with disk_errors(path):
        write_file(path, battery.page(one, _file_of(one.name, folder)).encode())
        told = one.to_json()
        kind = f"{told['tier']}, protocol {told['protocol']}"
        write_file(path.with_suffix(".svg"), badge(one.name, one.ranks, of=kind).encode())
        write_file(path.with_suffix(".json"), f"{_json([one], battery)}\n".encode())
    return path


def _file_of(word: str, folder: str) -> dict[str, str]:
    """Return the Python file of a plug-in, by its name: the user's, or that of the tree."""
    from assay.core.foreign import source_of

    kind = type(registries()[folder].parse(word))
    if source := source_of(kind.__module__):
        return {Path(source.path).name: source.text}
    path = Path(inspect.getfile(kind))
    return {path.name: path.read_text(encoding="utf-8")}


def _validity(words: list[str]) -> int:
    """Say whether the synthetic questions rank the mixers whose records ship as the language model does."""
    from assay.card.protocol import TIERS
    from assay.card.running import reader
    from assay.card.validity import validities_of

    parser = Parser(prog="assay card validity", description=_validity.__doc__)
    parser.add_argument("--tier", choices=list(TIERS), help="the records of one tier; default: of all that ship")
    chosen = parser.parse_args(words).tier
    rows: list[dict[str, Value]] = [
        {"tier": tier.name, "question": each.question, "with": each.target, "rho": each.rho or "too few",
         "p (Holm)": each.p, "mixers": each.mixers,
         "without a family": "{:+z.2f} to {:+z.2f}".format(*each.without) if each.without else None}
        for tier in ([TIERS[chosen]] if chosen else TIERS.values())
        for each in validities_of(reader(tier))
        if chosen or each.mixers
    ]  # fmt: skip
    print(render(Table("validity", tuple(rows), {"rho": "+z.2f", "p (Holm)": ".2g"})))
    return 0
