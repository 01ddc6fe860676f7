"""The battery of attention methods follows from the flags of a command: which budgets are asked, and who is beside."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from assay.api import Execution, Session
from assay.attention import attention
from assay.attention.base import Prefix
from assay.card.method_card import MethodCard, line
from assay.card.method_page import page
from assay.card.methods import (
    BASELINES,
    DENSE,
    PREFIX,
    SHIPPED,
    DenseAgreement,
    Measured,
    MethodRunner,
    agreement,
    protocol_of,
    study_of,
)
from assay.card.request import Request, next_to
from assay.core.convert import construct
from assay.core.errors import UserError
from assay.core.plan import Plan
from assay.core.run import Record


def battery_of(request: Request, mine: Sequence[str]) -> "MethodBattery":
    if request.tier:
        raise UserError(f"--tier {request.tier} is for mixers: attention methods have one battery. Leave it out.")
    if request.budget is not None:
        raise UserError(
            "--budget is for mixers: all budgets of an attention method ride in one forward pass. Leave it out."
        )
    if request.seeds is not None:
        raise UserError("--seeds is for mixers: nothing is drawn where an attention method is asked. Leave it out.")
    if request.questions is not None:
        raise UserError("--questions is for mixers: an attention method has one line per budget. Leave it out.")
    if request.text is not None:
        raise UserError("--text is for mixers: attention methods have a text of their own. Leave it out.")
    if DENSE in mine:
        raise UserError("dense attention is what methods are compared with: give another one.")
    execution = construct(Execution, dict(request.placing), what="assay card")
    asked, by_protocol = [], _by_protocol(mine)
    _check_vs(request, by_protocol)
    for preset, words in by_protocol.items():
        runner = MethodRunner(preset, execution, request.compute, own=request.own)
        beside = [word for word in _field(request, runner) if word not in words]
        asked.append(Asked(runner, words, beside))
    found = MethodBattery(mine, tuple(asked), execution.out)
    return found.of_what_is_there() if request.stored else found


def _by_protocol(words: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for word in words:
        found.setdefault(protocol_of(word), []).append(word)
    return found


def _fits(word: str, preset: str) -> bool:
    """Return whether a protocol can ask a method: every method can be asked after a prefix, but one that cuts down a
    prefix cannot be asked without."""
    return preset == PREFIX or not isinstance(attention.parse(word), Prefix)


def _check_vs(request: Request, by_protocol: Mapping[str, Sequence[str]]) -> None:
    """Raise UserError for a word of --vs that stands beside none of the methods that are asked."""
    for word in request.vs:
        if not any(_fits(word, preset) for preset in by_protocol):
            mine = [each for words in by_protocol.values() for each in words]
            do = "does" if len(mine) == 1 else "do"
            raise UserError(f"{word} cuts down a prefix and {', '.join(mine)} {do} not: they are not compared.")


def _field(request: Request, runner: MethodRunner) -> list[str]:
    """Return the methods beside: those asked for that this protocol can ask, or all whose records ship; where none do,
    or everything is to be computed here, a few baselines."""
    if request.vs:
        return list(dict.fromkeys(attention.parse(word).label for word in request.vs if _fits(word, runner.preset)))
    return runner.field() or [attention.parse(word).label for word in BASELINES[runner.preset]]


@dataclass(frozen=True)
class Asked:
    """The methods of one protocol, and those beside."""

    runner: MethodRunner
    mine: Sequence[str]
    field: Sequence[str]


@dataclass(frozen=True)
class MethodBattery:
    """Three budgets of a language model, asked of attention methods."""

    mine: Sequence[str]
    asked: Sequence[Asked]
    out: Path
    notes: Sequence[str] = ()

    def outlook(self) -> str:
        return ""  # one pass, whose plan says it

    def made(self) -> list[MethodCard]:
        found = {card.name: card for asked in self.asked for card in _cards(asked)}
        return [found[word] for word in self.mine]

    def page(self, card: MethodCard, files: Mapping[str, str]) -> str:
        return page(card, files, self.notes)

    def records(self) -> list[Record]:
        return list({record.run.id: record for asked in self.asked for record in asked.runner.used.values()}.values())

    def ships_as(self) -> str:
        return SHIPPED

    def of_what_is_there(self) -> "MethodBattery":
        """Keep the methods beside whose records are stored or ship; the methods asked for need all of theirs."""
        kept, told = [], []
        for asked in self.asked:
            if lacking := [word for word in asked.mine if asked.runner.missing([word])]:
                raise UserError(f"the records of {', '.join(lacking)} are not all here: leave --stored out to compute.")
            out = [word for word in asked.field if asked.runner.missing([word])]
            kept.append(replace(asked, field=[word for word in asked.field if word not in out]))
            if out:
                beside = ", ".join(asked.mine)
                told.append(f"left out beside {beside}, since their records are not all here: {', '.join(out)}")
        return replace(self, asked=tuple(kept), notes=[*self.notes, *told])

    def plan(self) -> list[str]:
        """Say what would be computed here, and beside whom."""
        found = []
        for asked in self.asked:
            words, runner = [*asked.mine, *asked.field], asked.runner
            ships = [word for word in asked.field if runner.ships(word)]
            here = [word for word in asked.field if word not in ships]
            missing = runner.missing(words)
            study = study_of(runner.preset, asked.mine[0])
            planned = Session.of(Plan(study, tuple(missing)), runner.execution).describe() if missing else "none to run"
            slots = ", ".join(str(run) for run in dict.fromkeys(_slots(runner, asked.mine[0])))
            found.append(
                f"for {', '.join(asked.mine)}: {slots} slots, as lanes of one pass; "
                f"{next_to('method', ships, here, 'computed')}; {planned}"
            )
        return found


def _slots(runner: MethodRunner, word: str) -> list[int]:
    return [run.options["budget"]["slots"] for run in runner.runs(word) if run.options["budget"]["slots"]]


def _cards(asked: Asked) -> list[MethodCard]:
    """Judge each method next to all others of its protocol."""
    measured = asked.runner.measured([*asked.mine, *asked.field])
    agreed = _agreement([one for own in measured.values() for one in own])
    apart = agreed is not None and not agreed.holds
    cards, records = [], list(asked.runner.used.values())
    for word in asked.mine:
        others = {name: own for name, own in measured.items() if name != word}
        by_slots: dict[int, list[Measured]] = {}
        for own in others.values():
            for one in own:
                by_slots.setdefault(one.slots, []).append(one)
        lines = [
            line(mine, [one for one in by_slots.get(mine.slots, ()) if not apart or one.ships is mine.ships])
            for mine in measured[word]
        ]
        cards.append(MethodCard(word, asked.runner.preset, lines, by_slots, agreed, records))
    return cards


def _agreement(found: Sequence[Measured]) -> DenseAgreement | None:
    """Compare dense attention of here with the shipped one, where there are both."""
    here, there = (next((one.dense for one in found if one.ships is ships), None) for ships in (False, True))
    return None if here is None or there is None else agreement(here, there)
