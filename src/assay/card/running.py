"""A runner turns trials of the battery into runs of the study icl, and computes what is neither stored nor shipped."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from assay.api import Execution, Session, configure
from assay.card import protocol
from assay.card.battery import Trial, wanted
from assay.card.question import Tier
from assay.core import shipped
from assay.core.convert import construct
from assay.core.errors import UserError
from assay.core.executors.local import Local
from assay.core.plan import Plan, make_plan
from assay.core.run import Numerics, Record, Run
from assay.core.store import Store
from assay.core.study import Study
from assay.mixers import mixers
from assay.studies import studies

ROUNDS = (
    "rates at a third of the steps",
    "the best rates in full",
    "the chosen rate with fresh seeds",
    "twice the training where the goal was not reached",
    "the anchors, which say whether shipped records compare",
)
"""What is trained in each round of a card, some of which many cards do not need."""


def placed(tier: Tier, given: Mapping[str, Any]) -> Execution:
    """Return how a tier is run: with its own device and backend, unless another device is given, and with as many
    processes on a GPU of this machine as share it."""
    from assay.train.numerics import numerics_for

    execution = construct(Execution, {"device": tier.device, **given}, what="assay card")
    same = numerics_for(execution.device).device == tier.device
    if isinstance(execution.executor, Local):
        execution = replace(execution, executor=replace(execution.executor, per_gpu=tier.per_gpu))
    return replace(execution, backend=tier.backend if same else "torch")


ComputeSession = Callable[[Session], Sequence[Record]]
"""Computes a session, and shows its progress."""


def obtained(
    study: Study,
    runs: Iterable[Run],
    execution: Execution,
    compute: ComputeSession,
    there: Mapping[str, Record],
    *,
    title: str = "",
    names: Mapping[str, str] | None = None,
) -> dict[str, Record]:
    """Return the record of every run by its id: from `there`, the store, or computed now. While it computes, `title`
    and the `names` of runs by id are shown."""
    plan = Plan(study, tuple(dict.fromkeys(runs)))
    session = Session.of(plan, execution)
    left = [run for run in session.todo if run.id not in there]
    session = replace(session, todo=left, shipped=len(session.todo) - len(left), title=title, names=names or {})
    here = {record.run.id: record for record in (*session.stored, *(compute(session) if session.todo else ()))}
    found = {**here, **there}
    if lost := [run.label for run in plan.runs if run.id not in found]:
        raise UserError(f"the card has no number for {lost[0]}: it was not computed. Repeat the command to resume.")
    return found


def stored(study: Study, runs: Iterable[Run], execution: Execution) -> dict[str, Record]:
    """Return the records of those runs that are stored and would not be computed again, by id."""
    plan = Plan(study, tuple(runs))
    found, _ = plan.split(Store(execution.out), retry=execution.retry, force=execution.force)
    return {record.run.id: record for record in found}


def reader(tier: Tier) -> "Runner":
    """Return a runner that finds records of a tier's own device, whatever devices this machine has."""
    from assay.train.numerics import numerics_for

    numerics = numerics_for(tier.device, backend=tier.backend, autocast=studies["icl"].autocast, here=False)
    return Runner(tier, Execution(), compute=lambda session: [], as_computed=numerics)


