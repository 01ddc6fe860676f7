"""How does the decoder-free loss fall, and does it ever stop? Optimizers and learning rates of the paper.

    assay sae dynamics --config dynamics --output_dir results/dynamics --data_dir data

Writes dynamics_results.json, fig4a_loss and fig4b_convergence. The spec claims that SGD converges at epoch ~70 at any
rate. The variance term has no anchor for the scale of W and falls without bound as W grows; if that were all that goes
on, |w|^2 would grow as lr t under SGD, L = c - K ln t, and "the loss changes by less than 1 per epoch" would hold from
t = K on at any rate, with nothing having converged. Both are tested: the table holds the epoch and the fitted slope
over K, which is -1 if so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar

from assay.core.run import Record, Run
from assay.core.study import Report
from assay.metrics.intervals import student_t
from assay.studies import studies
from assay.studies.sae.config import Config
from assay.studies.sae.convergence import THRESHOLD, WINDOW, convergence_epoch, log_slope
from assay.studies.sae.verb import FromConfig, as_json

__all__ = ["Dynamics", "convergence_epoch", "log_slope"]
NOTE = (
    "± half the 95 % Student t interval over seeds. convergence epoch: the first at which the loss has changed by less "
    f"than {THRESHOLD:g} per epoch, averaged over {WINDOW} epochs; the last epoch where it never does. slope / K: of "
    "the loss against ln(epoch), least squares over the last two thirds, over the number of units; -1 is what weights "
    "that grow as |w|^2 ~ lr t would give (SGD), and down to -2 what |w| ~ lr t would (Adam), if nothing else moved."
)
FORMATS = {"lr": "g", "final loss": ".1f", "convergence epoch": ".0f", "slope / K": ".2f", "probe": ".4f"}


@studies.register("sae.dynamics")
@dataclass(frozen=True, kw_only=True)
class Dynamics(FromConfig):
    """How does the decoder-free loss fall, and does it ever stop?"""

    question: ClassVar[str] = "How does the decoder-free loss fall, and does it ever stop?"

    config: str = "dynamics"
    """A YAML file, or the name of one that ships with assay."""
    output_dir: Path = Path("results/dynamics")
    """Folder for dynamics_results.json and the figures."""

    def axes(self, config: Config) -> list[tuple[str, float]]:
        optimizers, rates = config.get("sweep", "optimizers", ["adam"]), config.get("sweep", "learning_rates", [1e-3])
        return [(str(optimizer), float(rate)) for optimizer in optimizers for rate in rates]

    def plan(self) -> list[Run]:
        config = self.loaded()
        coder = config.encoder()
        return [
            self.one(config, coder, seed=seed, lr=rate, optimizer=optimizer)
            for seed in self.wanted_seeds(config)
            for optimizer, rate in self.axes(config)
        ]

    def report(self, records: Sequence[Record], out: Report) -> None:
        from assay.studies.sae.charts import convergence_chart, loss_chart

        results = self.results(records)
        rows = []
        for entry in results["sweep"]:
            runs = entry["runs"]
            rows.append(
                {
                    "optimizer": entry["optimizer"],
                    "lr": entry["lr"],
                    "final loss": student_t([run["final_loss"] for run in runs]),
                    "convergence epoch": student_t([float(run["convergence_epoch"]) for run in runs]),
                    "slope / K": student_t([run["slope_per_unit"] for run in runs]),
                    "probe": student_t([p for r in runs if (p := r["probe_accuracy"]) is not None])
                    if runs[0]["probe_accuracy"] is not None
                    else None,
                }
            )
        out.table("dynamics", rows, formats=FORMATS, note=NOTE)
        out.file(self.output_dir / "dynamics_results.json", as_json(results))
        self.figure(out, "fig4a_loss", loss_chart(results), caption="The loss by epoch, mean over seeds.")
        caption = "The epoch at which the loss 'converges'; the line is the number of units."
        self.figure(out, "fig4b_convergence", convergence_chart(results), caption=caption)

    def results(self, records: Sequence[Record]) -> dict[str, Any]:
        """The spec's dynamics_results.json."""
        config, sweep = self.loaded(), []
        for optimizer, rate in self.axes(config):
            mine = [r for r in records if r.status == "done" and _is(r, optimizer, rate)]
            if mine:
                runs = [_run(record) for record in sorted(mine, key=lambda record: record.run.seed)]
                sweep.append({"optimizer": optimizer, "lr": rate, "runs": runs, "summary": _summary(runs)})
        return {"sweep": sweep, "config": dict(config.sections)}


def _is(record: Record, optimizer: str, rate: float) -> bool:
    return record.run.options["recipe"]["optimizer"] == optimizer and record.run.options["lr"] == rate


def _run(record: Record) -> dict[str, Any]:
    history, metrics = record.metrics["history"], record.metrics
    losses = history["train_loss"]
    return {
        "seed": record.run.seed,
        "loss_curve": losses,
        **{f"{term}_curve": history[term] for term in ("lse", "var", "tc")},
        "final_loss": losses[-1],
        **{f"final_{term}": history[term][-1] for term in ("lse", "var", "tc")},
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
