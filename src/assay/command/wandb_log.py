"""Logs runs to Weights & Biases as they are computed: one W&B run for each of ours, under the same id.

The store holds the results; this only copies a run's id, label, options, seed, progress and final numbers.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from assay.command.progress import Watch, say
from assay.core.drive import Event
from assay.core.errors import UserError
from assay.core.run import Record, Run, flat


def require_wandb() -> Any:
    """Returns the package wandb, or raises a UserError that says how to install it."""
    try:
        wandb = importlib.import_module("wandb")
    except ModuleNotFoundError as error:
        if error.name != "wandb":
            raise
        wandb = None
    if not hasattr(wandb, "init"):  # a folder `wandb`, which offline runs leave behind, imports as an empty package
        raise UserError("wandb:on needs the package wandb: pip install 'assay-bench[wandb]', or leave it out.")
    return wandb


@contextmanager
def logged(watch: Watch, runs: Sequence[Run], labels: Mapping[str, str], *, quiet: bool = False) -> Iterator[Watch]:
    """Yields `watch` extended to send every event to W&B as well; `runs` are those to be computed."""
    log = _Log(require_wandb(), labels, quiet)
    if runs:
        try:
            log.open(runs[0])  # a missing login shows here, before anything is computed
        except Exception as error:
            raise UserError(
                f"wandb:on does not work: {_line(error)} Mend that, set WANDB_MODE=offline, or leave wandb:on out."
            ) from error
    else:
        say("wandb:on: nothing is logged, since every run is stored already; --force computes them again")

    def both(event: Event) -> None:
        watch(event)
        log(event)

    try:
        yield both
    finally:
        log.close()


class _Log:
    def __init__(self, wandb: Any, labels: Mapping[str, str], quiet: bool) -> None:
        self.wandb, self.labels = wandb, labels
        self.settings = {"console": "off", "silent": quiet}  # our output is not the run's
        self.running: dict[str, Any] = {}
        self.broken = False

    def __call__(self, event: Event) -> None:
        if self.broken:
            return
        try:
            if event.progress and event.progress.metrics:
                # Committed at once: a row still open when the run ends would overwrite the final numbers.
                self.open(event.run).log(dict(event.progress.metrics), step=event.progress.done, commit=True)
            if event.record:
                self._finish(event.record)
        except Exception as error:  # noqa: BLE001 - a lost connection must not stop the computing
            self.broken = True
            say(f"warning: nothing more goes to Weights & Biases: {_line(error)} The runs continue and are stored.")

    def open(self, run: Run) -> Any:
        """Opens the W&B run of a run beside those already open: there is one per worker."""
        if run.id not in self.running:
            self.running[run.id] = self.wandb.init(
                project=f"assay-{run.study}",
                id=run.id,
                name=self.labels[run.id],
                config={**run.options, "seed": run.seed},
                reinit="create_new",
                # One id gives one set of numbers: a resumed run continues its W&B run and resends no steps.
                resume="allow",
                settings=self.settings,
            )
        return self.running[run.id]

    def _finish(self, record: Record) -> None:
        run = self.open(record.run)
        numbers = {key: value for key, value in flat(dict(record.metrics)).items() if type(value) in (int, float)}
        run.summary.update(numbers)
        run.finish(exit_code=0 if record.status == "done" else 1)
        del self.running[record.run.id]

    def close(self) -> None:
        """Ends W&B runs still open: they were interrupted, or another process computes them."""
        for run in self.running.values():
            try:
                run.finish(exit_code=1)
            except Exception as error:  # noqa: BLE001 - nor may it hide what ended the command
                say(f"warning: Weights & Biases: {_line(error)}")
        self.running.clear()


def _line(error: Exception) -> str:
    """Returns the first line of an error, as a sentence."""
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    return text if text.endswith(".") else f"{text}."
