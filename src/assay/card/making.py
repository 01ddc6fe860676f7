"""`made` makes cards: it asks the battery, trains the anchors where shipped records are compared, times and judges."""

import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import chain

from assay.card.anchors import Agreement, Answers, agreements
from assay.card.battery import Answer, Asked, Compute, Records, answer, battery, bounds
from assay.card.card import Card
from assay.card.cost import speeds
from assay.card.judge import line
from assay.card.protocol import ANCHORS
from assay.card.question import Tier
from assay.card.running import ROUNDS, Runner
from assay.core.errors import UserError
from assay.core.executors.local import kept_workers
from assay.core.grouping import grouped
from assay.core.run import Numerics
from assay.report.progress import say
from assay.train.device import activate


def made(
    mine: Sequence[str], field: Asked, runner: Runner, look: Compute | None = None, disagreed: Sequence[str] = ()
) -> tuple[list[Card], Records]:
    """Run the battery for every mixer, and judge each of `mine` next to all others. `look` finds records elsewhere, and
    then nothing is computed and no speed is measured; `disagreed` are the questions whose anchors did not agree."""
    tier = runner.tier
    asked = {q.name: [*mine, *field[q.name]] for q in tier.questions}
    every = dict.fromkeys(chain(*asked.values()))
    shared = [word for word in every if word not in mine]  # a mixer of a file is known to this process alone
    compiles = look is None and runner.execution.backend == "triton"
    with kept_workers(), compiled(shared, runner.numerics) if compiles else nullcontext():
        # Every round is a plan of its own, for the same workers.
        found = battery(tier, asked, look or runner)
        answers = {q.name: {mixer: answer(tier, q, mixer, found) for mixer in asked[q.name]} for q in tier.questions}
        failing = grouped((each for own in answers.values() for each in own.values() if each.lost == "failed"), _whose)
        mine = _with_a_card(mine, failing, runner)
        scored = {name: [mixer for mixer, each in own.items() if not each.lost] for name, own in answers.items()}
        agreed = _agreed(scored, runner) if look is None else {}
    apart = {name for name, one in agreed.items() if not one.holds} | set(disagreed)
    timed = {}
    if look is None:
        say("timing a layer of each mixer on this machine")
        with activate(runner.numerics) as device:
            runs = [word for word in every if word not in failing]
            timed = speeds(runs, device, by_length=[word for word in (*mine, *ANCHORS) if word in runs])
    cards, ships = [], runner.read_shipped
    for mixer in mine:
        others = {name: [told for each, told in own.items() if each != mixer] for name, own in answers.items()}
        lines = []
        for q in tier.questions:
            own = (mixer, q.name) in ships
            ranked = [each for each in others[q.name] if q.name not in apart or ((each.mixer, q.name) in ships) is own]
            lines.append(line(answers[q.name][mixer], ranked, bounds(q, tier, found)))
        cards.append(Card(mixer, tier, lines, others, timed, tuple(agreed.values()), frozenset(ships)))
    return cards, found


def _whose(each: Answer) -> str:
    return each.mixer


def _with_a_card(mine: Sequence[str], failing: Mapping[str, Sequence[Answer]], runner: Runner) -> list[str]:
    """Return the mixers whose runs did not fail in every question, and say why the others have no card; if none is
    left, that is a UserError."""
    without = {word: own[0] for word in mine if len(own := failing.get(word, [])) == len(runner.tier.questions)}
    told = [
        f"every run of {word} failed, {each.failed}: `assay show {each.failed_run} --out {runner.execution.out}` has "
        "the whole error."
        for word, each in without.items()
    ]
    if len(without) == len(mine):
        raise UserError(" ".join(told))
    for each in told:
        say(f"no card: {each}")
    return [word for word in mine if word not in without]


@contextmanager
def compiled(words: Iterable[str], numerics: Numerics) -> Iterator["subprocess.Popen[bytes]"]:
    """Time layers of these mixers in a process beside while others train, so that Triton's cache has their kernels when
    they are timed: to compile them takes longer than that, most of it on the host. What fails there fails again where
    it is timed, and says so."""
    asked = [sys.executable, "-m", "assay.card.cost", numerics.device, numerics.backend, *words]
    beside = subprocess.Popen(asked, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield beside
        beside.wait()
    finally:
        beside.kill()
        beside.wait()


def shipped_answers(runner: Runner) -> tuple[Tier, Answers]:
    """Return the questions of which records ship, and every shipped mixer's answers; of a user's own text none ship."""
    every = {name: there for name, there in runner.field().items() if there}
    tier = replace(runner.tier, questions=tuple(q for q in runner.tier.questions if q.name in every))
    found = battery(tier, every, runner.only_shipped)
    return tier, {q.name: {mixer: answer(tier, q, mixer, found) for mixer in every[q.name]} for q in tier.questions}


def _agreed(asked: Asked, runner: Runner) -> dict[str, Agreement]:
    """Train the anchors here, in the questions where shipped records stand beside what was trained here, and compare.
    `asked` are the mixers that have a score."""
    kinds = {(name, (mixer, name) in runner.read_shipped) for name, mixers in asked.items() for mixer in mixers}
    plain = runner.plain
    mixed = tuple(q for q in plain.tier.questions if {(q.name, True), (q.name, False)} <= kinds)
    if not mixed:
        return {}
    plain = replace(plain, tier=replace(plain.tier, questions=mixed))
    here = replace(plain, own=True, title=f"round {len(ROUNDS)} of {len(ROUNDS)}, {ROUNDS[-1]}")
    return agreements(*shipped_answers(plain), here)
