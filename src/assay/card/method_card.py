"""The card of an attention method has a line per budget, and says who of the field loses less at equal cost.

Two methods are compared at one budget where they hold as many bytes and leave out as much of attention: a method that
holds everything and one that holds 32 keys are no comparison. The difference is paired over documents (bootstrap), and
told after Holm over those that are compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import stdev
from typing import Any, ClassVar

from assay.card.card import ALONE, DAGGER, screen, signed
from assay.card.judge import Compared, Difference
from assay.card.methods import AGREE, DENSE, ONLINE, PREFIX, VERSION, DenseAgreement, Measured
from assay.card.wording import headline, told_apart
from assay.core.run import Record
from assay.core.words import named
from assay.metrics.bootstrap import ratio_difference, ratio_difference_p
from assay.metrics.intervals import Interval, holm
from assay.report.section import Table, Value
from assay.report.text import with_interval
from assay.studies.perplexity.cells import error, facts, sums
from assay.studies.perplexity.claims import EQUAL

SCREEN = ("budget", "loss above dense", "recall", "KV kB held", "rank", "best of the field")
"""The columns that fit a screen; the page has all."""
FORMATS = {"loss above dense": ".3f", "recall": ".2f", "KV kB held": ".0f", "left out": ".2f"}


@dataclass(frozen=True)
class BudgetLine(Compared):
    """One budget on the card."""

    mine: Measured
    differences: Mapping[str, Difference]
    """To every method that costs as much: in bytes held and in attention left out."""
    uneven: Mapping[str, Difference] = field(default_factory=dict)
    """To methods that cost more in one and no less in the other, or less and no more: they are not ranked, but one that
    costs less and loses less is better all the same."""
    cheaper: frozenset[str] = frozenset()
    """Those of the uneven ones that cost less."""
    beyond: Sequence[str] = ()
    """Methods of this budget that hold more and leave out more, or less of both: not compared."""

    @property
    def name(self) -> str:
        return f"k={self.mine.slots}"

    @property
    def above(self) -> Interval:
        """Nats per token above dense attention."""
        return above(self.mine)


def above(one: Measured, total: str = "nll", count: str = "tokens") -> Interval:
    """Return the loss above dense attention, paired over documents: of all tokens, or of those that were recalled."""
    return ratio_difference(*sums(one.cell, total, count), *sums(one.dense, total, count))


def recall(one: Measured) -> Interval | None:
    """Return the loss above dense attention where a token could be looked up in the context."""
    (hits,) = sums(one.cell, "hits")
    return above(one, "hit_nll", "hits") if sum(hits) else None


def line(mine: Measured, others: Sequence[Measured]) -> BudgetLine:
    """Compare one method with the field at one budget. Rows that failed or were refused say nothing."""
    if mine.error:
        return BudgetLine(mine, {})
    there = [each for each in others if not each.error]
    less = {each.method for each in there if _costs_no_more(each, mine)}
    more = {each.method for each in there if _costs_no_more(mine, each)}
    level = [each for each in there if each.method in less & more]
    uneven = [each for each in there if each.method in less ^ more]
    beyond = tuple(each.method for each in there if each.method not in less | more)
    return BudgetLine(mine, differences(mine, level), differences(mine, uneven), frozenset(less - more), beyond)


def _costs_no_more(one: Measured, other: Measured) -> bool:
    """Return whether a method holds no more bytes than another, to 2 %, and leaves out as much of attention, to .02."""
    return one.held <= (1 + EQUAL) * other.held and one.left_out >= other.left_out - EQUAL


def differences(
    mine: Measured, others: Sequence[Measured], total: str = "nll", count: str = "tokens"
) -> dict[str, Difference]:
    """Return the paired difference to each, of all tokens or of those that were recalled, told after Holm over all."""
    found: dict[str, tuple[Interval, float, float]] = {}
    for other in others:
        both = (*sums(mine.cell, total, count), *sums(other.cell, total, count))
        gaps = [a / n - b / m for a, n, b, m in zip(*both, strict=True) if n and m]
        found[other.method] = ratio_difference(*both), ratio_difference_p(*both), _deviation(gaps)
    adjusted = holm({name: p for name, (_, p, _) in found.items()})
    return {
        name: Difference(name, interval, adjusted[name], deviation, lower=True)
        for name, (interval, _, deviation) in found.items()
    }


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation between documents; 0 of a single one, which has no degree of freedom."""
    return stdev(values) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class MethodCard:
    """The card says what a language model loses with one attention method, next to the field."""

    name: str
    preset: str
    lines: Sequence[BudgetLine]
    field: Mapping[int, Sequence[Measured]]
    """The other methods by slots."""
    agreement: DenseAgreement | None
    """How dense attention came out here, where shipped records stand beside what was computed here."""
    records: Sequence[Record]

    form: ClassVar[str] = FORMATS["loss above dense"]

    @property
    def scores(self) -> dict[str, Value]:
        """Nats per token above dense attention: less is better."""
        return {each.name: each.mine.error or each.above for each in self.lines}

    @property
    def failed(self) -> list[str]:
        """The budgets in which a run of it failed; one that it refuses is no failure."""
        return [each.name for each in self.lines if any(r.status == "failed" for r in each.mine.cell.records)]

    @property
    def stem(self) -> str:
        """The name of its files: a mixer may have the same name."""
        return f"{self.name}.{ONLINE}"

    @property
    def part(self) -> tuple[str, ...]:
        """Nothing: it is always whole."""
        return ()

    @property
    def ranks(self) -> dict[str, str]:
        return {each.name: each.rank for each in self.lines}

    @property
    def shipped(self) -> set[str]:
        """The methods whose records are shipped ones."""
        every = [*(each.mine for each in self.lines), *(one for own in self.field.values() for one in own)]
        return {each.method for each in every if each.ships}

    def marked(self, method: str) -> str:
        return f"{method} {DAGGER}" if method in self.shipped else method

    def row(self, each: BudgetLine) -> dict[str, Value]:
        """The line of a budget, as a table shows it."""
        mine, best = each.mine, each.best
        if mine.error:
            return {"budget": each.name, "loss above dense": "no number", "recall": None, "KV kB held": None,
                    "left out": None, "rank": "-", "best of the field": "-"}  # fmt: skip
        told = f"{self.marked(best.other)} {signed(best.gain, '.3f')}" if best else "-"
        return {
            "budget": each.name, "loss above dense": each.above, "recall": recall(mine),
            "KV kB held": mine.held / 1000, "left out": mine.left_out, "rank": each.rank or "-",
            "best of the field": told,
        }  # fmt: skip

    @property
    def setting(self) -> str:
        """`smollm2-135m, 512 tokens of speeches, 24 documents`."""
        cell = self.lines[0].mine.cell
        options, told = cell.options, self.lines[0].mine
        documents = len(set(facts(told.dense, "documents"))) if not error(told.dense) else 0
        half = ", the second half after a prefix that is cut down" if self.preset == PREFIX else ""
        return (
            f"{options['model']['name']}, {options['context']} tokens of {options['dataset']['name']}{half}, "
            f"{documents} documents"
        )

    def text(self, width: int = 118) -> str:
        """Return the screen: a table, how to read it, the verdicts."""
        head = f"card of {self.name} (methods, protocol {VERSION}; {self.setting})"
        rows = [{key: value for key, value in self.row(each).items() if key in SCREEN} for each in self.lines]
        for row in rows:  # its interval is on the page
            row["recall"] = row["recall"].mean if isinstance(row["recall"], Interval) else None
        table = Table("card", tuple(rows), FORMATS)
        told = [self.legend(), *self.comparable()]
        return screen(head, self.headline(), table, told=told, verdicts=self.verdicts(), width=width)

    def headline(self) -> str:
        """Say in one sentence how many of the field are told better, budget by budget."""
        return headline(self.lines, "methods that beat it at equal cost", "at")

    def legend(self) -> str:
        note = f"; {DAGGER} records that ship with assay, computed on another machine" if self.shipped else ""
        return (
            "loss above dense: nats per token more than dense attention, with its 95 % interval (bootstrap over "
            "documents, paired); recall: the same of tokens that could be looked up in the context; KV kB held: keys "
            "and values of a sequence; rank: the places it may have among methods of this budget that cost as much: as "
            f"many bytes held, and as much of attention left out, to {EQUAL:.0%}; best of the field: {ALONE}{note}"
        )

    def comparable(self) -> list[str]:
        """Say whether what was computed here may be compared with shipped records."""
        if self.agreement is None:
            return []
        if self.agreement.gap is None:
            return [f"not ranked against shipped records: {self.agreement.why}"]
        gap = f"by up to {self.agreement.gap:.1g} nats per token in a document"
        if self.agreement.holds:
            return [f"dense attention computed here agrees with the shipped record, {gap}"]
        return [
            f"not ranked against shipped records: dense attention computed here differs from its own {gap}, more than "
            f"{AGREE:g}"
        ]

    def verdicts(self) -> list[str]:
        return [self._verdict(each) for each in self.lines]

    def _verdict(self, each: BudgetLine) -> str:
        slots = f"{each.mine.slots} slots of {each.mine.cell.options['context']} tokens"
        if self.preset == PREFIX:
            slots = f"{each.mine.slots} keys of a prefix of {each.mine.cell.options['context'] // 2} tokens"
        if each.mine.error:
            return f"with {slots}: no number, {each.mine.error}"
        ranked = told_apart(each) or [f"not ranked: {self._unranked(each)}"]
        return "; ".join([f"with {slots} it {_loses(each.above)}", *ranked, *_all_the_same(each)])

    def _unranked(self, each: BudgetLine) -> str:
        """Say why a line has no rank."""
        if each.uneven or each.beyond:
            return "no method costs as much"
        if self.agreement is not None and not self.agreement.holds:
            return "shipped records are not comparable here"
        return "no other method has a number at this budget"

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.name,
            "protocol": f"methods {VERSION}",
            "tier": self.preset,
            "setting": self.setting,
            "shipped": sorted(self.shipped),
            "dense": None if self.agreement is None else asdict(self.agreement) | {"agree": self.agreement.holds},
            "questions": {each.name: _line_json(each) for each in self.lines},
            "headline": self.headline(),
            "verdicts": self.verdicts(),
        }


