"""A card says what one mixer can do, as data and as text: a line per question, what it costs, verdicts in words."""

import textwrap
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from assay.card import holding, protocol
from assay.card.anchors import Agreement
from assay.card.battery import Answer
from assay.card.cost import WIDTH, Speed
from assay.card.judge import Line
from assay.card.protocol import ANCHORS, DEFAULT, LANGUAGE, VERSION
from assay.card.question import Tier
from assay.card.request import plural
from assay.card.wording import headline, in_words, matching_of
from assay.core.grouping import grouped
from assay.core.words import NAMED, named
from assay.metrics.intervals import Interval
from assay.report.section import Table, Value
from assay.report.text import render
from assay.studies.icl.report import BYTES

DAGGER = "†"
"""Stands behind a mixer whose records ship with assay."""
ALONE = (
    "how much better (+) or worse (-) this one is, with the interval of that comparison alone; ranks and verdicts hold "
    "for all comparisons of a row at once (Holm)"
)
"""How to read the difference to the best of the field."""
APART = 1.5
"""Of rounds whose ratios differ by more than this factor, no ratio is told."""
ALIKE = 0.1
"""States that differ by at most this share count as equal."""


@dataclass(frozen=True)
class Card:
    """A card says what one mixer can do, next to the field."""

    mixer: str
    tier: Tier
    lines: Sequence[Line]
    field: Mapping[str, Sequence[Answer]]
    """The other mixers' answers, by question."""
    speeds: Mapping[str, Speed]
    """Of this mixer and of the field, measured here."""
    agreements: Sequence[Agreement] = ()
    """How the anchors came out here, where shipped records were compared with what was trained here."""
    shipped: Set[tuple[str, str]] = frozenset()
    """The mixers and questions whose records are shipped ones."""

    form: ClassVar[str] = ".2f"
    LEAD: ClassVar[tuple[str, ...]] = (
        "question", "score", "floor", "ceiling", "rank", "rate", "best of the field",
    )  # fmt: skip

    @property
    def name(self) -> str:
        return self.mixer

    @property
    def scores(self) -> dict[str, Value]:
        return {each.name: each.answer.lost or each.interval for each in self.lines}

    @property
    def stem(self) -> str:
        """The name of its files: that of the default tier and its own text is the mixer's alone."""
        told = ("" if self.tier.name == DEFAULT else self.tier.name, Path(self.tier.text).name)
        return ".".join(filter(None, (self.mixer, *told)))

    @property
    def part(self) -> list[str]:
        """The questions that it has, where it lacks some of its tier's."""
        names = [each.name for each in self.lines]
        return [] if names == [each.name for each in protocol.TIERS[self.tier.name].questions] else names

    @property
    def failed(self) -> list[str]:
        """The questions without a score because its runs failed."""
        return [each.name for each in self.lines if each.answer.lost == "failed"]

    @property
    def ranks(self) -> dict[str, str]:
        """The places it may have, by question."""
        return {each.answer.question.name: each.rank for each in self.lines}

    def row(self, line: Line) -> dict[str, Any]:
        """The line of a question, as a table shows it."""
        best, name = line.best, line.answer.question.name
        return {
            "question": name,
            "score": self.scores[name],
            "floor": line.bounds.floor,
            "ceiling": line.bounds.ceiling,
            "rank": line.rank or "-",
            "rate": "-" if line.answer.lost else f"{line.answer.rate:g}{' edge' if line.answer.at_edge else ''}",
            "best of the field": f"{self.marked(best.other, name)} {signed(best.gain)}" if best else "-",
        }

    def marked(self, mixer: str, question: str = "") -> str:
        """Return a mixer's name, with a dagger where its records of the question, or of any, are shipped ones."""
        ships = any(each == mixer and question in ("", asked) for each, asked in self.shipped)
        return f"{mixer} {DAGGER}" if ships else mixer

    @property
    def footnote(self) -> str:
        return f"{DAGGER} records that ship with assay, trained on other machines" if self.shipped else ""

    def verdicts(self) -> list[str]:
        """Return the verdicts as sentences; where a question is answered by every seed, also beside whose state."""
        return ["; ".join(filter(None, (told, self._per_byte(each)))) for told, each in
                zip(in_words(self.lines), self.lines, strict=True)]  # fmt: skip

    def _per_byte(self, line: Line) -> str:
        """Say whose state is as large, and whose is larger, among those that do as much: mixers that are not told
        apart, whose seeds all reach the goal, this one's too."""
        mine = BYTES * line.answer.sizes.get("state_scalars", 0)
        theirs = {
            each.mixer: BYTES * each.sizes["state_scalars"]
            for each in self.field[line.answer.question.name]
            if each.reached and each.sizes.get("state_scalars") and each.mixer in line.differences
            and line.differences[each.mixer].standing == "level"
        }  # fmt: skip
        if not (mine and line.answer.reached and line.certified):
            return ""
        alike = [name for name, size in theirs.items() if abs(mine - size) <= ALIKE * size]
        larger = {name: size for name, size in theirs.items() if mine < (1 - ALIKE) * size}
        told = [f"about as many as {named(alike)}"] if alike else []
        if larger:
            least = f"{min(larger.values()):,}{' or more' * (len(larger) > 1)}"
            told.append(f"fewer than {named(list(larger))} ({least})")
        layers = line.answer.question.model.get("num_layers", 2)
        carries = "it carries" if layers == 1 else f"its {layers} layers carry"
        return f"{carries} {mine:,} bytes of state, {', and '.join(told)}" if told else ""

    def headline(self) -> str:
        """Say in one sentence how many of the field are told better, question by question."""
        return headline(self.lines, "mixers that beat it at equal training", "in")

    def to_json(self) -> dict[str, Any]:
        return {
            "mixer": self.mixer,
            "protocol": VERSION,
            "tier": self.tier.name,
            **({"text": self.tier.question(LANGUAGE.name).task} if self.tier.text else {}),
            "seeds": list(self.tier.seeds_of(self.mixer)),
            "shipped": {
                each.answer.question.name: sorted(
                    mixer for mixer, asked in self.shipped if asked == each.answer.question.name
                )
                for each in self.lines
            },
            "questions": {each.answer.question.name: _line_json(each) for each in self.lines},
            "size": dict(self._sized.answer.sizes),
            "capacity": self.capacity(),
            "speed": {name: asdict(found) for name, found in self.speeds.items()},
            "anchors": {
                each.question: {"gaps": dict(each.gaps), "p": each.p, "agree": each.holds} for each in self.agreements
            },
            "headline": self.headline(),
            "verdicts": self.verdicts(),
        }

    def text(self, width: int = 118) -> str:
        """Return the screen: a table, how to read it, the size, the verdicts."""
        head = (
            f"card of {self.mixer} (protocol {VERSION}, {self.tier.says}, {len(self.tier.seeds_of(self.mixer))} seeds)"
        )
        rows = tuple({key: value for key, value in self.row(each).items() if key != "rate"} for each in self.lines)
        told = [self.legend(), *self.costs(), *self.comparable()]
        table = Table("card", rows, {"score": self.form})
        return screen(head, self.headline(), table, told=told, verdicts=self.verdicts(), width=width)

    def legend(self) -> str:
        lower = [q for each in self.lines if (q := each.answer.question).lower]
        less = f" ({'; '.join(f'{q.name}: {q.unit}' for q in lower)}, less is better)" if lower else ""
        note = f"; {self.footnote}" if self.footnote else ""
        return (
            f"score: share of right answers{less}, mean over seeds with its 95 % interval, by how seeds vary over the "
            "field; floor: a guess; ceiling: the best possible; rank: the places it may have; best of the field: "
            f"{ALONE}{note}"
        )

    def comparable(self) -> list[str]:
        """Say which of the field's records are shipped ones, and whether this machine may be compared with them."""
        if not self.agreements:
            return []
        apart = [str(each) for each in self.agreements if not each.holds]
        mixers = {mixer for mixer, _ in self.shipped}
        told = f"field: records of {plural(len(mixers), 'mixer')} ship with assay. "
        if apart:
            told += f"Not ranked where the anchors, trained again here, are not shown to agree: {'; '.join(apart)}. "
        kept = [each for each in self.agreements if each.holds]
        if kept:
            told += f"The anchors, trained again here, agree: {'; '.join(map(str, kept))}. "
        margins = grouped(
            [each for each in kept if not each.exact], lambda each: self.tier.question(each.question).margin
        )
        if margins:
            names = {margin: ", ".join(each.question for each in own) for margin, own in margins.items()}
            least = "; ".join(f"{margin:g} in {own}" for margin, own in names.items())
            told += f"So this machine shifts scores by less than {least}; a difference to a shipped row that is "
            told += "smaller than that may come from the machine"
            near = [f"{name} ({named(others)})" for each in kept if (others := self._near(name := each.question))]
            told += f": so may those in {'; '.join(near)}." if near else "."
        return [told.strip()]

    def _near(self, question: str) -> list[str]:
        """Name the shipped rows that are told apart by less than this machine may shift a score."""
        margin = self.tier.question(question).margin
        differences = next(line.differences for line in self.lines if line.name == question)
        return [
            each.other
            for each in differences.values()
            if each.standing != "level" and abs(each.interval.mean) < margin and (each.other, question) in self.shipped
        ]

    def costs(self) -> list[str]:
        """Say how large it is and how fast here, beside the field."""
        sizes = self._sized.answer.sizes
        said = []
        if sizes:
            name, own = self._sized.name, sizes["layer_params"]
            theirs = [each.sizes["layer_params"] for each in self.field[name] if "layer_params" in each.sizes]
            among = f" (the field's {min(theirs):,} to {max(theirs):,})" if theirs else ""
            states = [BYTES * each.sizes["state_scalars"] for each in self.field[name] if "state_scalars" in each.sizes]
            carried = f" (the field's {min(states):,} to {max(states):,})" if states else ""
            said.append(
                f"size, of the layer for {name}: {own:,} parameters{among}; {BYTES * sizes['state_scalars']:,} bytes "
                f"of state{carried}, in float32, which a sequence carries from token to token; "
                f"{sizes['flops_per_token']:,.0f} FLOPs per token"
            )
            said += [each.strip() for each in matching_of(self.lines)]
        said += self.capacity()
        timed = [*self._speed("trained", "forward and backward"), *self._speed("decoded", "token by token")]
        return [*said, *timed, *self._kept()]

    @property
    def _sized(self) -> Line:
        """The first question in which its layer was counted."""
        return next((each for each in self.lines if each.answer.sizes), self.lines[0])

    def capacity(self) -> list[str]:
        """Say how many pairs it holds, and how many bits per byte of state."""
        asked = [(each, [one for one in self.field[each.name] if one.comparable]) for each in self.lines]
        return [said for each, field in asked if (said := holding.told(each.answer, *field, final=each.certified))]

    def _speed(self, way: str, how: str) -> list[str]:
        """Say how fast one layer is trained or decoded here, and how many times as fast as the anchors and others, from
        the slowest to the fastest round; of rounds that lie further apart than APART only these two."""
        timed = {name: each for name, each in self.speeds.items() if getattr(each, way)}
        if self.mixer not in timed:
            return []
        mine, others = timed[self.mixer], [name for name in self._others() if name in timed]
        beside = ", ".join(_times(mine.ratio(timed[name], way), name) for name in others[:NAMED])
        told = f"{way} on this machine ({how}, one layer of width {WIDTH}): {getattr(mine, way):,.0f} tokens/s"
        return [f"{told}, which is {beside}" if beside else told]

    def _kept(self) -> list[str]:
        """Say how many bytes a layer keeps for the backward pass, at each length, beside the anchors."""
        mine = self.speeds[self.mixer].kept if self.mixer in self.speeds else {}
        parts = []
        for length, size in mine.items():
            theirs = {name: self.speeds[name].kept.get(length) for name in self._others()}
            beside = ", ".join(f"{_ratio(size / its)} x {name}" for name, its in theirs.items() if its)
            parts.append(f"{size / 1000:.3g} kB at {length:,} tokens{f' ({beside})' if beside else ''}")
        return [f"kept for the backward pass, per token: {'; '.join(parts)}"] if parts else []

    def _others(self) -> list[str]:
        """The others that were measured, the anchors first."""
        named = dict.fromkeys(name for name in (*ANCHORS, *self.speeds) if name in self.speeds)
        return [name for name in named if name != self.mixer]


