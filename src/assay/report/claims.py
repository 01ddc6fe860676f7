"""A claim is a sentence that somebody published, and the rule by which stored records confirm or refute it.

    CLAIMS = {
        "regression-ols": Claim(
            claim="Least squares in context errs by 1 - n/d of the variance after n < d examples.",
            source="Garg et al. 2022", study="icl", options={...},
            checks=(
                Check(what="after 10 examples", metric="references.ols.by_answer.10", target=0.5, tolerance=0.045),
            ),
        ),
    }                                                          # studies/<name>/claims.py

    verdict           when
    reproduced        every number with its whole interval lies where the claim wants it
    not reproduced    a number with its whole interval lies elsewhere
    undecided         an interval crosses the limit, or seeds are too few: about so many more would tell
    not converged     the claim is about what can be learnt, and its certificate does not hold (report/certificate.py)
    no record         a run that the claim needs is not stored, or has lost the weights that a number is measured from

`assay reproduce NAME` runs what a claim needs; `assay findings` judges every claim from what is stored.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from assay.core.errors import UserError
from assay.core.run import Record, Run, canonical
from assay.metrics.intervals import Interval, student_t, wilson
from assay.report.rows import number_at, value_at

Word = Literal["reproduced", "undecided", "not converged", "not reproduced", "no record"]
ORDER: tuple[Word, ...] = ("reproduced", "undecided", "not converged", "not reproduced", "no record")
"""From good to bad: a claim has the worst verdict of its checks."""
MANY = 1000
"""Seeds beyond which none are asked for: the number is at the limit."""
POWER = 0.8
"""How often as many seeds again would tell the difference seen."""
HASHES = ("sha256", "content")
"""Options that are hashes of files."""


@dataclass(frozen=True)
class Verdict:
    """What the records say of a claim, or of one of its checks."""

    word: Word
    more_seeds: int | None = None
    """About how many more seeds would decide what is undecided."""
    unit: str = "seed"
    """What is counted in place of seeds: of an evaluation, clusters of text."""
    about: str = ""
    """What models that were not trained to their end say nothing about."""

    def __str__(self) -> str:
        if self.about:
            return f"{self.word}: says nothing about {self.about}"
        if self.more_seeds is None:
            return self.word
        return f"{self.word}: about {self.more_seeds} more {self.unit}{'s' * (self.more_seeds > 1)} would tell"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One number that a claim stands or falls with."""

    what: str
    """The number in words."""
    short: str = ""
    """The same in about fifty characters, for a list; empty: `what`."""
    metric: str = ""
    """A dotted path into the metrics of a run; `by_answer.5` is an entry of a list."""
    rows: Any = field(default_factory=dict)
    """Which runs of the plan: dotted options and their values. With a metric they may differ in their seed alone."""
    over: Literal["mean", "min", "max"] = "mean"
    """How the seeds are pooled: their mean with its interval, or the smallest or largest seed, without one."""
    measure: Callable[[Sequence[Record]], Interval | Mapping[int, float] | None] | None = None
    """Instead of a metric: the number that the chosen records give together, or one for each seed; None where they do
    not give one. It raises UserError where it needs files of the runs that are not there."""
    at_least: float | None = None
    at_most: float | None = None
    target: float | None = None
    tolerance: float | None = None
    unit: str = "seed"
    """What the interval counts; empty where nothing is drawn, and every run gives the same number."""

    def __post_init__(self) -> None:
        wanted = [name for name in ("at_least", "at_most", "target") if getattr(self, name) is not None]
        if len(wanted) != 1 or (self.target is None) != (self.tolerance is None):
            raise UserError(f"check '{self.what}': give one of at_least, at_most, or target with its tolerance.")
        if bool(self.metric) == (self.measure is not None):
            raise UserError(f"check '{self.what}': give a metric, or in code a measure.")

    @property
    def band(self) -> tuple[float, float]:
        """Where the claim wants the number: from, to."""
        if self.target is not None and self.tolerance is not None:
            return self.target - self.tolerance, self.target + self.tolerance
        low = -math.inf if self.at_least is None else self.at_least
        return low, math.inf if self.at_most is None else self.at_most

    @property
    def once(self) -> bool:
        """Whether one seed is enough: the best has to come out as wanted, where otherwise the worst has to."""
        return self.over == "max" if self.at_least is not None else self.over == "min" and self.at_most is not None

    @property
    def wanted(self) -> str:
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        return f"at most {self.at_most:g}" if self.at_most is not None else f"{self.target:g} ± {self.tolerance:g}"

    def chosen(self, runs: Sequence[Run]) -> list[Run]:
        """The runs that the check is about. Raises unless there is one, and for a metric unless all share a setting."""
        found = [run for run in runs if has_options(run, self.rows)]
        if not found or (self.metric and len({run.setting for run in found}) != 1):
            kind = "runs of several settings" if found else "no run"
            raise UserError(f"check '{self.what}': its rows, {canonical(self.rows)}, choose {kind} of the plan.")
        return found


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What has to stand under a claim about what can or cannot be learnt: a recipe that was tuned, and a number that
    does not move with more training. Whether seeds are enough is told from the numbers (report/certificate.py)."""

    about: str
    """What is claimed to be (im)possible, in words."""
    metric: str
    """What recipes are compared by, on validation data; more is better, or with a minus before it, less."""
    tried: Any
    """The grid of recipes: dotted options and the values to begin with. It is widened while the best is at its edge. A
    claim that has the same axes in its own grid chooses its recipe by itself, on validation data."""
    on: Any = field(default_factory=dict)
    """Options of the comparison that are not the claim's own, such as fewer widths or other seeds."""

    @property
    def compared_on(self) -> str:
        """Those of its options that are not seeds: ` at dimensions 10, epochs 400`."""
        named = {key: value if isinstance(value, list) else [value] for key, value in self.on.items() if key != "seeds"}
        return " at " + ", ".join(f"{key} {' '.join(map(str, each))}" for key, each in named.items()) if named else ""

    arms: tuple[Any, ...] = ({},)
    """Rows that each have a recipe of their own, such as two coders that are compared."""
    longer: Any
    """Options that double the training."""
    number: Check
    """What has to stay within its interval when training is doubled."""
    goal: bool = True
    """Whether coming out as claimed shows that training was enough. It does not where something is said not to be
    learnt: every model that was trained too little confirms that."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A published claim, the runs it needs, and what has to come out."""

    claim: str
    """The sentence."""
    short: str = ""
    """A shorter one, for a list, which says no more; empty: the sentence itself."""
    source: str
    """Who says so, and where."""
    study: str
    options: Any = field(default_factory=dict)
    preset: str | None = None
    checks: tuple[Check, ...]
    grid: Any = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    """Tables of the study's report that stand under the checks."""
    series: tuple[str, ...] = ()
    """Metrics with a value per epoch that its numbers are taken from: of other records those do not ship.
    `history.train_loss` is one of several."""
    certificate: Certificate | None = None
    exempt: str = ""
    """Why its training needs no certificate: nothing is trained, or one published recipe is what it is about."""

    def command(self, name: str) -> str:
        """The command that computes its runs."""
        words = self.study.replace(".", " ")
        plain = self.preset and not self.options and not self.grid
        return f"assay {words} --preset {self.preset}" if plain else f"assay reproduce {name}"


