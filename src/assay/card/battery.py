"""The battery asks mixers the questions of a tier: rates by successive halving, then the winner with fresh seeds.

    1  every rate, a third of the steps, the screening seed
    2  the best two in full, or all where the first round told nothing; one more beyond the grid if the best lies at
       its edge and learned
    3  the best, with the seeds of the tier: these are the scores
    4  the same trained twice as long, where the goal was not reached: does the score move?

Each round is one plan of runs over all mixers and questions, so that it fills the machine; what a round needs follows
from the records of the rounds before, so a card that was interrupted goes on where it stopped.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from assay.card.protocol import KEPT, SCREENING, SCREENING_SEED, SLACK, TOLERANCE
from assay.card.question import SOLVED, Question, Tier
from assay.core.run import Record
from assay.report.rows import number_at

SIZES = ("params", "layer_params", "state_scalars", "flops_per_token")
Lost = Literal["", "failed", "diverged"]
"""Why there is no number, if there is none."""
LOST = float("inf")
"""The validation of a run that diverged or failed, of which less is better."""


@dataclass(frozen=True)
class Trial:
    """One training run of the battery. A trial without a mixer scores the task's own predictors."""

    question: str
    mixer: str = ""
    rate: float = 0.0
    seed: int = 0
    steps: int = 0

    def __str__(self) -> str:
        """`recall gru rate=0.003 steps=500 seed=100`."""
        trained = f" {self.mixer} rate={self.rate:g} steps={self.steps}" if self.mixer else " references"
        return f"{self.question}{trained} seed={self.seed}"


Records = Mapping[Trial, Record]
Compute = Callable[[Sequence[Trial]], Records]
Asked = Mapping[str, Sequence[str]]
"""Which mixers are asked a question, by its name."""


@dataclass(frozen=True)
class Answer:
    """What came out for one mixer and one question."""

    mixer: str
    question: Question
    scores: Mapping[int, float]
    """By seed, on sequences that neither training nor the choice of the rate has seen. Smaller is better where the
    question says so."""
    rate: float
    at_edge: bool
    """The best rate is the lowest or the highest of those tried, also after one more was added. Not where the rate next
    to it, trained in full, comes out alike and no other is far behind, nor where the question was solved."""
    tried: tuple[float, ...]
    """The rates of the grid, and the one beyond it, from low to high."""
    window: int
    """Rates of the grid that work: within SLACK of the best at the screening's length."""
    outdone: str = ""
    """Which rate did better at the screening's length than the chosen one in full, by more than SLACK, if one did: with
    such runs learning is a matter of luck, and one seed says little of which rate is best."""
    diverged: int = 0
    """Runs at the chosen rate, or of those tried where none could be chosen, that failed or whose loss was no number in
    the end: they score 0."""
    longer: Mapping[int, float] = field(default_factory=dict)
    """Scores after twice the training, where the goal was not reached."""
    learned_more: float = 0.0
    """The most by which twice the training improved the validation of a seed: it may be of shorter sequences than the
    score is."""
    failed: str = ""
    """Why one of those runs raised an error, if one did."""
    failed_run: str = ""
    """The first letters of that run's id."""
    lost: Lost = ""
    """Why it has no score, if it has none: in one of its rounds every run failed, or failed or diverged, and no more
    were trained."""
    stopped: bool = False
    """Whether a run of those ended early: it had solved what it was trained on, and not what it is scored on."""
    held_back: int = 0
    """Seeds that never opened the second size of a curriculum, so that the size that is scored was never trained."""
    smallest: str = ""
    """The smallest of the sizes that it was scored at, if there are several."""
    sizes: Mapping[str, Any] = field(default_factory=dict)
    """Parameters, state and FLOPs of its model."""
    by_sizes: tuple[Record, ...] = ()
    """Runs that were scored at several numbers of pairs, one per seed."""

    @property
    def matched(self) -> bool | None:
        """Whether its layers have as many parameters as the question asks for; None where it asks for none, or where
        they were not counted."""
        target, layers = self.question.layer_params, self.question.model.get("num_layers", 2)
        if not target or "layer_params" not in self.sizes:
            return None
        return abs(self.sizes["layer_params"] / layers - target) <= TOLERANCE * target

    @property
    def mean(self) -> float:
        return fmean(self.scores.values())

    @property
    def reached(self) -> bool:
        return self.reached_by == len(self.scores)

    @property
    def reached_by(self) -> int:
        """How many seeds reached the goal; none where the question has none."""
        goal = self.question.goal
        return 0 if goal is None else sum(score >= goal for score in self.scores.values())

    @property
    def comparable(self) -> bool:
        """Whether its scores may stand against another's: no run diverged, and no other rate may be better."""
        return not self.diverged and not self.at_edge and (self.reached or not self.outdone)


@dataclass(frozen=True)
class Bounds:
    """The scores between which a question is: of the best possible observer, and of a guess."""

    floor: float
    ceiling: float | None
    """None: nobody knows it, as of real text."""
    ngram: float | None = None
    """Of text: the score of counting n-grams, which a language model that learned enough is better than."""


