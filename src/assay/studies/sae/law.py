"""Does the epoch at which the decoder-free loss "converges" follow the number of units, and not the learning rate?

    assay sae law --data_dir data --device cuda      # 4 widths x 4 rates x 5 seeds of SGD on MNIST, 200 epochs

The spec says that SGD converges at epoch ~70 at any rate, of 64 units. If the scale of W grows for ever and nothing
else moves, the loss of K units is c - K ln t at any rate (studies.sae.dynamics), and "it changes by less than 1 per
epoch" from about epoch K on. One width cannot tell the two apart; four can:

    epoch ~ K^a rate^b      the spec: a = 0, b = 0      the law: a = 1, b = 0
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from assay.core.run import Record, Run
from assay.core.study import Report
from assay.metrics.intervals import Interval, student_t
from assay.studies import studies
from assay.studies.sae.convergence import THRESHOLD, WINDOW, convergence_epoch, log_slope
from assay.studies.sae.verb import FromConfig

NOTE = (
    "± half the 95 % Student t interval over seeds. epoch: the first at which the loss has changed by less than "
    f"{THRESHOLD:g} per epoch, averaged over {WINDOW} epochs. reached: seeds that came there; the others have no "
    "epoch. slope / K: of the loss against ln(epoch), least squares over the last two thirds, over the number of "
    "units: -1 if the loss is c - K ln t."
)
EXPONENTS = (
    "Least squares of ln(epoch), in the middle of the averaged changes, within each rate (for the units) or width (for "
    "the rate), seed by seed, ± half the 95 % Student t interval over seeds. Of the units 0 is an epoch that does not "
    "depend on them, 1 one that is proportional to them; of the rate 0 is an epoch whatever the rate."
)
Epochs = Mapping[tuple[int, float], Mapping[int, float]]
"""By number of units and rate, and by seed."""


@studies.register("sae.law")
@dataclass(frozen=True, kw_only=True)
class Law(FromConfig):
    """Does the epoch at which the decoder-free loss converges follow the number of units?"""

    question: ClassVar[str] = "Does the epoch at which the decoder-free loss converges follow the number of units?"

    config: str = "dynamics"
    """A YAML file, or the name of one that ships with assay: its weights, batch and learning rates."""
    output_dir: Path = Path("results/law")
    """Folder for the figure."""
    widths: tuple[int, ...] = (16, 32, 64, 128)
    """Numbers of units."""
    epochs: int = 200
    """More than there are units, or the epoch is not reached."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)

    def plan(self) -> list[Run]:
        config = self.loaded()
        coder = config.encoder()
        rates = [float(rate) for rate in config.get("sweep", "learning_rates", [1e-3])]
        return [
            self.one(config, coder, seed=seed, lr=rate, optimizer="sgd", d_code=width)
            for seed in self.wanted_seeds(config)
            for width in self.widths
            for rate in rates
        ]

    def report(self, records: Sequence[Record], out: Report) -> None:
        found, slopes = convergence_epochs(records), _slopes(records)
        rows = [
            {
                "units": width,
                "lr": rate,
                "epoch": student_t(list(by_seed.values())) if by_seed else None,
                "epoch / K": student_t([epoch / width for epoch in by_seed.values()]) if by_seed else None,
                "reached": f"{len(by_seed)}/{len(slopes[width, rate])}",
                "slope / K": student_t(slopes[width, rate]),
            }
            for (width, rate), by_seed in found.items()
        ]
        if not rows:
            return
        out.table("law", rows, formats={"lr": "g", "epoch": ".1f", "epoch / K": ".2f", "slope / K": ".2f"}, note=NOTE)
        powers = {"units": exponent_of_units(records), "rate": exponent_of_rate(records)}
        lines = [{"of": of, "exponent of the epoch": power} for of, power in powers.items() if power is not None]
        if lines:
            out.table("law_exponents", lines, formats={"exponent of the epoch": ".2f"}, note=EXPONENTS)
        self._chart(found, out)

    def _chart(self, found: Epochs, out: Report) -> None:
        from assay.report.charts import interval_lines

        there = {place: by_seed for place, by_seed in found.items() if by_seed}
        if len({width for width, _ in there}) < 2:
            return
        drawn = [
            {"series": f"lr {rate:g}", "x": width, "y": student_t(list(by_seed.values()))}
            for (width, rate), by_seed in there.items()
        ]
        drawn += [{"series": "epoch = K", "x": width, "y": float(width)} for width in self.widths]
        chart = interval_lines(
            drawn, x="x", y="y", series="series", log_x=True, x_title="units (K)", y_title="convergence epoch"
        )
        self.figure(out, "law", chart, caption="The epoch at which the loss 'converges', against the number of units.")


def convergence_epochs(records: Sequence[Record]) -> Epochs:
    """The convergence epoch of every run of SGD that reached it, by units and rate, and by seed."""
    found: dict[tuple[int, float], dict[int, float]] = {}
    for record in _sgd(records):
        losses = record.metrics["history"]["train_loss"]
        by_seed = found.setdefault(_place(record), {})
        if (epoch := convergence_epoch(losses)) < len(losses):
            by_seed[record.run.seed] = float(epoch)
    return dict(sorted(found.items()))


def exponent_of_units(records: Sequence[Record]) -> Interval | None:
    """a of epoch ~ K^a at a fixed rate, over seeds; None where no seed has two widths at one rate."""
    return _exponent(convergence_epochs(records), of=0)


def exponent_of_rate(records: Sequence[Record]) -> Interval | None:
    """b of epoch ~ rate^b at a fixed width, over seeds."""
    return _exponent(convergence_epochs(records), of=1)


def _exponent(found: Epochs, *, of: int) -> Interval | None:
    """Of units (0) or rate (1): each seed's slope in logarithms, around the mean of every value of the other. The epoch
    is that in the middle of the changes that are averaged: a loss of -K ln t so gives K, and an exponent of 1."""
    seeds = sorted({seed for by_seed in found.values() for seed in by_seed})
    slopes = []
    for seed in seeds:
        lines: dict[float, list[tuple[float, float]]] = {}
        for place, by_seed in found.items():
            if seed in by_seed:
                middle = by_seed[seed] - (WINDOW + 1) / 2
                lines.setdefault(place[1 - of], []).append((math.log(place[of]), math.log(middle)))
        centred = [point for line in lines.values() for point in _centred(line)]
        spread = sum(x * x for x, _ in centred)
        if spread > 0:
            slopes.append(sum(x * y for x, y in centred) / spread)
    return student_t(slopes) if slopes else None


def _centred(line: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    x, y = fmean(p[0] for p in line), fmean(p[1] for p in line)
    return [(a - x, b - y) for a, b in line]


def _slopes(records: Sequence[Record]) -> dict[tuple[int, float], list[float]]:
    found: dict[tuple[int, float], list[float]] = {}
    for record in _sgd(records):
        slope = log_slope(record.metrics["history"]["train_loss"]) / record.run.options["d_code"]
        found.setdefault(_place(record), []).append(slope)
    return found


def _sgd(records: Sequence[Record]) -> list[Record]:
    done = [record for record in records if record.status == "done" and record.run.options["recipe"] is not None]
    return [record for record in done if record.run.options["recipe"]["optimizer"] == "sgd"]


def _place(record: Record) -> tuple[int, float]:
    options: Mapping[str, Any] = record.run.options
    return int(options["d_code"]), float(options["lr"])