@dataclass(frozen=True)
class Runner:
    """A runner finds or computes the records of a tier's trials."""

    tier: Tier
    execution: Execution
    compute: ComputeSession
    own: bool = False
    """Whether shipped records are left out and everything is trained here."""
    title: str = ""
    """What its runs are for, as it is shown while they are computed; empty: the rounds that they belong to."""
    as_computed: Numerics | None = None
    """The numerics of runs computed elsewhere, whose ids are asked for; None: those of this machine."""
    _runs: dict[Trial, Run] = field(default_factory=dict)
    _planned: dict[tuple[str, str], Run] = field(default_factory=dict)
    read_shipped: set[tuple[str, str]] = field(default_factory=set)
    """Mixers and questions whose records are shipped ones."""
    _ships: dict[tuple[str, str], bool] = field(default_factory=dict)

    def __call__(self, trials: Sequence[Trial]) -> dict[Trial, Record]:
        longest_first = sorted(trials, key=self._work, reverse=True)  # so that no worker waits long for the last one
        runs = {trial: self.run_of(trial) for trial in longest_first}
        # A mixer's answer comes whole from shipped records or from here: its seeds never from two machines.
        from_shipped = {
            trial for trial in trials if not self.own and (not trial.mixer or self.ships(trial.mixer, trial.question))
        }
        there = {
            runs[trial].id: self.shipped[runs[trial].id] for trial in from_shipped if runs[trial].id in self.shipped
        }
        names = {run.id: str(trial) for trial, run in runs.items()}
        title = self.title or _rounds(self.tier, [trial for trial in trials if runs[trial].id not in there])
        study = studies["icl"]()
        found = obtained(study, runs.values(), self.execution, self.compute, there, title=title, names=names)
        self.read_shipped.update((trial.mixer, trial.question) for trial in from_shipped if trial.mixer)
        return {trial: found[run.id] for trial, run in runs.items()}

    @cached_property
    def shipped(self) -> Mapping[str, Record]:
        """Shipped records by id: a lower layer under the store, of which nothing is computed again."""
        return {record.run.id: record for record in shipped.records(f"card.{self.tier.name}")}

    def only_shipped(self, trials: Sequence[Trial]) -> dict[Trial, Record]:
        """Return the records that ship, and compute nothing."""
        found = {trial: self.shipped.get(self.run_of(trial).id) for trial in trials}
        return {trial: record for trial, record in found.items() if record is not None}

    def there(self, trials: Sequence[Trial]) -> dict[Trial, Record]:
        """Return the records that ship or are stored, each mixer's from one of the two, and compute nothing."""
        from_shipped = [trial for trial in trials if not trial.mixer or self.ships(trial.mixer, trial.question)]
        found = self.only_shipped(from_shipped)
        self.read_shipped.update((trial.mixer, trial.question) for trial in from_shipped if trial.mixer)
        return found | self.stored([trial for trial in trials if trial not in found])

    def ships(self, mixer: str, question: str) -> bool:
        """Return whether everything that answers a question for a mixer ships."""
        if (mixer, question) not in self._ships:
            found: dict[Trial, Record] = {}
            whole = bool(self.shipped)
            while whole and (missing := wanted(self.tier, self.tier.question(question), mixer, found)):
                there = self.only_shipped(missing)
                found |= there
                whole = len(there) == len(missing)
            self._ships[mixer, question] = whole
        return self._ships[mixer, question]

    def known(self, mixer: str, question: str) -> tuple[list[Trial], list[Trial]]:
        """Return the trials of a question whose records ship or are stored, as far as its rounds go, and those that its
        next round lacks; none lacking: it is answered, and nothing will be computed."""
        found: dict[Trial, Record] = {}
        look = self.only_shipped if not self.own and self.ships(mixer, question) else self.stored
        while missing := wanted(self.tier, self.tier.question(question), mixer, found):
            there = look(missing)
            found |= there
            if len(there) < len(missing):
                return list(found), [trial for trial in missing if trial not in there]
        return list(found), []

    def stored(self, trials: Sequence[Trial]) -> dict[Trial, Record]:
        """Return the records that are in the store."""
        runs = {trial: self.run_of(trial) for trial in trials}
        found = stored(studies["icl"](), runs.values(), self.execution)
        return {trial: found[run.id] for trial, run in runs.items() if run.id in found}

    def field(self) -> dict[str, list[str]]:
        """Return the mixers whose records ship, by question, as a user spells them."""
        words = [mixers.parse(word).label for word in protocol.FIELD]
        return {q.name: [word for word in words if self.ships(word, q.name)] for q in self.tier.questions}

    def run_of(self, trial: Trial) -> Run:
        """Return the run of a trial, as `assay icl` plans it. One run of a mixer and a question is planned; the others
        have another rate, seed or number of steps."""
        if trial not in self._runs:
            first = self._planned.get((trial.question, trial.mixer))
            if first is None:
                first = self._planned[trial.question, trial.mixer] = self._plan(trial)
            self._runs[trial] = _retold(first, trial)
        return self._runs[trial]

    def know(self, mixer: str, version: str, records: Iterable[Record]) -> None:
        """Find the runs of a mixer whose code is not here among records: they are those of one that is known, but for
        its name and options, the version of its code, and the state mixer that meets the parameters of a layer."""
        for question in self.tier.questions:
            like = self.run_of(Trial(question.name, protocol.ANCHORS[-1], question.rates[0], 0, question.steps))
            others = {name: told for name, told in like.versions.items() if name != f"mixer/{protocol.ANCHORS[-1]}"}
            for run in (record.run for record in records if record.run.options.get("model")):
                model = dict(like.options["model"], seq_mixer=run.options["model"]["seq_mixer"])
                if question.layer_params:
                    model["state_mixer"] = run.options["model"]["state_mixer"]
                own = {**others, f"mixer/{model['seq_mixer']['name']}": version}
                first = replace(like, options={**like.options, "model": model}, versions=dict(run.versions))
                rate, steps = run.options["optimizer"]["lr"], run.options["train"]["max_steps"]
                trial = Trial(question.name, mixer, rate, run.seed, steps)
                if own.items() <= run.versions.items() and _retold(first, trial).id == run.id:
                    self._planned[question.name, mixer] = first
                    break
            else:
                raise UserError(
                    f"no record is a run of {mixer} in {question.name}: they are of another file, protocol or device."
                )

    def _plan(self, trial: Trial) -> Run:
        question = self.tier.question(trial.question)
        if trial.mixer:
            given = question.options(trial.mixer, rate=trial.rate, seed=trial.seed, steps=trial.steps)
        else:
            given = {"task": question.task, "eval_size": question.eval_size, "seeds": [trial.seed]}
            given["references_only"] = True
        runs = make_plan(configure(studies["icl"], None, given), {}, self.numerics).runs
        return next(run for run in runs if (run.options["model"] is None) is not bool(trial.mixer))

    @property
    def plain(self) -> "Runner":
        """The same with as many seeds for every mixer as ship."""
        return replace(self, tier=replace(self.tier, more_seeds={}), _ships={}) if self.tier.more_seeds else self

    def _work(self, trial: Trial) -> int:
        return self.tier.question(trial.question).work * trial.steps

    @property
    def trains_together(self) -> bool:
        """Whether runs that differ in rate and seed are trained as one program."""
        return self.numerics.device == "cuda"

    @property
    def numerics(self) -> Numerics:
        return self.as_computed or Session.numerics(studies["icl"](), self.execution)


def _rounds(tier: Tier, trials: Iterable[Trial]) -> str:
    """Say what trials are for: `round 1 of 5, rates at a third of the steps`."""
    found = set()
    for trial in (trial for trial in trials if trial.mixer):
        full = trial.steps == tier.question(trial.question).steps
        found.add((1 if full else 0) if trial.seed == protocol.SCREENING_SEED else (2 if full else 3))
    told = " and ".join(ROUNDS[place] for place in sorted(found))
    return f"round {1 + min(found)} of {len(ROUNDS)}, {told}" if found else "references"


def _retold(run: Run, trial: Trial) -> Run:
    """Return the run with the rate, the steps and the seed of a trial."""
    if not trial.mixer:
        return replace(run, seed=trial.seed)
    train, optimizer = run.options["train"], run.options["optimizer"]
    changed = {"train": {**train, "max_steps": trial.steps}, "optimizer": {**optimizer, "lr": float(trial.rate)}}
    return replace(run, options={**run.options, **changed}, seed=trial.seed)
