"""How does the decoder-free loss fall, and does it ever stop? Optimizers and learning rates of the paper.

    assay sae dynamics --config dynamics --output_dir results/dynamics --data_dir data

Writes dynamics_results.json, fig4a_loss and fig4b_convergence. The spec claims that SGD converges at epoch ~70 at any
rate. The variance term has no anchor for the scale of W and falls without bound as W grows; if that were all that goes
on, |w|^2 would grow as lr t under SGD, L = c - K ln t, and "the loss changes by less than 1 per epoch" would hold from
t = K on at any rate, with nothing having converged. Both are tested: the table holds the epoch and the fitted slope
over K, which is -1 if so.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar

from assay.core.grouping import grouped
from assay.core.run import Record, Run
from assay.core.study import Report
from assay.metrics.intervals import Interval, share, student_t
from assay.report.draw import spread_of
from assay.report.text import with_interval
from assay.studies import studies
from assay.studies.sae.charts import convergence_chart, loss_chart
from assay.studies.sae.verb import FromConfig, as_json

THRESHOLD, WINDOW = 1.0, 5
NOTE = (
    "convergence epoch: the first at which the loss has changed by less "
    f"than {THRESHOLD:g} per epoch, averaged over {WINDOW} epochs; the last epoch where it never does. slope / K: of "
    "the loss against ln(epoch), least squares over the last two thirds, over the number of units; -1 is what weights "
    "that grow as |w|^2 ~ lr t would give (SGD), and down to -2 what |w| ~ lr t would (Adam), if nothing else moved."
)
COLUMNS = {
    "final loss": "final_loss", "convergence epoch": "convergence_epoch", "slope / K": "slope_per_unit",
    "probe": "probe_accuracy",
}  # fmt: skip
FORMATS = {"lr": "g", "final loss": ".1f", "convergence epoch": ".0f", "slope / K": ".2f", "probe": ".4f"}


@studies.register("sae.dynamics")
@dataclass(frozen=True, kw_only=True)
class Dynamics(FromConfig):
    """How does the decoder-free loss fall, and does it ever stop?"""

    question: ClassVar[str] = "How does the decoder-free loss fall, and does it ever stop?"

    config: str = "dynamics"
    output_dir: Path = Path("results/dynamics")
    """Folder for dynamics_results.json and the figures."""
    hidden_dims: tuple[int, ...] = ()
    """Numbers of units, instead of the file's model.hidden_dim; with several, the table has a column K."""

    def axes(self) -> list[tuple[int, str, float]]:
        """Every number of units, optimizer and rate."""
        config, units = self.loaded, self.hidden_dims or (self.loaded.hidden_dim,)
        optimizers = config.get("sweep", "optimizers", [config.get("training", "optimizer", "adam")])
        rates = config.get("sweep", "learning_rates", [config.lr])
        return list(product(units, map(str, optimizers), map(float, rates)))

    def plan(self) -> list[Run]:
        coder = self.loaded.encoder()
        return [
            self.one(coder, seed=seed, lr=rate, optimizer=optimizer, units=units)
            for seed in self.seeds or self.loaded.seeds
            for units, optimizer, rate in self.axes()
        ]

    def report(self, records: Sequence[Record], out: Report) -> None:
        results = self.results(records)
        rows = [
            ({"K": entry["hidden_dim"]} if len(self.hidden_dims) > 1 else {})
            | {key: entry[key] for key in ("optimizer", "lr")}
            | {title: _pooled(entry["runs"], key) for title, key in COLUMNS.items()}
            for entry in results["sweep"]
        ]
        if rows:
            out.finding(_sentence(rows), chart="fig4b_convergence")
        out.table("dynamics", rows, formats=FORMATS, note=f"{spread_of(rows, COLUMNS)} {NOTE}".strip())
        out.file(self.promised()[0], as_json(results))
        self.figure(out, "fig4a_loss", loss_chart(results), caption="The loss by epoch, mean over seeds.")
        caption = "The epoch at which the loss 'converges'; the line is the number of units."
        self.figure(out, "fig4b_convergence", convergence_chart(results), caption=caption)

    def results(self, records: Sequence[Record]) -> dict[str, Any]:
        """The spec's dynamics_results.json."""
        done = sorted((r for r in records if r.status == "done"), key=lambda record: record.run.seed)
        found, sweep = grouped(done, _axes_of), []
        for units, optimizer, rate in self.axes():
            if runs := [_run(record) for record in found.get((units, optimizer, rate), ())]:
                entry = {"optimizer": optimizer, "lr": rate, "runs": runs, "summary": _summary(runs)}
                sweep.append({"hidden_dim": units, **entry} if self.hidden_dims else entry)
        return {"sweep": sweep, "config": dict(self.loaded.sections)}