SHARE = re.compile(r"(^|[._])acc(uracy)?($|[._])|(^|[._])exact_match$|_found$|^by_length[.]")
"""Metrics between 0 and 1: an interval is printed as far as it lies there."""
SHOWN = 10
"""Most seeds whose numbers are printed one by one."""


@dataclass(frozen=True)
class Judged:
    """A check, the number found, and the verdict."""

    check: Check
    verdict: Verdict
    found: Interval | None
    by_seed: Mapping[int, float] = field(default_factory=dict)
    reason: str = ""
    """Why there is no number."""
    records: tuple[Record, ...] = ()
    """What the number was taken from."""

    @property
    def passed(self) -> Interval:
        """The share of seeds whose own number lies where the claim wants it, with Wilson's interval."""
        least, most = self.check.band
        return wilson(sum(least <= number <= most for number in self.by_seed.values()), len(self.by_seed))

    @property
    def number(self) -> str:
        """`mean of 2 seeds 0.75 [0.70, 0.80] (0.74 0.76)`, `0.75 [0.70, 0.80]`, `0.75`, or why there is none."""
        if self.found is None:
            return self.reason
        low, high = self.found.low, self.found.high
        if low is not None and high is not None and SHARE.search(self.check.metric):
            low, high = max(0.0, low), min(1.0, high)
        bounds = "" if low is None else f" [{low:.4g}, {high:.4g}]"
        if not self.by_seed or not self.check.unit:
            return f"{self.found.mean:.4g}{bounds}"
        each, count = list(self.by_seed.values()), len(self.by_seed)
        one_by_one = " ".join(f"{number:.4g}" for number in each)
        shown = one_by_one if count <= SHOWN else f"{min(each):.4g} to {max(each):.4g}"
        return f"{self.check.over} of {count} seed{'s' * (count > 1)} {self.found.mean:.4g}{bounds} ({shown})"


Measured = Callable[[Check, Sequence[Record]], Interval | None]


