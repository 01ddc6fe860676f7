"""From Python: `assay.run("expressivity", grid={"noise": [0.03, 0.3]})`, `assay.load("results").to_pandas()`."""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from assay.core.convert import construct, convert, nearest, option_types
from assay.core.drive import Drive, Event
from assay.core.environment import environment_kept
from assay.core.errors import UserError
from assay.core.estimate import duration, estimate
from assay.core.executors import executors
from assay.core.executors.base import Executor
from assay.core.files import can_be_path, check_writable, is_there
from assay.core.foreign import Source, load_source, read_source
from assay.core.memory import check_memory
from assay.core.plan import Grid, Plan, Retry, cohorts, labels, make_plan, spelled
from assay.core.plugin import classes_in_session
from assay.core.run import Numerics, Record, Run
from assay.core.store import RECORD, Store
from assay.core.study import Study
from assay.core.words import named as listed
from assay.report.files import FINDINGS
from assay.report.progress import in_notebook, shown
from assay.results import Results as Results
from assay.studies import studies
from assay.train.numerics import UNTESTED, gpus_of, numerics_for


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Options of how to run a plan. The kind of device, the backend and compile change the last bits of numbers, so
    they are part of a run's id; the rest is not."""

    executor: Executor = field(default_factory=lambda: executors.parse("local"))
    """Where runs are computed: serial (in this process), local (worker processes) or ray (a cluster)."""
    workers: int = 0
    """Worker processes, or tasks in flight; 0: one per core, or one per GPU."""
    ray_address: str | None = None
    """The Ray cluster, e.g. auto; without it Ray starts one here."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N; mps where torch offers it, which assay was never run on."""
    backend: Literal["torch", "triton", "fla"] = "torch"
    """What computes recurrent mixers: torch; on CUDA also triton (our kernels, experimental) or fla (its own)."""
    compile: bool = False
    """Compile models with torch.compile."""
    out: Path = Path("results")
    """Folder for the store and the exports."""
    force: bool = False
    """Compute again what is stored."""
    retry: Retry = "failed"
    """Which stored runs to try again: failed ones, diverged ones too, or none."""
    timeout_per_run: float | None = None
    """Seconds after which a run counts as failed and is stopped; serial stops only what heeds an interruption."""

    def __post_init__(self) -> None:
        if not can_be_path(self.out):
            raise UserError(f"--out {self.out}: no folder can have that name. Choose a shorter one, of plain letters.")
        if self.workers < 0:
            raise UserError(f"--workers {self.workers}: give a number of workers, or 0 for one per core or GPU.")
        if self.timeout_per_run is not None and self.timeout_per_run <= 0:
            raise UserError(f"--timeout-per-run {self.timeout_per_run:g}: it must be above 0 seconds.")