def convergence_epoch(losses: Sequence[float]) -> int:
    """The first epoch at which the loss has changed by less than 1 per epoch, averaged over 5; the last if none is."""
    changes = [abs(after - before) for before, after in pairwise(losses)]
    for end in range(WINDOW, len(changes) + 1):
        if fmean(changes[end - WINDOW : end]) < THRESHOLD:
            return end + 1
    return len(losses)


def log_slope(losses: Sequence[float]) -> float:
    """d loss / d ln(epoch), least squares over the last two thirds of the epochs."""
    start = len(losses) // 3
    points = [(math.log(epoch), loss) for epoch, loss in enumerate(losses, 1)][start:]
    x, y = fmean(p[0] for p in points), fmean(p[1] for p in points)
    spread = sum((a - x) ** 2 for a, _ in points)
    return sum((a - x) * (b - y) for a, b in points) / spread if spread else 0.0


def _sentence(rows: Sequence[Mapping[str, Any]]) -> str:
    """The range of the epochs at which the loss slows down, and of the slopes that say whether it stops."""
    epochs = sorted(rows, key=lambda row: row["convergence epoch"].mean)
    slopes = sorted((row["slope / K"] for row in rows), key=lambda slope: slope.mean)
    slope = " to ".join(with_interval(each) for each in (slopes[0], slopes[-1])[: len(rows)])
    first, last = (
        f"{with_interval(row['convergence epoch'], '.0f')} ({row['optimizer']}, lr {row['lr']:g})"
        for row in (epochs[0], epochs[-1])
    )
    n = max(row["convergence epoch"].n for row in rows)
    where = f"from epoch {first} to epoch {last}" if len(rows) > 1 else f"at epoch {first}"
    return (
        f"In these runs ({n} seed{'s' * (n > 1)}) the loss changes by less than {THRESHOLD:g} per epoch {where}, and "
        f"its slope against ln(epoch) over the number of units is {slope}: 0 would be a "
        "loss that has stopped."
    )


def _pooled(runs: Sequence[dict[str, Any]], key: str) -> Interval | None:
    values = [float(run[key]) for run in runs if run[key] is not None]
    return (share if key == "probe_accuracy" else student_t)(values) if values else None


def _axes_of(record: Record) -> tuple[int, str, float]:
    options = record.run.options
    return options["d_code"], options["recipe"]["optimizer"], options["lr"]


def _run(record: Record) -> dict[str, Any]:
    history, metrics = record.metrics["history"], record.metrics
    losses = history["train_loss"]
    terms = [term for term in ("lse", "var", "tc") if term in history]  # records that ship have the loss alone
    return {
        "seed": record.run.seed,
        "loss_curve": losses,
        **{f"{term}_curve": history[term] for term in terms},
        "final_loss": losses[-1],
        **{f"final_{term}": history[term][-1] for term in terms},
        "convergence_epoch": convergence_epoch(losses),
        "slope_per_unit": log_slope(losses) / record.run.options["d_code"],
        "training_time": record.cost.get("train_seconds"),
        "probe_accuracy": metrics.get("linear_probe_accuracy"),
    }


def _summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`stable`: the final losses of the seeds spread by less than 5 % of their mean."""
    losses, epochs = ([run[key] for run in runs] for key in ("final_loss", "convergence_epoch"))
    spread = stdev(losses) if len(losses) > 1 else 0.0
    return {
        "final_loss_mean": fmean(losses),
        "final_loss_std": spread,
        "convergence_epoch_mean": fmean(epochs),
        "stable": spread < 0.05 * abs(fmean(losses)),
    }