def _times(ratio: Interval, name: str) -> str:
    """`0.62 x gru (0.55 to 0.7)`; where rounds lie far apart, `0.5 to 1.1 x gru`."""
    low, high = ratio.low, ratio.high
    if low is None or high is None or low == high:
        return f"{_ratio(ratio.mean)} x {name}"
    span = f"{_ratio(low)} to {_ratio(high)}"
    return f"{span} x {name}" if high > APART * low else f"{_ratio(ratio.mean)} x {name} ({span})"


def _ratio(value: float) -> str:
    """`0.62`, `37`, `256`: two digits, and no power of ten."""
    return f"{value:.2g}" if value < 99.5 else f"{value:,.0f}"


def screen(head: str, short: str, table: Table, *, told: Sequence[str], verdicts: Sequence[str], width: int) -> str:
    """Return a card of any kind as text: what it is of and in short, a table, how to read it, the verdicts."""

    def wrapped(parts: Sequence[str], mark: str = "") -> list[str]:
        every = (textwrap.wrap(each, width, initial_indent=mark, subsequent_indent="  ") for each in parts)
        return [line for lines in every for line in lines]

    top = [head, *wrapped([short]), "", render(table, width)]
    return "\n".join([*top, "", *wrapped(told), "", *wrapped(verdicts, "- ")])


def signed(interval: Interval, form: str = ".2f") -> str:
    """A difference in brackets: `(-0.27 ±0.18)`."""
    half = (interval.high - interval.low) / 2 if interval.high is not None and interval.low is not None else 0.0
    return f"({interval.mean:+z{form}} ±{half:{form}})"


def _line_json(line: Line) -> dict[str, Any]:
    answer = line.answer
    return {
        "scores": {} if answer.lost else {str(seed): value for seed, value in answer.scores.items()},
        "interval": None if answer.lost else asdict(line.interval),
        "deviation": line.deviation if line.freedom else 0.0,  # unknown, which JSON has no infinity for
        "freedom": line.freedom,
        **({"paired": {"deviation": line.paired[0], "freedom": line.paired[1]}} if line.paired else {}),
        "floor": line.bounds.floor,
        "ceiling": line.bounds.ceiling,
        "rate": None if answer.lost else answer.rate,
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
        "certificate": [str(part) for part in line.parts],
        "certified": line.certified,
    }
