"""A study asks one question: it plans runs, executes them, and reports from their records alone."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from assay.core.errors import UserError
from assay.core.plugin import Plugin, plugins_in, settled, to_json
from assay.core.run import Numerics, Provenance, Record, Run

CHECKPOINT = "checkpoint"
SET_ASIDE = ".unreadable"
"""What is added to the name of a file that could not be read and is kept."""


@dataclass(frozen=True)
class Outcome:
    """What one run came to. Committed to the store the moment it is yielded; artifacts are files as bytes."""

    run: Run
    metrics: Mapping[str, Any]
    cost: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, bytes] = field(default_factory=dict)
    diverged: bool = False
    provenance: Provenance = Provenance()


@dataclass(frozen=True)
class Progress:
    """A sign of life from inside a run: shown, never stored."""

    run: Run
    done: int
    total: int
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return self.done / max(1, self.total)


@dataclass(frozen=True)
class Context:
    """What a study may use while it executes, besides its runs."""

    numerics: Numerics = Numerics()
    emit: Callable[[Progress], None] = lambda progress: None
    scratch: str | None = None

    def progress(self, run: Run, done: int, total: int, **metrics: float) -> None:
        self.emit(Progress(run, done, total, metrics))

    def checkpoint(self, run: Run) -> Path | None:
        """A file that outlives a killed worker and goes when the run is stored; None where disks are not shared."""
        if self.scratch is None:
            return None
        return Path(self.scratch) / run.study / run.id / CHECKPOINT


class Report(Protocol):
    """Where a study writes what it found; `assay.report` prints it, saves it and puts it on the page."""

    def table(
        self, name: str, rows: Sequence[Mapping[str, Any]], *, formats: Mapping[str, str] | None = None, note: str = ""
    ) -> None:
        """Rows with one set of keys; the first table is the study's answer. A score with an interval is an `Interval`;
        a key `X_ceiling` is shown beside X; `formats` are format specs by column, two decimals otherwise."""

    def chart(self, name: str, chart: Any, *, caption: str = "") -> None:
        """An Altair chart."""

    def about(self, setting: str) -> AbstractContextManager[None]:
        """Charts made inside are of this setting alone, and their captions begin with it."""

    def document(self, name: str, text: str) -> None:
        """A file in a form of the study's own, under its whole name."""

    def file(self, path: Path, data: bytes) -> None:
        """A file that a command asked for by name, or that a spec names, as it is to be written."""


class Reading(Plugin):
    """studies/<name>/<verb>.py: a command beside a study that computes no runs; it reads files and reports. Its fields
    are its flags."""

    question: ClassVar[str] = ""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    argument: ClassVar[str] = ""
    """The field that a first word without a flag sets."""

    def report(self, out: Report) -> None:
        """Tables, charts and files, from what the fields name."""
        raise NotImplementedError(f"{type(self).__name__}.report")


class Study(Plugin):
    """studies/<name>/<verb>.py; a study's fields are its flags, and each must have a default."""

    question: ClassVar[str] = ""
    claims: ClassVar[Mapping[str, Any]] = {}
    """Published claims about it by name (report.claims.Claim), where it has no claims.py of its own."""
    autocast: ClassVar[bool] = False
    """Whether it computes in bf16 autocast on CUDA."""
    compiles: ClassVar[bool] = False
    """Whether `--compile` means anything to it."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Named options: `--preset demo` starts from these instead of the defaults. The pseudo-option `grid` maps dotted
    paths to lists of values, as `--grid` does, and is the grid to start from:

        {"capacity": {"task": "mqar", "grid": {"optimizer.lr": ["1e-3", "3e-3"], "seed": ["0", "1"]}}}

    An axis gives way to the user's own of that option, and to the option itself, or what holds it, once named."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """Old dotted flags -> the paths they set today, with underscores: {"task.eval_size": "eval_size"}."""

    shorthands: ClassVar[Mapping[str, str]] = {}
    """Flags of the study's own making, which `commands` reads -> what they stand for: {"--quick-test": "..."}."""

    shows_failures: ClassVar[bool] = False
    """Whether `report` is given failed records too, in order to show them in their place."""
    asks_first: ClassVar[bool] = False
    """Whether a command asks, on a terminal, before it starts what may take long."""

    @classmethod
    def commands(cls, words: list[str]) -> list[list[str]]:
        """What a command line stands for, where it has `shorthands`: one or several others."""
        return [words]

    def folder(self, out: Path) -> Path:
        """Where tables, charts and files go."""
        return out / self.name

    def prepare(self, runs: Sequence[Run]) -> None:
        """Once in the driver, before anything is computed: find or fetch what the runs need, or say what to do."""

    lowered: ClassVar[Mapping[str, str]] = {}
    """Dotted options of runs, or what holds them -> what people set them by, where that is not `--option`:
    {"d_hidden": "--dimensions", "model": "--models"}. The memory guard names them."""

    def check(self, runs: Sequence[Run]) -> None:
        """A UserError for what the runs would refuse by their options alone: asked before `--dry-run` prints a plan and
        before anything is computed. It fetches nothing and loads no data."""

    def memory(self, run: Run) -> Mapping[str, int]:
        """Bytes that one run holds at once, by what holds them, from shapes alone; {} where that is not known. Asked of
        every run before anything is allocated (train.memory), so what takes long is kept for runs of one size."""
        return {}

    def unfetched(self, runs: Sequence[Run]) -> str:
        """What `prepare` will fetch first and a dry run leaves unfetched and unchecked, as a sentence, or nothing."""
        return ""

    def plan(self) -> list[Run]:
        """The runs, made by `self.cell(...)`. It computes nothing and asks no device. It reads no file but one that the
        options name and whose content decides the numbers: the file's hash is then among the run's options."""
        raise NotImplementedError(f"{type(self).__name__}.plan")

    def cohort(self, run: Run) -> Hashable:
        """Runs with one key may be executed as one program; by default each is alone."""
        return run.id

    def execute(self, runs: Sequence[Run], ctx: Context) -> Iterator[Outcome]:
        """Compute the runs of one cohort; an outcome is committed when it is yielded."""
        raise NotImplementedError(f"{type(self).__name__}.execute")

    def report(self, records: Sequence[Record], out: Report) -> None:
        """Tables and charts, from records alone: those that are done, and those that diverged."""
        raise NotImplementedError(f"{type(self).__name__}.report")

    def promised(self) -> Sequence[Path]:
        """Files that `report` writes because the command names them: where no run is done, it is said that they are
        missing."""
        return ()

    def parts(self) -> list[Plugin]:
        """The plug-ins a command has chosen: what `--self-test` checks."""
        return [part for part in plugins_in(self) if part is not self]

    def cell(self, *, seed: int, uses: Sequence[Plugin] = (), **options: Any) -> Run:
        """A run of this study: options as JSON, and the versions of every plug-in among them and among `uses`."""
        return self.cells((seed,), uses=uses, **options)[0]

    def cells(self, seeds: Sequence[int], *, uses: Sequence[Plugin] = (), **options: Any) -> list[Run]:
        """Runs that differ in their seeds alone."""
        versions = {self.name: self.component_version()}
        try:
            plain = settled(options, versions)
        except ValueError:
            raise UserError(f"{self.name}: an option is not a finite number: {to_json(options)}.") from None
        for plugin in uses:
            settled(plugin, versions)
        return [Run(self.name, plain, seed, versions) for seed in seeds]