def battery(tier: Tier, asked: Asked, compute: Compute) -> Records:
    """Run rounds until every question is answered for every mixer that is asked it."""
    found: dict[Trial, Record] = {}
    references = [Trial(question.name, seed=seed) for question in tier.questions for seed in tier.seeds]
    pairs = [(question, mixer) for question in tier.questions for mixer in asked[question.name]]
    while todo := [trial for question, mixer in pairs for trial in wanted(tier, question, mixer, found)]:
        found |= compute([*todo, *(trial for trial in references if trial not in found)])
        assert all(trial in found for trial in todo), "a round left trials without a record"
    return found


def wanted(tier: Tier, question: Question, mixer: str, found: Records) -> list[Trial]:
    """Return the trials of the next round, none where the question is answered."""
    for trials in _rounds(tier, question, mixer, found):
        if missing := [trial for trial in trials if trial not in found]:
            return missing
    return []


def _rounds(tier: Tier, question: Question, mixer: str, found: Records) -> Iterable[list[Trial]]:
    """Yield the trials of each round; a round is asked for only when those before are in `found`."""
    screened = _screened(question, mixer)
    yield screened
    if _lost(screened, question, found):
        return
    full = _full(question, mixer, found)
    yield full
    if _lost(full, question, found):
        return
    if beyond := _beyond(question, mixer, found):
        yield beyond
    rate = _best_rate(question, mixer, found)
    yield _scored(tier, question, mixer, rate, question.steps)
    first = answer(tier, question, mixer, found)
    if question.goal is not None and not first.reached and not first.lost:
        yield _scored(tier, question, mixer, rate, 2 * question.steps)


def _screened(question: Question, mixer: str) -> list[Trial]:
    steps = question.steps // SCREENING
    return [Trial(question.name, mixer, rate, SCREENING_SEED, steps) for rate in question.rates]


def _lost(trials: Sequence[Trial], question: Question, found: Records) -> Lost:
    """Say why a round gave no number, if it gave none: there is nothing to go on with."""
    if any(validation(found[trial], question) < LOST for trial in trials):
        return ""
    return "failed" if all(found[trial].status == "failed" for trial in trials) else "diverged"


def _full(question: Question, mixer: str, found: Records) -> list[Trial]:
    best = sorted(_screened(question, mixer), key=lambda trial: validation(found[trial], question))
    losses = [loss for trial in best if (loss := validation(found[trial], question)) < LOST]
    if losses and losses[-1] - losses[0] >= SLACK:  # a rate that diverged tells nothing of the others
        best = best[:KEPT]
    return [Trial(question.name, mixer, trial.rate, SCREENING_SEED, question.steps) for trial in best]


def _beyond(question: Question, mixer: str, found: Records) -> list[Trial]:
    """Return one trial beyond the grid, where its best rate lies at the edge and learned more than nothing."""
    best = min(_full(question, mixer, found), key=lambda trial: validation(found[trial], question))
    losses = [validation(found[trial], question) for trial in _screened(question, mixer)]
    worst = max((loss for loss in losses if loss < LOST), default=LOST)
    rates = sorted(question.rates)
    if best.rate not in (rates[0], rates[-1]) or validation(found[best], question) > worst - SLACK:
        return []
    step = rates[1] / rates[0] if best.rate == rates[0] else rates[-1] / rates[-2]
    further = best.rate / step if best.rate == rates[0] else best.rate * step
    return [Trial(question.name, mixer, float(f"{further:.3g}"), SCREENING_SEED, question.steps)]


def _best_rate(question: Question, mixer: str, found: Records) -> float:
    tried = [*_full(question, mixer, found), *_beyond(question, mixer, found)]
    return min(tried, key=lambda trial: validation(found[trial], question)).rate


def _scored(tier: Tier, question: Question, mixer: str, rate: float, steps: int) -> list[Trial]:
    return [Trial(question.name, mixer, rate, seed, steps) for seed in tier.seeds_of(mixer)]


