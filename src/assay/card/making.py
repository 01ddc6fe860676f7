"""`made` makes cards: it asks the battery, trains the anchors where shipped records are compared, times and judges."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from assay.card.anchors import Agreement, agreements
from assay.card.battery import Asked, Compute, Records, answer, battery, bounds
from assay.card.card import Card
from assay.card.cost import speed
from assay.card.judge import line
from assay.card.protocol import ANCHORS
from assay.card.running import Runner
from assay.core.executors.local import kept_workers
from assay.train.device import activate


def made(
    mine: Sequence[str], field: Asked, runner: Runner, look: Compute | None = None, disagreed: Sequence[str] = ()
) -> tuple[list[Card], Records]:
    """Run the battery for every mixer, and judge each of `mine` next to all others. `look` finds records elsewhere, and
    then nothing is computed and no speed is measured; `disagreed` are the questions whose anchors did not agree."""
    tier = runner.tier
    asked = {q.name: [*mine, *field[q.name]] for q in tier.questions}
    with kept_workers():  # every round is a plan of its own
        found = battery(tier, asked, look or runner)
        agreed = _agreed(asked, runner) if look is None else {}
    answers = {q.name: {mixer: answer(tier, q, mixer, found) for mixer in asked[q.name]} for q in tier.questions}
    apart = {name for name, one in agreed.items() if not one.holds} | set(disagreed)
    speeds = {}
    if look is None:
        with activate(runner.numerics) as device:
            every = dict.fromkeys(chain(*asked.values()))
            speeds = {each: speed(each, device, by_length=each in (*mine, *ANCHORS)) for each in every}
    cards, ships = [], runner.read_shipped
    for mixer in mine:
        others = {name: [told for each, told in own.items() if each != mixer] for name, own in answers.items()}
        lines = []
        for q in tier.questions:
            own = (mixer, q.name) in ships
            ranked = [each for each in others[q.name] if q.name not in apart or ((each.mixer, q.name) in ships) is own]
            lines.append(line(answers[q.name][mixer], ranked, bounds(q, tier, found)))
        cards.append(Card(mixer, tier, lines, others, speeds, tuple(agreed.values()), frozenset(ships)))
    return cards, found


def _agreed(asked: Asked, runner: Runner) -> dict[str, Agreement]:
    """Train the anchors here, where shipped records stand beside what was trained here, and compare."""
    kinds = {(name, (mixer, name) in runner.read_shipped) for name, mixers in asked.items() for mixer in mixers}
    if not any({(name, True), (name, False)} <= kinds for name in asked):
        return {}
    runner = runner.plain
    tier, every = runner.tier, runner.field()
    shipped = battery(tier, every, runner.only_shipped)
    told = {q.name: {mixer: answer(tier, q, mixer, shipped) for mixer in every[q.name]} for q in tier.questions}
    return agreements(tier, told, replace(runner, own=True))
