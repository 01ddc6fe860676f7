"""A card as data and as text: one line per question, what it costs, and the verdicts in words."""

import textwrap
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from assay.card.anchors import Agreement
from assay.card.battery import Answer
from assay.card.cost import Speed
from assay.card.judge import NAMED, Line, in_words, matching_of
from assay.card.protocol import ANCHORS, VERSION, Tier
from assay.metrics.intervals import Interval
from assay.report.section import Table
from assay.report.text import render
from assay.studies.icl.report import BYTES


@dataclass(frozen=True)
class Card:
    """What one mixer can do, next to the field."""

    mixer: str
    tier: Tier
    lines: Sequence[Line]
    field: Mapping[str, Sequence[Answer]]
    """The other mixers' answers, by question."""
    speeds: Mapping[str, Speed]
    """Of this mixer and of the field, measured here."""
    agreements: Sequence[Agreement] = ()
    """How the anchors came out here, where shipped records were compared with what was trained here."""
    lent: Set[str] = frozenset()
    """The mixers whose records are shipped ones."""

    LEAD: ClassVar[tuple[str, ...]] = (
        "question", "score", "floor", "ceiling", "rank", "rate", "best of the field",
    )  # fmt: skip

    @staticmethod
    def row(line: Line) -> dict[str, Any]:
        """The line of a question, as a table shows it."""
        best = line.best
        return {
            "question": line.answer.question.name,
            "score": line.interval,
            "floor": line.bounds.floor,
            "ceiling": line.bounds.ceiling,
            "rank": line.rank or "-",
            "rate": f"{line.answer.rate:g}{' edge' if line.answer.at_edge else ''}",
            "best of the field": f"{best.other} {_signed(best.interval)}" if best else "-",
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "mixer": self.mixer,
            "protocol": VERSION,
            "tier": self.tier.name,
            "seeds": list(self.tier.seeds),
            "shipped": sorted(self.lent),
            "questions": {each.answer.question.name: _line_json(each) for each in self.lines},
            "size": dict(self.lines[0].answer.sizes),
            "speed": {name: asdict(found) for name, found in self.speeds.items()},
            "anchors": {
                each.question: {"gaps": dict(each.gaps), "p": each.p, "agree": each.holds} for each in self.agreements
            },
            "verdicts": in_words(self.lines),
        }

    def text(self, width: int = 118) -> str:
        """Return the screen: a table, the size, the verdicts."""
        head = f"card of {self.mixer} (protocol {VERSION}, {self.tier.says}, {len(self.tier.seeds)} seeds)"
        rows = tuple({key: value for key, value in self.row(each).items() if key != "rate"} for each in self.lines)
        table = render(Table("card", rows, {"score": ".2f"}), width)
        verdicts = [
            textwrap.fill(sentence, width, initial_indent="- ", subsequent_indent="  ")
            for sentence in in_words(self.lines)
        ]
        return "\n".join([head, "", table, "", *self.costs(), *self.comparable(width), "", *verdicts])

    def comparable(self, width: int = 118) -> list[str]:
        """Say which of the field's records are shipped ones, and whether this machine may be compared with them."""
        if not self.agreements:
            return []
        apart = [str(each) for each in self.agreements if not each.holds]
        told = f"field: records of {len(self.lent)} mixers ship with assay. "
        if apart:
            told += f"Not ranked where the anchors, trained again here, are not shown to agree: {'; '.join(apart)}. "
        if kept := [str(each) for each in self.agreements if each.holds]:
            told += f"The anchors, trained again here, agree: {'; '.join(kept)}."
        return textwrap.wrap(told, width, subsequent_indent="  ")

    def costs(self) -> list[str]:
        sizes = self.lines[0].answer.sizes
        said = []
        if sizes:
            name = self.lines[0].answer.question.name
            theirs = [each.sizes["params"] for each in self.field[name] if "params" in each.sizes]
            among = f", the field {min(theirs):,} to {max(theirs):,}" if theirs else ""
            said.append(
                f"size ({name}): {sizes['params']:,} parameters{among}; {BYTES * sizes['state_scalars']:,} bytes of "
                f"state, {sizes['flops_per_token']:,.0f} FLOPs per token"
            )
            said += matching_of(self.lines)
        mine = self.speeds.get(self.mixer)
        if mine:
            said.append(f"speed here: {mine.trained:,.0f} tokens/s trained, {mine.decoded:,.0f} decoded, one layer")
            times = {name: mine.trained / other.trained for name, other in self.speeds.items() if name != self.mixer}
            chosen = list(dict.fromkeys(name for name in (*ANCHORS, *times) if name in times))[:NAMED]
            beside = [f"{times[name]:.2g} times {name}'s" for name in chosen]
            said += [f"  trained, that is {', '.join(beside)}"] if beside else []
        return said


def _signed(interval: Interval) -> str:
    half = (interval.high - interval.low) / 2 if interval.high is not None and interval.low is not None else 0.0
    return f"({interval.mean:+.2f} ±{half:.2f})"


def _line_json(line: Line) -> dict[str, Any]:
    answer = line.answer
    return {
        "scores": {str(seed): value for seed, value in answer.scores.items()},
        "interval": asdict(line.interval),
        "deviation": line.deviation,
        "freedom": line.freedom,
        "floor": line.bounds.floor,
        "ceiling": line.bounds.ceiling,
        "rate": answer.rate,
        "rate_at_edge": answer.at_edge,
        "rates_that_work": answer.window,
        "comparable": answer.comparable,
        "matched": answer.matched,
        "diverged": answer.diverged,
        "after_twice_the_training": {str(seed): value for seed, value in answer.longer.items()},
        "rank": line.rank,
        "lower_is_better": answer.question.lower,
        "differences": {name: asdict(each) | {"standing": each.standing} for name, each in line.differences.items()},
        "verdict": line.verdict,
        "certified": line.certified,
    }