def _all_the_same(each: BudgetLine) -> list[str]:
    """Say whom it beats although it costs less, and who beats it although they cost less."""
    by_loss = sorted(each.uneven.values(), key=lambda one: one.gain.mean)
    beaten = [one.other for one in by_loss if one.standing == "above" and one.other not in each.cheaper]
    beating = [one.other for one in by_loss if one.standing == "below" and one.other in each.cheaper]
    told = [f"loses more than {named(beating)} at a higher cost"] if beating else []
    return [*told, f"loses less than {named(beaten)} at a lower cost"] if beaten else told


def _loses(interval: Interval) -> str:
    """Say how much is lost, or that it is not told from nothing."""
    told = f"{with_interval(interval, '.3f')} nats per token"
    if interval.low is None or interval.high is None:
        return f"loses {told}; too few documents for an interval"
    if interval.low <= 0 <= interval.high:
        return f"is not told apart from {DENSE} attention ({told} above it)"
    return f"loses {told}" if interval.low > 0 else f"predicts better than {DENSE} attention, by {told}"


def _line_json(each: BudgetLine) -> dict[str, Any]:
    """The line of a budget; its scores are losses by document, so that `assay card diff` pairs them."""
    mine = each.mine
    if mine.error:
        return {"scores": {}, "deviation": 0.0, "freedom": 1, "lower_is_better": True, "comparable": False,
                "error": mine.error, "rank": ""}  # fmt: skip
    found, interval = mine.numbers, recall(mine)
    scores = dict(found["cluster_losses"])
    return {
        "scores": scores,
        "deviation": _deviation(list(scores.values())),
        "freedom": len(scores) - 1,
        "lower_is_better": True,
        "comparable": True,
        "loss_above_dense": asdict(each.above),
        "recall_above_dense": None if interval is None else asdict(interval),
        "kv_bytes_resident": mine.held,
        "realised_sparsity": mine.left_out,
        "perplexity": found["perplexity"],
        "rank": each.rank,
        "differences": {name: asdict(one) | {"standing": one.standing} for name, one in each.differences.items()},
        "at_another_cost": {
            name: asdict(one) | {"standing": one.standing, "costs": "less" if name in each.cheaper else "more"}
            for name, one in each.uneven.items()
        },
        "not_compared": list(each.beyond),
    }
