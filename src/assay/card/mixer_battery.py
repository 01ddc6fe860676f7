"""The battery of mixers follows from the flags of a command: which questions are asked, and of which mixers beside."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import torch

from assay.card import protocol
from assay.card.anchors import first_trials
from assay.card.battery import Asked, Trial
from assay.card.card import Card
from assay.card.cost import LENGTH, Expected, expected, fixed_seconds, layer_of, seconds
from assay.card.making import made, shipped_answers
from assay.card.own_text import with_text
from assay.card.page import page
from assay.card.protocol import KEPT, SCREENING
from assay.card.question import Question, Tier
from assay.card.request import Request, next_to
from assay.card.running import Runner, placed, reader
from assay.core import shipped
from assay.core.convert import nearest
from assay.core.errors import UserError
from assay.core.estimate import duration
from assay.core.foreign import source_of
from assay.core.run import Record
from assay.mixers import mixers
from assay.mixers.base import replays
from assay.nn.random import stream
from assay.report.progress import say
from assay.tasks import tasks
from assay.train.device import activate
from assay.train.numerics import numerics_for

MINUTE = 60
"""A smaller budget may be a number that was meant as minutes."""


def runner_of(request: Request, mine: Sequence[str]) -> Runner:
    """Return what finds or computes the records of a tier; `mine` are the mixers that `--seeds` is for."""
    tier = with_seeds(protocol.TIERS[request.tier or protocol.DEFAULT], request.seeds, mine)
    if request.text is not None:
        tier = with_text(tier, request.text)
    if request.questions is not None:
        tier = _asking(tier, request.questions)
    if request.stored and request.own:
        raise UserError("--stored computes nothing, and --own-baselines computes the field: leave one of them out.")
    here = tier.device == "cpu" or numerics_for("auto").device == tier.device
    if request.stored and "device" not in request.placing and not here:
        # Records of another kind of device can be read here, though none can be computed.
        return replace(reader(tier), execution=placed(tier, {**request.placing, "device": "auto"}))
    if not here and "device" not in request.placing:
        ships = f"--stored reads the records that ship, as in `assay card delta_net --tier {tier.name} --stored`"
        way = ships if shipped.records(f"card.{tier.name}") else "none of its records ship"
        raise UserError(
            f"--tier {tier.name} trains on {tier.device}, which this machine does not have: {way}; --device cpu trains "
            "here, slowly."
        )
    return Runner(tier, placed(tier, request.placing), request.compute, own=request.own)


def with_seeds(tier: Tier, seeds: int | None, mine: Sequence[str]) -> Tier:
    """Return the tier with more seeds for some mixers."""
    if seeds is None or seeds == len(tier.seeds):
        return tier
    if not len(tier.seeds) < seeds <= protocol.SCREENING_SEED:
        least, most = len(tier.seeds), protocol.SCREENING_SEED
        raise UserError(
            f"--seeds {seeds}: the field has {least}, and rates are chosen with seed {most}; give {least} to {most}."
        )
    return replace(tier, more_seeds=dict.fromkeys(mine, seeds))


def _asking(tier: Tier, names: Sequence[str]) -> Tier:
    """Return the tier with some of its questions alone, in its own order."""
    known = [question.name for question in tier.questions]
    if unknown := [name for name in names if name not in known]:
        others = [other.name for other in protocol.TIERS.values() if unknown[0] in (q.name for q in other.questions)]
        hint = f" It is asked by --tier {' and '.join(others)}." if others else nearest(unknown[0], known)
        raise UserError(f"--tier {tier.name} has no question '{unknown[0]}'.{hint} It has {', '.join(known)}.")
    return replace(tier, questions=tuple(question for question in tier.questions if question.name in names))


def field_of(request: Request, mine: Sequence[str], runner: Runner) -> dict[str, list[str]]:
    """Return the mixers beside it, question by question: those asked for, or all whose records ship for this kind of
    device; where none do, the anchors, which are trained here."""
    given = dict.fromkeys(mixers.parse(word).label for word in request.vs)
    ships = {} if given or runner.own else runner.field()
    found = {q.name: given or ships.get(q.name) or protocol.ANCHORS for q in runner.tier.questions}
    return {name: [word for word in words if word not in mine] for name, words in found.items()}


def battery_of(request: Request, mine: Sequence[str]) -> "MixerBattery":
    runner = runner_of(request, mine)
    read = f"speed is not measured here: records of tier {runner.tier.name} come from a {runner.tier.device} device"
    told = f"language: of the text {request.text}, on which the field of it is trained here too"
    notes = [read] * bool(runner.as_computed) + [told] * bool(request.text) + _layout(mine)
    found = MixerBattery(mine, runner, field_of(request, mine, runner), notes)
    if request.stored:
        found = found.of_what_is_there()
    else:
        for question in runner.tier.questions:  # a text that is not here is told of now, not after hours of training
            tasks.parse(question.task).sample(1, stream(0, "is it here?"))
    return found if request.budget is None else found.within(request.budget)


def _layout(mine: Sequence[str]) -> list[str]:
    """Say what a mixer lacks that most of the field has, and what its models get instead. No note begins with a name:
    a page begins it with a capital."""
    plain = [word for word in mine if not getattr(mixers.parse(word), "conv", 1)]
    blind = [word for word in mine if not mixers.parse(word).tells_order()]
    replayed = [word for word in mine if _has_no_step(word)]
    told = []
    if plain:
        told.append(
            f"without assay's short convolution (conv=0): {', '.join(plain)}; most of the field has one, in front or "
            f"inside, and `{_typed(plain[0])}:conv=4` puts one in front"
        )
    if blind:
        told.append(f"blind to order: {', '.join(blind)}; models get a table of positions, but in parity")
    if replayed:
        told.append(
            f"without a `step`: {', '.join(replayed)}; the state is all tokens so far and grows with the length, and "
            "decoding is not measured"
        )
    return told


def _has_no_step(word: str) -> bool:
    with suppress(UserError):  # it runs on a GPU alone, or not for so few tokens
        return replays(layer_of(word, 1, LENGTH, torch.device("cpu"))[0])
    return False


def _typed(word: str) -> str:
    """Return what one types for the mixer: of a file, its path first."""
    source = source_of(type(mixers.parse(word)).__module__)
    return f"{source.path}:{word}" if source else word


@dataclass(frozen=True)
class MixerBattery:
    """The questions of a tier, asked of mixers."""

    mine: Sequence[str]
    runner: Runner
    field: Asked
    notes: Sequence[str] = ()
    _found: dict[Trial, Record] = dataclasses.field(default_factory=dict)
    _took: Mapping[str, Expected] | None = None
    """What every question is expected to take, where that was timed before some of them were left out."""
    _beside: float | None = None
    """And what the cards take beside their runs."""

    @property
    def out(self) -> Path:
        return self.runner.execution.out

    def made(self) -> list[Card]:
        elsewhere = self.runner.there if self.runner.as_computed else None
        cards, records = made(self.mine, self.field, self.runner, elsewhere)
        self._found.update(records)
        return cards

    def page(self, card: Card, files: Mapping[str, str]) -> str:
        return page(card, self._found, files, self.notes)

    def records(self) -> list[Record]:
        return list(self._found.values())

    def ships_as(self) -> str:
        return f"card.{self.runner.tier.name}"

    def of_what_is_there(self) -> "MixerBattery":
        """Keep the questions of which every record is stored or ships, and the mixers beside that have theirs."""
        tier = self.runner.tier

        def whole(mixer: str, question: str) -> bool:
            return not self.runner.known(mixer, question)[1]

        kept = tuple(q for q in tier.questions if all(whole(mixer, q.name) for mixer in self.mine))
        if not kept:
            names = {word.partition(":")[0] for word in self.mine}
            every = dict.fromkeys(chain(*self.runner.field().values()))
            others = [word for word in every if word.partition(":")[0] in names and word not in self.mine]
            if others:
                way = f"Those of {', '.join(others)} ship: ask for that, or leave --stored out to train."
            else:
                way = (
                    "Leave --stored out to train. Records belong to the exact text of a file, comments too, and runs "
                    "that failed count as missing."
                )
            raise UserError(f"no question has all its records for {', '.join(self.mine)}. {way}")
        out = [q.name for q in tier.questions if q not in kept]
        told = [f"left out, since their records are not all here: {', '.join(out)}"] if out else []
        beside = {q.name: [mixer for mixer in self.field[q.name] if whole(mixer, q.name)] for q in kept}
        absent = dict.fromkeys(word for q in kept for word in self.field[q.name] if word not in chain(*beside.values()))
        told += [f"not beside it, since their records are not here: {', '.join(absent)}"] if absent else []
        runner = replace(self.runner, tier=replace(tier, questions=kept))
        return replace(self, runner=runner, field=beside, notes=[*self.notes, *told])

    def within(self, budget: float) -> "MixerBattery":
        """Keep the questions that cost nothing, and in their order the others that are expected to fit; where none is
        left, the cheapest, and say that it may not fit."""
        took = self._expected()
        fixed = self._fixed(took)
        tier, left, kept = self.runner.tier, budget - fixed, list[str]()
        for name in took:
            if took[name].most <= max(0.0, left):
                kept.append(name)
                left -= took[name].most
        if not kept:
            kept = [min(took, key=lambda name: took[name].most)]
            given = duration(budget) + (f"; did you mean {budget:g}m?" if budget < MINUTE else "")
            say(f"{kept[0]} alone may take longer than the budget ({given}): {_spell(took[kept[0]])}")
            say("a card needs a question, so it is asked all the same")
        out = [name for name in took if name not in kept]
        told = [f"left out, to stay within the budget: {', '.join(out)}"] if out else []
        asked = replace(tier, questions=tuple(q for q in tier.questions if q.name in kept))
        runner = replace(self.runner, tier=asked)
        return replace(self, runner=runner, notes=[*self.notes, *told], _took=took, _beside=fixed)

    def plan(self) -> list[str]:
        """Say what would be run: the rounds of every question, and about how long they take here."""
        tier, took, found = self.runner.tier, self._expected(), []
        for question in tier.questions:
            told, beside = took[question.name], self.field[question.name]
            ships = [word for word in beside if not self.runner.own and self.runner.ships(word, question.name)]
            trained = [word for word in beside if word not in ships]
            rounds = [self._rounds(question)] * bool(told.most)
            parts = (*rounds, _spell(told), next_to("mixer", ships, trained, "trained"))
            found.append(f"{question.name}: {'; '.join(parts)}")
        if anchors := self._anchors_to_train():
            names = " and ".join(dict.fromkeys(trial.mixer for trial in anchors))
            found.append(f"anchors: {len(anchors)} runs of {names} or more, to see if shipped records compare here")
        return [*found, self._in_all(took)]

    def _rounds(self, question: Question) -> str:
        """Say how a mixer is asked: which rates for how long, and with how many seeds."""
        seeds, longer = len(self.runner.tier.seeds_of(self.mine[0])), question.goal is not None
        return (
            f"{len(question.rates)} rates for {question.steps // SCREENING:,} steps, {KEPT} or more for "
            f"{question.steps:,}, one with {seeds} seeds{', and longer where it does not reach the goal' * longer}"
        )

    def outlook(self) -> str:
        if self.runner.as_computed or self.runner.trains_together:
            return ""  # on a GPU to estimate it takes as long as a question
        took = self._expected()
        return self._in_all(took) if any(each.most for each in took.values()) else ""

    def _in_all(self, took: Mapping[str, Expected]) -> str:
        fixed = self._fixed(took)
        whole = Expected(*(fixed + sum(getattr(each, end) for each in took.values()) for end in ("least", "most")))
        busy = " in all, by a few steps timed now, if the machine stays as busy as it is" if whole.most else ""
        told = f"for {', '.join(self.mine)}: {_spell(whole)}{busy}"
        return f"{told}; {self.runner.tier.says}"

    def _fixed(self, took: Mapping[str, Expected]) -> float:
        """Return the seconds that the cards take beside their runs; 0 where there are none, and on a GPU, where to time
        the layers compiles their kernels."""
        if not any(each.most for each in took.values()) or self.runner.trains_together:
            return 0.0
        if self._beside is not None:
            return self._beside
        with activate(self.runner.numerics) as device:
            every = dict.fromkeys([*self.mine, *chain(*self.field.values())])
            return fixed_seconds(self.mine, list(every), device)

    def _expected(self) -> dict[str, Expected]:
        """Return the seconds that each question will take here, from a few training steps, over the workers there are:
        of every mixer that is asked, and of the anchors where shipped records are compared, and only for runs that are
        neither stored nor shipped."""
        runner = self.runner
        if self._took is not None:
            return {q.name: self._took[q.name] for q in runner.tier.questions}
        lacking = {
            q.name: {
                mixer: state for mixer in (*self.mine, *self.field[q.name]) if (state := runner.known(mixer, q.name))[1]
            }
            for q in runner.tier.questions
        }
        anchors = self._anchors_to_train()
        if not any(lacking.values()) and not anchors:
            return dict.fromkeys(lacking, Expected(0.0, 0.0))  # also where the device of the records is not here
        say("timing a few steps of every question and mixer that is to be trained")
        with activate(runner.numerics) as device:
            # A round of one question and one mixer has about as many runs as rates are kept, or seeds.
            most = max(KEPT * sum(map(len, lacking.values())), len(anchors))
            at_once = 1 if runner.trains_together else min(most, runner.execution.workers or os.cpu_count() or 1)
            found = {
                q.name: [expected(runner.tier, q, mixer, device, *state) for mixer, state in lacking[q.name].items()]
                for q in runner.tier.questions
            }
            for question, mixer in dict.fromkeys((trial.question, trial.mixer) for trial in anchors):
                own = [trial for trial in anchors if (trial.question, trial.mixer) == (question, mixer)]
                taken = seconds(runner.tier, runner.tier.question(question), mixer, device, own)
                found[question].append(Expected(taken, taken))
        return {
            name: Expected(sum(each.least for each in told) / at_once, sum(each.most for each in told) / at_once)
            for name, told in found.items()
        }

    def _anchors_to_train(self) -> list[Trial]:
        """Return the anchors' runs that are trained here before shipped records are compared, less stored ones."""
        runner = self.runner

        def mixed(question: str) -> bool:
            words = (*self.mine, *self.field[question])
            return len({not runner.own and runner.ships(word, question) for word in words}) == 2

        plain = runner.plain
        asked = tuple(q for q in plain.tier.questions if mixed(q.name))
        if not asked:
            return []
        trials = first_trials(*shipped_answers(replace(plain, tier=replace(plain.tier, questions=asked))))
        there = plain.stored(trials)
        return [trial for trial in trials if trial not in there]


def _spell(expected: Expected) -> str:
    """Say how long something takes: `50 s to 2 min`, or that it is there."""
    if not expected.most:
        return "nothing to compute"
    least, most = duration(expected.least), duration(expected.most)
    return f"{least} to {most}" if least != most else f"about {most}"
