"""`assay card my_mixer.py`: what a sequence mixer can do, next to the field, on one screen.

$ assay card my_mixer.py                      the mixers of a file, with the anchors of the protocol beside them
$ assay card delta_net:beta_max=2 --vs delta_net mamba2 gru
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.command.flags import Parser
from assay.command.progress import say, shown
from assay.core.convert import construct, nearest
from assay.core.errors import UserError
from assay.core.files import is_there
from assay.core.foreign import load_source, read_source
from assay.core.plugin import registries
from assay.core.run import Record

if TYPE_CHECKING:
    from assay.api import Session
    from assay.card.card import Card

PLACING = ("out", "device", "executor", "workers", "ray_address")


def card(words: list[str]) -> int:
    """What a sequence mixer can do, next to the field: `assay card my_mixer.py`, or the name of one."""
    from assay.card.protocol import ANCHORS, TIERS

    parser = Parser(prog="assay card", description=card.__doc__)
    parser.add_argument("mixers", nargs="+", metavar="FILE|MIXER", help="a Python file with mixers, or mixers by name")
    parser.add_argument("--vs", nargs="+", metavar="MIXER", help=f"the field; default: {' '.join(ANCHORS)}")
    parser.add_argument("--tier", default="smoke", choices=list(TIERS), help="how much is asked")
    parser.add_argument("--own-baselines", action="store_true", help="train the field here, whatever ships with assay")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run")
    parser.add_argument("--json", action="store_true", help="print the card as JSON")
    parser.add_argument("--out", default="results")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--executor", default="local")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--ray-address")
    args = parser.parse_args(words)
    mine, foreign = _mixers(args.mixers)
    field = [word for word in (args.vs or ANCHORS) if word not in mine]
    for word in field:
        _known(word)
    _check(foreign)
    placing = {key: getattr(args, key) for key in PLACING if getattr(args, key) is not None}
    if args.dry_run:
        return _plan(mine, field, TIERS[args.tier], placing)
    cards = made(mine, field, args.tier, placing, own=args.own_baselines)
    if args.json:
        print(json.dumps([each.to_json() for each in cards], indent=1))
    else:
        print("\n\n".join(each.text() for each in cards))
    return 0


def made(mine: Sequence[str], field: Sequence[str], tier: str, placing: dict[str, Any], *, own: bool) -> "list[Card]":
    """Run the battery for every mixer, and judge each of `mine` next to all others."""
    from assay.api import Execution
    from assay.card.battery import answer, battery, bounds
    from assay.card.card import Card
    from assay.card.cost import speed
    from assay.card.judge import line
    from assay.card.protocol import TIERS
    from assay.card.running import Runner
    from assay.train.device import activate

    chosen = TIERS[tier]
    execution = construct(Execution, placing, what="assay card")
    runner = Runner(chosen, execution, _computed, own=own)
    every = [*mine, *field]
    found = battery(chosen, every, runner)
    answers = {(mixer, q.name): answer(chosen, q, mixer, found) for mixer in every for q in chosen.questions}
    with activate(runner.numerics) as device:
        speeds = {mixer: speed(mixer, device) for mixer in every}
    cards = []
    for mixer in mine:
        lines = [
            line(
                answers[mixer, q.name],
                [answers[other, q.name] for other in every if other != mixer],
                bounds(q, chosen, found),
            )
            for q in chosen.questions
        ]
        cards.append(Card(mixer, chosen, lines, speeds))
    return cards


def _mixers(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of the mixers that are asked, and which of them come from a file."""
    found: list[str] = []
    foreign: list[str] = []
    for word in words:
        if word.endswith(".py") or is_there(word):
            module = load_source(read_source(Path(word))).__name__
            own = [entry.name for entry in registries()["mixers"].entries() if entry.module == module]
            if not own:
                raise UserError(f"'{word}' has no mixer: a class under @mixers.register('name') is one.")
            foreign += own
        else:
            _known(word)
            found.append(word)
    return list(dict.fromkeys([*foreign, *found])), foreign


def _known(word: str) -> None:
    from assay.mixers import mixers

    name = word.partition(":")[0]
    spelled = [each for entry in mixers.entries() for each in (entry.name, *entry.aliases)]
    if name not in spelled:
        raise UserError(f"no mixer '{name}'.{nearest(name, spelled)} Known: {', '.join(mixers.names())}, or a file.")
    mixers.parse(word)


def _check(words: Sequence[str]) -> None:
    """Stop at the first broken promise: a card of a mixer that looks ahead would say nothing."""
    from assay.contracts.base import check, made

    for word in words:
        plugin, verdicts = made("mixers", word)
        tried = verdicts or check("mixers", plugin)  # type: ignore[arg-type]
        for verdict in tried:
            if not verdict.kept:
                raise UserError(
                    f"{word} breaks a promise of mixers, and a card would say nothing: {verdict.promise} "
                    f"Seen: {verdict.seen}. `assay check` tries them all."
                )


def _plan(mine: Sequence[str], field: Sequence[str], tier: Any, placing: dict[str, Any]) -> int:
    from assay.card.battery import wanted

    for question in tier.questions:
        first = len(wanted(tier, question, "", {}))
        print(f"{question.name}: {first} rates, then the winner with {len(tier.seeds)} seeds, {question.steps} steps")
    print(f"for {', '.join(mine)}, next to {', '.join(field)}; {tier.says}")
    return 0


def _computed(session: "Session") -> list[Record]:
    if session.todo:
        say(session.describe().replace("icl:", "card:", 1))
    with shown(session.labels, len(session.todo)) as watch:
        return list(session.compute(watch))
