"""Makes cards: asks the battery, trains the anchors where shipped records are compared, times the mixers, judges."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from assay.card.anchors import Agreement, agreements
from assay.card.battery import Asked, Compute, Records, answer, battery, bounds
from assay.card.card import Card
from assay.card.cost import speed
from assay.card.judge import line
from assay.card.running import Runner
from assay.train.device import activate


def made(mine: Sequence[str], field: Asked, runner: Runner, look: Compute | None = None) -> tuple[list[Card], Records]:
    """Run the battery for every mixer, and judge each of `mine` next to all others. `look` finds records elsewhere, and
    then nothing is computed and no speed is measured."""
    tier = runner.tier
    asked = {q.name: [*mine, *field[q.name]] for q in tier.questions}
    found = battery(tier, asked, look or runner)
    answers = {q.name: {mixer: answer(tier, q, mixer, found) for mixer in asked[q.name]} for q in tier.questions}
    agreed = _agreed(runner) if look is None and any(mixer not in runner.lent for mixer in mine) else {}
    speeds = {}
    if look is None:
        with activate(runner.numerics) as device:
            speeds = {mixer: speed(mixer, device) for mixer in dict.fromkeys(chain(*asked.values()))}
    cards = []
    for mixer in mine:
        others = {name: [told for each, told in own.items() if each != mixer] for name, own in answers.items()}
        apart = {name for name, one in agreed.items() if not one.holds and mixer not in runner.lent}
        lines = []
        for q in tier.questions:
            ranked = [each for each in others[q.name] if q.name not in apart or each.mixer not in runner.lent]
            lines.append(line(answers[q.name][mixer], ranked, bounds(q, tier, found)))
        cards.append(Card(mixer, tier, lines, others, speeds, tuple(agreed.values()), frozenset(runner.lent)))
    return cards, found


def _agreed(runner: Runner) -> dict[str, Agreement]:
    """Train the anchors here, where shipped records stand beside what was trained here, and compare."""
    if not runner.lent:
        return {}
    tier, every = runner.tier, runner.field()
    shipped = battery(tier, every, runner.only_shipped)
    told = {q.name: {mixer: answer(tier, q, mixer, shipped) for mixer in every[q.name]} for q in tier.questions}
    return agreements(tier, told, replace(runner, own=True))
