"""A study asks one question: it plans runs, executes them, and reports from their records alone."""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from assay.core.errors import UserError
from assay.core.plugin import Plugin, plugins_in, settled, to_json
from assay.core.run import Numerics, Provenance, Record, Run

CHECKPOINT = "checkpoint"
SET_ASIDE = ".unreadable"
"""Suffix of a file that could not be read and is kept."""


@dataclass(frozen=True)
class Outcome:
    """The result of one run. Committed to the store the moment it is yielded; artifacts are files as bytes."""

    run: Run
    metrics: Mapping[str, Any]
    cost: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, bytes] = field(default_factory=dict)
    diverged: bool | str = False
    """Whether a number was not finite, or which: "the loss at step 300". Metrics that are not finite need no flag."""
    provenance: Provenance = Provenance()


@dataclass(frozen=True)
class Progress:
    """A progress message from inside a run: shown, never stored."""

    run: Run
    done: int
    total: int
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return self.done / max(1, self.total)


@dataclass(frozen=True)
class Context:
    """Offers a study what it may use while it executes, besides its runs."""

    numerics: Numerics = Numerics()
    emit: Callable[[Progress], None] = lambda progress: None
    scratch: str | None = None

    def progress(self, run: Run, done: int, total: int, **metrics: float) -> None:
        self.emit(Progress(run, done, total, metrics))

    def checkpoint(self, run: Run) -> Path | None:
        """Return a file that survives a killed worker until the run is stored; None if disks are not shared."""
        if self.scratch is None:
            return None
        return Path(self.scratch) / run.study / run.id / CHECKPOINT


class Report(Protocol):
    """A study writes its results here; `assay.report` prints them, saves them and puts them on the page."""

    def finding(self, sentence: str, *, chart: str = "") -> None:
        """Say what was found, never more strongly than its statistics; `chart` names the chart that shows it."""

    def table(
        self,
        name: str,
        rows: Sequence[Mapping[str, Any]],
        *,
        formats: Mapping[str, str] | None = None,
        lead: Sequence[str] = (),
        note: str = "",
        lead_note: str = "",
    ) -> None:
        """Add rows with one set of keys; the first table is the study's answer. A score with an interval is an
        `Interval`; keys `X_ceiling` and `X_group` (a letter) are shown beside X; `formats` has format specs by column
        (default .2f); `lead` names the columns that are shown first, the others on demand (default: all), and
        `lead_note` is the note of those alone (default: the whole)."""

    def chart(self, name: str, chart: Any, *, caption: str = "") -> None:
        """Add an Altair chart."""

    def about(self, setting: str) -> AbstractContextManager[None]:
        """Mark charts made inside the block as being of this setting alone; their captions begin with it."""

    def document(self, name: str, text: str | Callable[[], str]) -> None:
        """Add a file in the study's own format, under its whole name; a function writes it where it is asked for."""

    def file(self, path: Path, data: bytes) -> None:
        """Add a file that a command asked for by name, or that a spec names, exactly as given."""


class Reading(Plugin):
    """Base of studies/<name>/<verb>.py: a command beside a study that computes no runs; it reads files and reports. Its
    fields are its flags."""

    question: ClassVar[str] = ""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    argument: ClassVar[str] = ""
    """The field that a first word without a flag sets."""

    def report(self, out: Report) -> None:
        """Write tables, charts and files, from what the fields name."""
        raise NotImplementedError(f"{type(self).__name__}.report")


class Study(Plugin):
    """Base of studies/<name>/<verb>.py; a study's fields are its flags, and each must have a default."""

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
    compares: ClassVar[str] = ""
    """The dotted option that holds what is compared: plug-ins of --plugin join what it has by default or by a preset,
    unless the command names it. Where it holds one plug-in, they are an axis of the grid."""
    whole_tables: ClassVar[Collection[str]] = ()
    """Presets whose tables are printed with all columns, as a spec shows them."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """Old dotted flags -> the paths they set today, with underscores: {"task.eval_size": "eval_size"}."""

    shorthands: ClassVar[Mapping[str, str]] = {}
    """Flags of the study's own making, which `commands` reads -> what they stand for: {"--quick-test": "..."}."""

    shows_failures: ClassVar[bool] = False
    """Whether `report` is given failed records too, in order to show them in their place."""
    asks_first: ClassVar[bool] = False
    """Whether a command asks, on a terminal, before it starts what may take long."""

    for_cpu: ClassVar[Sequence[str]] = ()
    """Presets that a CPU computes in minutes, where the others and the defaults take long; the first is named there."""

    @classmethod
    def commands(cls, words: list[str]) -> list[list[str]]:
        """Return the command lines that one with `shorthands` stands for."""
        return [words]

    def folder(self, out: Path) -> Path:
        """Return the folder for tables, charts and files."""
        return out / self.name

    def prepare(self, runs: Sequence[Run]) -> None:
        """Fetch what the runs need, or say what to do; called once in the driver, before computing anything."""

    def check(self, runs: Sequence[Run]) -> None:
        """Raise UserError for what the runs would refuse by their options alone: called before `--dry-run` prints a
        plan and before anything is computed. It fetches nothing and loads no data."""

    def largest(self, run: Run) -> int:
        """Return about how many bytes the largest tensor of a run takes, from its options alone; 0 if unknown. A run is
        refused where it exceeds the free memory (core.memory)."""
        return 0

    def unfetched(self, runs: Sequence[Run]) -> str:
        """Return a sentence on what `prepare` will fetch and a dry run leaves unfetched and unchecked, or ""."""
        return ""

    def plan(self) -> list[Run]:
        """Return the runs, made by `self.cell(...)`. It computes nothing and asks no device. It reads no file but one
        that the options name and whose content decides the numbers: the file's hash is then among the run's options."""
        raise NotImplementedError(f"{type(self).__name__}.plan")

    def cohort(self, run: Run) -> Hashable:
        """Return a key; runs with the same key may be executed as one program. By default each is alone."""
        return run.id

    def execute(self, runs: Sequence[Run], ctx: Context) -> Iterator[Outcome]:
        """Compute the runs of one cohort; an outcome is committed when it is yielded."""
        raise NotImplementedError(f"{type(self).__name__}.execute")

    def report(self, records: Sequence[Record], out: Report) -> None:
        """Write tables and charts, from records alone: those that are done, and those that diverged."""
        raise NotImplementedError(f"{type(self).__name__}.report")

    def promised(self) -> Sequence[Path]:
        """Return files that `report` writes because the command names them: if no run is done, the user is told they
        are missing."""
        return ()

    def parts(self) -> list[Plugin]:
        """Return the plug-ins a command has chosen, which `--self-test` checks."""
        return [part for part in plugins_in(self) if part is not self]

    def cell(self, *, seed: int, uses: Sequence[Plugin] = (), **options: Any) -> Run:
        """Return a run of this study: options as JSON, and versions of all plug-ins in them and in `uses`."""
        return self.cells((seed,), uses=uses, **options)[0]

    def cells(self, seeds: Sequence[int], *, uses: Sequence[Plugin] = (), **options: Any) -> list[Run]:
        """Return runs that differ only in their seeds."""
        versions = {self.name: self.component_version()}
        try:
            plain = settled(options, versions)
        except ValueError:
            raise UserError(f"{self.name}: an option is not a finite number: {to_json(options)}.") from None
        for plugin in uses:
            settled(plugin, versions)
        return [Run(self.name, plain, seed, versions) for seed in seeds]
