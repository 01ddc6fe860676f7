"""assay from Python: `assay.run("expressivity", grid={"noise": [0.03, 0.3]})`, `assay.load("results").to_pandas()`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from assay.core.drive import Drive, Event
from assay.core.errors import UserError
from assay.core.executors import executors
from assay.core.executors.base import Executor
from assay.core.foreign import load_source, read_source
from assay.core.plan import Grid, Plan, Retry, cohorts, estimate, make_plan
from assay.core.plugin import build, nearest
from assay.core.run import Record, Run
from assay.core.store import Store
from assay.core.study import Study
from assay.studies import studies


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How to run a plan. None of it changes a number, so none of it but the kind of device is part of a run's id."""

    executor: Literal["serial", "local", "ray"] = "local"
    """Where runs are computed: in this process, in worker processes, or on a Ray cluster."""
    workers: int = 0
    """Worker processes, or tasks in flight; 0: one per core, or one per GPU."""
    ray_address: str | None = None
    """The Ray cluster, e.g. auto; without it Ray starts one here."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    out: Path = Path("results")
    """Where the store and the exports are."""
    force: bool = False
    """Compute again what is stored."""
    retry: Retry = "failed"
    """Which stored runs to try again: failed ones, diverged ones too, or none."""
    timeout_per_run: float | None = None
    """Seconds after which a run counts as failed."""

    def __post_init__(self) -> None:
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
    workers: int
    stored: list[Record]
    todo: list[Run]
    execution: Execution

    @classmethod
    def open(cls, study: Study, grid: Grid, execution: Execution) -> "Session":
        """Plan, and look at what is stored. Everything is checked here, before anything is computed."""
        from assay.train.device import numerics_for, visible_gpus

        numerics = numerics_for(execution.device)
        plan = make_plan(study, grid, numerics)
        store = Store(execution.out)
        executor = _executor(execution, visible_gpus(numerics))
        stored, todo = plan.split(store, retry=execution.retry, force=execution.force)
        return cls(plan, store, executor, executor.slots(), stored, todo, execution)

    def describe(self) -> str:
        """`60 planned, 42 stored, 18 to run in 3 cohorts (about 40 s)`."""
        text = f"{self.plan.study.name}: {len(self.plan.runs)} planned, {len(self.stored)} stored"
        if not self.todo:
            return f"{text}, nothing to run"
        jobs = cohorts(self.plan.study, self.todo, self.workers)
        seconds = estimate(self.todo, self.store.records(self.plan.study.name), self.workers)
        about = "no estimate: nothing like it is stored" if seconds is None else f"about {duration(seconds)}"
        return f"{text}, {len(self.todo)} to run in {len(jobs)} cohorts ({about})"

    def compute(self, watch: Callable[[Event], None] = lambda event: None) -> "Results":
        drive = Drive(
            self.plan,
            self.store,
            self.executor,
            self.workers,
            self.execution.force,
            self.execution.timeout_per_run,
            watch,
        )
        return Results(drive(self.todo) if self.todo else self.stored)


@dataclass(frozen=True)
class Results(Sequence[Record]):
    """Records, with a table view."""

    records: list[Record] = field(default_factory=list)

    def __getitem__(self, index: Any) -> Any:
        return self.records[index]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def to_pandas(self) -> Any:
        """One row per record: study, id, seed, status, then options, metrics and costs under dotted names."""
        import pandas

        return pandas.DataFrame([_row(record) for record in self.records])


def run(
    study: str,
    *,
    grid: Grid | None = None,
    preset: str | None = None,
    plugins: Sequence[str | Path] = (),
    watch: Callable[[Event], None] = lambda event: None,
    execution: Execution | None = None,
    **options: Any,
) -> Results:
    """Run a study by name. Options are its fields or those of `Execution` (`out`, `executor`, `workers`, ...)."""
    for path in plugins:
        load_source(read_source(path))
    placing = {key: options.pop(key) for key in list(options) if key in Execution.__dataclass_fields__}
    configured = configure(studies[study], preset, options)
    return Session.open(configured, grid or {}, replace(execution or Execution(), **placing)).compute(watch)


def load(out: str | Path = "results", study: str | None = None) -> Results:
    """Every record under an output folder."""
    if not Path(out).is_dir():
        raise UserError(f"no results folder '{out}'.")
    return Results(Store(out).records(study))


def write_page(out: str | Path) -> Path:
    """One HTML page from everything stored under a folder: a section per study that has records."""
    from assay.core.store import disk_errors, write_file
    from assay.report.page import build_page
    from assay.report.section import Section

    records = sorted(load(out).records, key=lambda record: record.run.label)
    sections = []
    for name in studies.names():
        section, mine = Section(name), [r for r in records if r.run.study == name and r.status == "done"]
        if mine:
            studies[name]().report(mine, section)
            sections.append((name, studies[name].question, section))
    path = Path(out) / "report.html"
    with disk_errors(path):
        write_file(path, build_page(sections, records).encode())
    return path


def configure(cls: type[Study], preset: str | None, options: dict[str, Any]) -> Study:
    """A study with a preset's options, and the given ones on top."""
    if preset is not None and preset not in cls.presets:
        known = ", ".join(cls.presets) or "none"
        raise UserError(f"study '{cls.name}' has no preset '{preset}'.{nearest(preset, cls.presets)} It has: {known}.")
    return build(cls, {**(cls.presets[preset] if preset else {}), **options}, what=f"study '{cls.name}'")


def duration(seconds: float) -> str:
    """`48 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _executor(execution: Execution, gpus: int) -> Executor:
    if execution.ray_address and execution.executor != "ray":
        raise UserError(f"--ray-address goes with --executor ray, not with {execution.executor}.")
    address = {"address": execution.ray_address} if execution.executor == "ray" else {}
    return executors[execution.executor](workers=execution.workers, gpus=gpus, **address)


def _row(record: Record) -> dict[str, Any]:
    run = record.run
    head = {"study": run.study, "id": run.id, "seed": run.seed, "status": record.status, "device": run.numerics.device}
    return head | flat(run.options) | flat(record.metrics) | flat(record.cost, "cost")


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings under dotted names; a plug-in's name stands under its own key."""
    if not isinstance(value, dict):
        return {prefix: value}
    joined: dict[str, Any] = {}
    for key, item in value.items():
        path = key if not prefix else prefix if key == "name" else f"{prefix}.{key}"
        joined |= flat(item, path)
    return joined