@dataclass(frozen=True)
class Session:
    """A plan, its store and its executor, before anything is computed."""

    plan: Plan
    store: Store
    executor: Executor
    stored: list[Record]
    todo: list[Run]
    execution: Execution
    shipped: int = 0
    """How many of the plan's runs are not stored, and have a record that ships with assay."""
    title: str = ""
    """What the plan is called, `round 1 of 5, the best rates` say; empty: by its study."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Labels of runs by id, where others than those of the study say more."""

    @classmethod
    def open(cls, study: Study, grid: Grid, execution: Execution) -> "Session":
        """Plan, read what is stored, and check everything, before anything is computed."""
        return cls.of(make_plan(study, grid, cls.numerics(study, execution)), execution)

    @staticmethod
    def numerics(study: Study, execution: Execution) -> Numerics:
        """Return what the runs' last bits depend on."""
        if execution.compile and not study.compiles:
            raise UserError(f"--compile means nothing to {study.name}: leave it out.")
        numerics = numerics_for(
            execution.device, backend=execution.backend, compile=execution.compile, autocast=study.autocast
        )
        if numerics.device in UNTESTED:
            warnings.warn(
                f"assay was never run on {numerics.device}: compare some numbers with --device cpu", stacklevel=2
            )
        return numerics

    @classmethod
    def of(cls, plan: Plan, execution: Execution) -> "Session":
        """Read what is stored of a plan's runs, and check the others."""
        refuse_session_classes(plan.runs, execution.executor)
        study, store = plan.study, Store(execution.out)
        gpus = gpus_of(execution.device)
        if gpus and execution.executor.name == "serial":
            import torch

            torch.cuda.set_device(gpus[0])  # workers see one device each; this process sees them all
        executor = _executor(execution, gpus)
        stored, todo = plan.split(store, retry=execution.retry, force=execution.force)
        if not (gpus or execution.ray_address):  # a GPU's memory, and a cluster's, are other machines'
            check_memory(todo)
        study.check(todo)
        if todo:
            for path in (store.root / study.name / RECORD, study.folder(execution.out) / FINDINGS, *study.promised()):
                check_writable(path)
        return cls(plan, store, executor, stored, todo, execution)

    @cached_property
    def workers(self) -> int:
        """The number of jobs at once; lazy, since a cluster has to be asked."""
        return self.executor.slots()

    def describe(self) -> str:
        """`60 planned, 42 stored, 18 to run in 3 cohorts (about 40 s)`."""
        there = [f"{len(self.stored)} stored"] if self.stored or not self.shipped else []
        there += [f"{self.shipped} ship with assay"] if self.shipped else []
        text = f"{self.title or self.plan.study.name}: {len(self.plan.runs)} planned, {', '.join(there)}"
        if not self.todo:
            return f"{text}, nothing to run"
        jobs = cohorts(self.todo, self.workers)
        known = [] if self.title else [self._about()]  # whoever names a plan has said how long it takes
        grouped = f" in {len(jobs)} cohorts" if len(jobs) < len(self.todo) else ""
        kept = 0 if self.execution.force else sum(map(self.store.has_checkpoint, self.todo))
        resumed = [f"{kept} checkpoint{'s' * (kept > 1)} to resume from"] if kept else []
        said = [*known, *resumed]
        beside = f" ({', '.join(said)})" if said else ""
        return f"{text}, {len(self.todo)} to run{grouped}{beside}"

    def _about(self) -> str:
        seconds = self.seconds_left
        return "no estimate: nothing like it is stored" if seconds is None else f"about {duration(seconds)}"

    @cached_property
    def costs(self) -> list[Record]:
        """What stored runs of these studies have cost."""
        studies = sorted({run.study for run in self.todo})  # a verb may plan runs of another study, as those of sae do
        return [record for study in studies for record in self.store.costs(study)]

    @cached_property
    def seconds_left(self) -> float | None:
        """Estimate the seconds left from the cost of similar stored runs; None if there are none."""
        return estimate(self.todo, self.costs, self.workers)

    @cached_property
    def labels(self) -> dict[str, str]:
        """Labels by run id, unique within this plan."""
        return labels(self.plan.runs) | dict(self.names)

    def progress(self, *, part: str = "", quiet: bool = False) -> AbstractContextManager[Callable[[Event], None]]:
        """Return what shows the events of its runs as they come."""
        workers, costs = lambda: self.workers, lambda: self.costs
        return shown(self.labels, self.todo, workers=workers, costs=costs, part=part, quiet=quiet)

    def compute(self, watch: Callable[[Event], None] = lambda event: None) -> Results:
        if not self.todo:
            return Results(self.stored, study=self.plan.study)
        drive = Drive(
            self.plan,
            self.store,
            self.executor,
            workers=self.workers,
            retry=self.execution.retry,
            force=self.execution.force,
            timeout_per_run=self.execution.timeout_per_run,
            watch=watch,
        )
        with environment_kept():  # `prepare` sets variables for workers, which must not outlive this command
            self.plan.study.prepare(self.todo)
            try:
                return Results(drive(self.todo), drive.errors, self.plan.study)
            except KeyboardInterrupt as stopped:
                anew = [runs for runs in drive.under_way if not any(map(self.store.has_checkpoint, runs))]
                lost = [self.labels[run.id] for runs in anew for run in runs]
                if lost:
                    stopped.add_note(f"No checkpoint yet, these start over: {listed(lost)}.")
                raise