def judge(
    check: Check, runs: Sequence[Run], stored: Mapping[str, Record], measured: Measured = lambda check, records: None
) -> Judged:
    """The verdict on a check from the stored records of a claim's runs, by `identity`. `measured` knows numbers from
    weights that are not here."""
    needed = [stored.get(identity(run)) for run in check.chosen(runs)]
    there = [record for record in needed if record is not None]
    if len(there) < len(needed):
        missing = f"{len(needed) - len(there)} of {len(needed)} runs are not stored"
        return Judged(check, Verdict("no record"), None, reason=missing)
    if failed := sum(record.status == "failed" for record in there):
        return Judged(check, Verdict("no record"), None, reason=f"{failed} of {len(needed)} runs failed")
    if check.measure is not None:
        try:
            found = check.measure(there)
        except UserError as error:
            found = measured(check, there)
            if found is None:
                return Judged(check, Verdict("no record"), None, reason=str(error))
        if found is None or found == {}:
            return Judged(check, Verdict("not reproduced"), None, reason="the records do not give this number")
        if not isinstance(found, Interval):
            return _of_seeds(check, found, there)
        return Judged(check, decided(check, found), found, records=tuple(there))
    values = {r.run.seed: number_at(r.metrics, check.metric.split(".")) for r in there if r.status == "done"}
    numbers = {seed: value for seed, value in values.items() if value is not None}
    if len(numbers) < len(needed):
        reason = f"{check.metric} is there for {len(numbers)} of {len(needed)} seeds"
        return Judged(check, Verdict("not reproduced"), None, reason=reason)
    return _of_seeds(check, numbers, there)


def _of_seeds(check: Check, numbers: Mapping[int, float], records: Sequence[Record]) -> Judged:
    each = list(numbers.values())
    extreme = min(each) if check.over == "min" else max(each)
    found = student_t(each) if check.over == "mean" else Interval(extreme, None, None, len(each))
    return Judged(check, decided(check, found), found, numbers, records=tuple(records))


def decided(check: Check, found: Interval) -> Verdict:
    """The whole interval has to lie in the band, or outside of it, and the seeds have to be enough to find that again.
    A number without an interval stands for itself, unless it is the mean of what one seed drew."""
    if found.low is None and check.over == "mean" and check.unit:
        return Verdict("undecided", 1, check.unit)
    least, most = check.band
    low = found.mean if found.low is None else found.low
    high = found.mean if found.high is None else found.high
    needed = seeds_needed(check, found)
    if found.low is None or (needed is not None and found.n >= needed):
        if least <= low and high <= most:
            return Verdict("reproduced")
        if high < least or low > most:
            return Verdict("not reproduced")
    return Verdict("undecided", None if needed is None else max(1, needed - found.n), check.unit)


def seeds_needed(check: Check, found: Interval) -> int | None:
    """How many seeds tell the number from the limit with power 0.8, were mean and spread to stay: n such that
    (t.975 + t.8) / sqrt(n) spreads fit between them. None where the number is at the limit or has no interval."""
    if found.low is None or found.high is None:
        return None
    from scipy.special import stdtrit

    distance = min(abs(found.mean - limit) for limit in check.band if math.isfinite(limit))
    spread = (found.high - found.low) / 2 / _half(found.n, stdtrit)
    if spread == 0:
        return 2 if distance else None

    def told(n: int) -> bool:
        return (_half(n, stdtrit) + float(stdtrit(max(1, n - 1), POWER)) / math.sqrt(n)) * spread <= distance

    return next((n for n in range(2, MANY) if told(n)), None)


def _half(n: int, quantile: Callable[[int, float], float]) -> float:
    return float(quantile(max(1, n - 1), 0.975)) / math.sqrt(n)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of a claim: the worst of its checks; of several undecided ones, the one that needs most seeds, or
    that no number of them would decide."""
    return max(verdicts, key=lambda verdict: (ORDER.index(verdict.word), verdict.more_seeds or math.inf))


def identity(run: Run) -> str:
    """What a run computes, wherever: its id without the numerics and without the hashes of data and models, which a
    plan knows only where the files are. A claim so finds records of any device, and of data that is not here. It is
    kept with the run: each check of a claim asks for it."""
    kept = vars(run)
    if "identity" not in kept:
        plain = {key: _without_hashes(value) for key, value in run.to_json().items() if key != "numerics"}
        kept["identity"] = canonical(plain)
    return str(kept["identity"])


def _without_hashes(value: Any) -> Any:
    if value is None or type(value) in (str, bool, int, float) or not isinstance(value, Mapping):  # most are plain
        return value
    return {key: _without_hashes(item) for key, item in value.items() if key not in HASHES}


def by_identity(records: Iterable[Record]) -> dict[str, Record]:
    """Records of one way of computing, by identity: of several devices or precisions, that which has most records."""
    return of_one_kind((identity(record.run), record) for record in records)


def of_one_kind(named: Iterable[tuple[str, Record]]) -> dict[str, Record]:
    """The same of records whose identities are known. A later record takes the place of an earlier one."""
    kinds: dict[str, dict[str, Record]] = {}
    for name, record in named:
        kinds.setdefault(canonical(vars(record.run.numerics)), {})[name] = record
    return max(reversed(kinds.values()), key=len, default={})


def has_options(run: Run, wanted: Mapping[str, Any]) -> bool:
    """Return whether a run has these options. `seq_mixer.pattern.1` is the name of a plug-in in a list."""
    found = {key: value_at(run.options, key.split("."), missing=math.nan) for key in wanted}  # what no option is
    names = {key: value.get("name", value) if isinstance(value, Mapping) else value for key, value in found.items()}
    return all(names[key] == value for key, value in wanted.items())