def answer(tier: Tier, question: Question, mixer: str, found: Records) -> Answer:
    """Return the answer that the records of all rounds give."""
    screened = _screened(question, mixer)
    last = screened if _lost(screened, question, found) else _full(question, mixer, found)
    if why := _lost(last, question, found):
        return _unscored(tier, question, mixer, [found[trial] for trial in last], why)
    rate = _best_rate(question, mixer, found)
    beyond = _beyond(question, mixer, found)
    tried = {*question.rates, *(trial.rate for trial in beyond)}
    full = {trial.rate: validation(found[trial], question) for trial in (*_full(question, mixer, found), *beyond)}
    beside = min((loss for other, loss in full.items() if other != rate), default=LOST)
    flat = max(full.values()) - full[rate] < SLACK and beside - full[rate] <= question.resolution
    solved = not question.lower and full[rate] <= question.loss(SOLVED)
    by_rate = {trial.rate: validation(found[trial], question) for trial in screened}
    losses = list(by_rate.values())
    once, twice = (_scored(tier, question, mixer, rate, steps) for steps in (question.steps, 2 * question.steps))
    first, ran = found[once[0]], [found[trial] for trial in (*once, *twice) if trial in found]
    failed, failed_run = _failed(ran)
    return Answer(
        mixer,
        question,
        scores={trial.seed: score(found[trial], question) for trial in once},
        rate=rate,
        at_edge=rate in (min(tried), max(tried)) and not flat and not solved,
        tried=tuple(sorted(tried)),
        window=sum(value < LOST and value <= min(losses) + SLACK for value in losses),
        outdone="" if solved else _outdone(question, by_rate, rate, full[rate]),
        diverged=sum(record.status != "done" for record in ran),
        longer={trial.seed: score(found[trial], question) for trial in twice if trial in found},
        learned_more=max(
            (
                validation(found[one], question) - validation(found[two], question)
                for one, two in zip(once, twice, strict=True)
                if two in found and found[two].status == "done"
            ),
            default=0.0,
        ),
        failed=failed,
        failed_run=failed_run,
        lost="" if any(found[trial].status == "done" for trial in once) else _lost(once, question, found),
        stopped=any("stopped_at" in found[trial].metrics for trial in twice if trial in found),
        held_back=sum(_held_back(found[trial], question) for trial in (twice if twice[0] in found else once)),
        smallest=min(first.metrics.get("by_size", ()), key=int, default=""),
        sizes={key: first.metrics[key] for key in SIZES if key in first.metrics},
        by_sizes=tuple(found[trial] for trial in once if _by_pairs(found[trial])),
    )


def _unscored(tier: Tier, question: Question, mixer: str, ran: Sequence[Record], why: Lost) -> Answer:
    """Return the answer of a mixer for which no rate can be chosen: `ran` is the round that gave no number."""
    rates, (failed, run) = tuple(sorted(question.rates)), _failed(ran)
    nothing = dict.fromkeys(tier.seeds_of(mixer), question.lost)
    return Answer(
        mixer, question, nothing, rate=rates[0], at_edge=False, tried=rates, window=0, diverged=len(ran),
        failed=failed, failed_run=run, lost=why,
    )  # fmt: skip


def _outdone(question: Question, screened: Mapping[float, float], rate: float, in_full: float) -> str:
    """Say which rate of the screening did better than the best one in full, if one did by more than SLACK."""
    early = min(screened, key=lambda each: screened[each])
    if not screened[early] < in_full - SLACK:
        return ""
    then, now = (f"{question.loss(value):.2f}" if value < LOST else "nothing" for value in (screened[early], in_full))
    return (
        f"a rate of {early:g} validates at {then} after a third of the steps, and the best of those trained in full, "
        f"{rate:g}, at {now}: one seed cannot choose a rate here"
    )


def _by_pairs(record: Record) -> bool:
    """Return whether it was scored at several numbers of pairs, each of which has one value."""
    task = record.run.options.get("task", {})
    several = record.status == "done" and "by_size" in record.metrics
    return several and "vocab_size" in task and not task.get("updates")


def _held_back(record: Record, question: Question) -> bool:
    """Return whether no validation of the smallest size reached what opens the next one."""
    smallest = [point["smallest"] for point in record.metrics.get("curve") or () if "smallest" in point]
    return bool(question.curriculum and smallest) and max(smallest) < question.curriculum


def _failed(records: Iterable[Record]) -> tuple[str, str]:
    """Return the last line of the first error, and whose it is."""
    for record in records:
        if record.status == "failed":
            reason = ((record.error or "").strip().splitlines() or ["no reason was stored"])[-1]
            return reason, record.run.id[:8]
    return "", ""


def score(record: Record, question: Question) -> float:
    """Return the score of a finished run; a run that diverged has learned nothing."""
    found = number_at(record.metrics, question.metric) if record.status == "done" else None
    return question.lost if found is None else found


def validation(record: Record, question: Question) -> float:
    """Return the last validation on the way through training, as something to be small."""
    last = (record.metrics.get("curve") or [{}])[-1]
    return question.loss(last[question.watched]) if record.status == "done" and question.watched in last else LOST


def bounds(question: Question, tier: Tier, found: Records) -> Bounds:
    """Return floor and ceiling. The floor is the task's own, a guess that uses nothing of what is asked for; where it
    has none, that of a uniform guess or of the task's best plain predictor, and of real text how frequent bytes are."""
    from assay.tasks import tasks

    scored = [found[Trial(question.name, seed=seed)].metrics["references"] for seed in tier.seeds]
    means = {name: fmean(float(each[name][question.watched]) for each in scored) for name in scored[0]}
    task = tasks.parse(question.task).parts()[-1]
    guess = task.floor()
    if guess is None and question.lower:
        guess = max(means.values())
    elif guess is None:
        outputs = task.shape().outputs
        chance = 1 / outputs.vocab if hasattr(outputs, "vocab") else 0.0
        guess = max([chance, *(mean for name, mean in means.items() if name != "oracle")])
    return Bounds(floor=guess, ceiling=means.get("oracle"), ngram=means.get("ngram"))