def run(
    study: str,
    *,
    grid: Grid | None = None,
    preset: str | None = None,
    plugins: Sequence[str | Path] = (),
    out: str | Path | None = None,
    executor: str | Executor | None = None,
    workers: int | None = None,
    ray_address: str | None = None,
    device: str | None = None,
    backend: Literal["torch", "triton", "fla"] | None = None,
    compile: bool | None = None,
    force: bool | None = None,
    retry: Retry | None = None,
    timeout_per_run: float | None = None,
    progress: bool | None = None,
    watch: Callable[[Event], None] | None = None,
    execution: Execution | None = None,
    **options: Any,
) -> Results:
    """Run a study by name, as `assay STUDY` does, and return what it found. What is stored is not computed again.

        assay.run("icl", preset="demo")
        assay.run("icl", task="mqar:num_kv_pairs=4", grid={"model.seq_mixer": ["attention", "gru"], "seed": [0, 1, 2]})
        assay.run("expressivity", models=["SelfAttn", "my_encoder"], plugins=["my_encoder.py"], noise=0.3)

    `options` are the study's own, those of `assay STUDY --help`: a plug-in is a word such as "mqar:num_kv_pairs=4", or
    an object; parts of a study are objects or dicts, such as train={"max_steps": 100}.

    grid: dotted options -> values to vary; the runs are every combination
    preset: named options to start from instead of the study's defaults
    plugins: Python files with plug-ins of your own. Classes of a notebook need no file where executor="serial"
    out: the folder for the store, "results" by default
    executor: "local" (worker processes, the default), "serial" (in this process) or "ray" (a cluster, `ray_address`)
    workers: processes, or tasks in flight; 0, the default: one per core or GPU
    device: "auto", "cpu", "cuda", "cuda:1" or "mps"
    backend: what computes recurrent mixers: "torch", or on CUDA "triton" or "fla"
    compile: whether models are compiled with torch.compile
    force: compute again what is stored
    retry: which stored runs to try again: "failed" (the default), "diverged" too, or "none"
    timeout_per_run: seconds after which a run counts as failed
    progress: whether progress is shown; by default on a terminal and in a notebook
    watch: a function that is called with every event (assay.core.drive.Event)
    execution: an `Execution` to start from, instead of one by one
    """
    for source in (sources := [read_source(path) for path in plugins]):
        load_source(source)
    named = {"out": out, "executor": executor, "workers": workers, "ray_address": ray_address, "device": device,
             "backend": backend, "compile": compile, "force": force, "retry": retry,
             "timeout_per_run": timeout_per_run}  # fmt: skip
    types = option_types(Execution)
    placing = {key: convert(types[key], value, what=key) for key, value in named.items() if value is not None}
    if "plugin" in options:
        raise UserError("the flag --plugin is plugins=[...] here, a list of files.")
    cls = studies[study]
    if not issubclass(cls, Study):
        raise UserError(f"'{study}' reads what is there and runs nothing: use `assay {study.replace('.', ' ')}`.")
    configured = configure(cls, preset, options, sources)
    refuse_twice(cls, grid or {}, options)
    axes = combined_grid(cls, preset, grid or {}, named=options, sources=sources)
    session = Session.open(configured, axes, replace(execution or Execution(), **placing))
    seen = sys.stderr.isatty() or in_notebook() if progress is None else progress
    with session.progress(quiet=not seen) as show:

        def both(event: Event) -> None:
            show(event)
            if watch is not None:
                watch(event)

        return session.compute(both)


def load(out: str | Path = "results", study: str | None = None) -> Results:
    """Load every record under an output folder."""
    if not is_there(out, folder=True):
        raise UserError(f"no results folder '{out}'.")
    return Results(Store(out).records(study))


def configure(cls: type[Study], preset: str | None, options: dict[str, Any], sources: Sequence[Source] = ()) -> Study:
    """Build a study with a preset's options, and the given ones on top."""
    if preset is not None and preset not in cls.presets:
        known = ", ".join(cls.presets) or "none"
        raise UserError(f"study '{cls.name}' has no preset '{preset}'.{nearest(preset, cls.presets)} It has: {known}.")
    return construct(cls, {**_start(cls, preset, sources)[0], **options}, what=f"study '{cls.name}'")


def _start(cls: type[Study], preset: str | None, sources: Sequence[Source]) -> tuple[dict[str, Any], Grid]:
    """Return a preset's options and its grid, with the plug-ins of the files beside those that are compared."""
    given: dict[str, Any] = dict(cls.presets[preset]) if preset else {}
    axes: Grid = given.pop("grid", {})
    if not (sources and cls.compares):
        return given, axes
    held = attrgetter(cls.compares)(construct(cls, given, what=f"study '{cls.name}'"))
    several = held if isinstance(held, tuple) else (held,)
    own = type(several[0]).registry.brought(sources) if several else ()
    if own and isinstance(held, tuple):
        given[cls.compares] = (*held, *own)
    elif own:
        axes = {**axes, cls.compares: [*axes.get(cls.compares, several), *own]}
    return given, axes


def combined_grid(
    cls: type[Study], preset: str | None, grid: Grid, *, named: Iterable[str], sources: Sequence[Source] = ()
) -> dict[str, list[Any]]:
    """Merge the user's grid into a preset's. An axis of the preset is dropped where the user's grid or options name its
    option or what holds it: `--optimizer.lr 1e-3` is one rate, `task:boolean` a whole task."""
    own: dict[str, list[Any]] = {}
    for key, values in grid.items():
        if (path := field_path(cls, key)) in own:
            raise UserError(f"the grid names '{path}' twice, once as '{key}': put all its values into one axis.")
        own[path] = list(values)
    start = {field_path(cls, key): list(values) for key, values in _start(cls, preset, sources)[1].items()}
    taken = [*own, *(field_path(cls, name) for name in named)]
    replaced = {key for key in start if any(f"{key}.".startswith(f"{path}.") for path in taken)}
    return {key: own.get(key, axis) for key, axis in start.items() if key in own or key not in replaced} | own


def refuse_twice(cls: type[Study], grid: Grid, named: Iterable[str]) -> None:
    """Raise where an axis of the user's grid and an option set the same thing: one would be dropped silently."""
    flags = {field_path(cls, name): name for name in named}
    for key in grid:
        if (path := field_path(cls, key)) in flags:
            spelled_so = "" if key == flags[path] == path else f" (as '{key}' and as '{flags[path]}')"
            raise UserError(f"'{path}' is an axis of the grid and an option too{spelled_so}: leave one of them out.")


def field_path(cls: type[Study], path: str) -> str:
    """Return the one spelling of an option: an old name becomes today's, and `seed` becomes `seeds`."""
    hint: Any = cls
    parts = []
    for name in cls.renamed.get(path, path).split("."):
        types = option_types(hint) if is_dataclass(hint) else {}  # type: ignore[arg-type]
        parts.append(spelled(name, types))
        hint = types.get(parts[-1])
    return ".".join(parts)


def refuse_session_classes(runs: Sequence[Run], executor: Executor) -> None:
    """Raise where runs need classes of a notebook or script, which worker processes cannot import."""
    if executor.name == "serial":
        return
    used = {name for run in runs for name in run.versions}
    if here := sorted(used & classes_in_session()):
        raise UserError(
            f"{', '.join(here)}: defined in this session, where worker processes cannot find it. "
            "Use executor='serial', or put it into a file and give that with plugins=[FILE] (--plugin FILE)."
        )


def _executor(execution: Execution, gpus: tuple[int, ...]) -> Executor:
    """The chosen executor, with the flags' workers, devices and address."""
    chosen = execution.executor
    one = int(execution.device == "mps")  # its one device is not shared by processes
    placed: dict[str, Any] = {"workers": execution.workers or chosen.workers or one, "gpus": gpus}
    if execution.ray_address and not hasattr(chosen, "address"):
        raise UserError(f"--ray-address goes with --executor ray, not with {chosen}.")
    if execution.ray_address:
        placed["address"] = execution.ray_address
    return replace(chosen, **placed)
