"""The sweep's tables and charts: columns and charts as data, drawn from rows and their weights."""

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from torch import Tensor

from assay.core.run import Record
from assay.core.study import Report
from assay.metrics.intervals import share, wilson
from assay.report.charts import interval_lines
from assay.report.draw import Column, filled, lines, per_setting, table
from assay.report.rows import Row, by_setting, rows, seeds_of
from assay.report.text import number
from assay.studies.modular.bilinear import addition_table, answered, constructive_model
from assay.studies.modular.bilinear_bank import PairSplit
from assay.studies.modular.figures import capacity, maps, survival
from assay.studies.modular.measures import GOOD
from assay.studies.modular.records import recipe_of
from assay.studies.modular.thresholds import from_here_on, half_pass

SAID = 3
"""Most settings that have a sentence each."""

PARTS = (8, 4, 2, 1)
"""A chart each: perfect within an eighth of the allowed epochs, a quarter, ..."""
NOTE = (
    "val acc: of the last epoch, on pairs not trained on. Training "
    "stops where it is 1, and so favours it: test acc is of pairs that nothing was chosen by, full table of all P^2 "
    "pairs. perfect: seeds that got there within the epochs allowed; a seed "
    "that diverged did not. epochs to 100 %: of the seeds that got there. effective rank: exp of the entropy of the "
    "squared eigenvalues of a remainder's form, averaged over remainders.\n"
    "Four units are enough for any P (constructive_model): what is missing above that is learning, not room."
)

SMALLEST = (
    "The smallest width tried from which on every wider one passes too; - where the widest does not. mean: val acc of "
    f"{GOOD:g} or more on average over seeds. half: the width at which half of the runs have that val acc, or are "
    "perfect, by a logistic fit in log width to all runs, with its 95 % interval over resampled seeds, which few seeds "
    "make too narrow, and which has no breadth where all step between the same two widths; < and >: outside the widths "
    "tried. pairs: to train, validate and test on. All of this rests on "
    "those that validate, which each seed draws anew."
)
REFERENCES = (
    "One answer for all: that which fewest training pairs have, and so most of the others; the training pairs by "
    "heart, and that answer for the rest; four units by hand. Scored on the same pairs as the models, seed by seed."
)


LATER = ("pairs", "some seed perfect")
COLUMNS = (
    Column("d_hidden", lambda row: width(row), lead=True),
    Column("val acc", lambda row: share(list(validated(row).values())), ".4f", lead=True),
    Column("best val acc", "best_val_acc", ".4f", share=True, always=True),
    Column("test acc", "test_acc", ".4f", share=True, lead=True),
    Column("full table", "full_acc", ".4f", share=True, always=True),
    Column("perfect", lambda row: f"{perfect(row)}/{row.n}", lead=True),
    Column(
        "share perfect",
        lambda row: wilson(perfect(row), row.n) if row.n > 1 else None,
        always=True,
        note="share perfect: with its Wilson interval.",
    ),
    Column("diverged", lambda row: row.diverged or None, lead=True),
    Column("epochs to 100 %", "epochs_to_perfect", ".0f", always=True, lead=True),
    Column("effective rank", "effective_rank", always=True),
    Column("params", lambda row: 5 * row.options["P"] * width(row), ".0f"),
)


def report(records: Sequence[Record], out: Report) -> None:
    found = rows(records, ignore=["d_hidden"])
    settings = {where: sorted(own, key=width) for where, own in by_setting(found).items()}
    found = [row for own in settings.values() for row in own]
    thresholds = [_thresholds(own) for own in settings.values()]
    for own, line in list(zip(settings.values(), thresholds, strict=True))[:SAID]:
        out.finding(_sentence(own, line), chart="perfect_by_width")
    if len(settings) > SAID:
        out.finding(f"{len(settings) - SAID} more settings are in the table of smallest widths.")
    table(out, "modular_sweep", found, COLUMNS, note=NOTE)
    floors = [
        {"setting": setting(own[0]), **line}
        for own in settings.values()
        for line in references(own[0].options, sorted({seed for row in own for seed in row.seeds}))
    ]
    formats = dict.fromkeys(("val acc", "test acc", "full table"), ".4f")
    out.table("references", filled(floors), formats=formats, note=REFERENCES)
    out.table("smallest_width", thresholds, lead=[key for key in thresholds[0] if key not in LATER], note=SMALLEST)
    against_width = partial(lines, out, found=found, series=setting, x_title="hidden width")
    against_width(
        "val_acc_by_width", points=lambda row: [(width(row), validated(row))], bounded=True,
        y_title="validation accuracy", caption="Validation accuracy against the hidden width.",
    )  # fmt: skip
    _perfect(found, out)
    capacity({setting(own[0]): own for own in settings.values()}, out, good=GOOD)
    against_width(
        "effective_rank_by_width", points=lambda row: [(width(row), row.values("effective_rank"))],
        y_title="effective rank", caption="Effective rank against the hidden width.",
    )  # fmt: skip
    for suffix, own in per_setting(found, out):
        survival(own, out, suffix=suffix)
        maps(own, out, suffix=suffix)


def width(row: Row) -> int:
    return int(row.options["d_hidden"])


def setting(row: Row) -> str:
    """The options that a grid varied besides the width, or else the modulus."""
    return row.where or f"P={row.options['P']}"


def perfect(row: Row, within: int | None = None) -> int:
    """Count the seeds that answered every validation pair within so many epochs; by default within all."""
    limit = row.options["epochs"] if within is None else within
    return sum(epoch <= limit for epoch in row.values("epochs_to_perfect").values())


def validated(row: Row) -> dict[int, float]:
    """The last validation accuracy by seed. Diverged seeds count with theirs: a mean without them would flatter."""
    return {record.run.seed: float(record.metrics["val_acc"]) for record in row.records if "val_acc" in record.metrics}


def passed(row: Row, metric: str, least: float) -> dict[int, bool]:
    """Return per seed whether its metric reached `least`. A seed that diverged did not."""
    values = row.values(metric)
    return {seed: values.get(seed, -1.0) >= least for seed in row.seeds}


def _thresholds(own: Sequence[Row]) -> dict[str, Any]:
    """Find the width from which on models generalise, and the number of pairs that this was seen on."""
    train, val, test = recipe_of(own[0].options).sizes(own[0].options["P"])
    good = {width(row): passed(row, "val_acc", GOOD) for row in own}
    done = {width(row): passed(row, "epochs_to_perfect", 0.0) for row in own}
    means = {width(row): fmean(validated(row).values()) >= GOOD for row in own}
    return {
        "setting": setting(own[0]),
        "pairs": f"{train}/{val}/{test}",
        "seeds": max(row.n for row in own),
        f"mean >= {GOOD:g}": from_here_on(means),
        f"half >= {GOOD:g}": str(half_pass(good)),
        "some seed perfect": from_here_on({d: any(runs.values()) for d, runs in done.items()}),
        "half perfect": str(half_pass(done)),
        "every seed perfect": from_here_on({d: all(runs.values()) for d, runs in done.items()}),
    }


def _sentence(own: Sequence[Row], found: Mapping[str, Any]) -> str:
    """Say from which width on models of a setting generalise, in these runs."""
    options, widths = own[0].options, [width(row) for row in own]
    where = found["setting"] if "P=" in found["setting"] else f"P={options['P']}, {found['setting']}"
    every, some, mean = found["every seed perfect"], found["some seed perfect"], found[f"mean >= {GOOD:g}"]
    head = f"In these runs ({where}, at most {options['epochs']} epochs, {seeds_of(own)})"
    if every is not None:
        n = min(row.n for row in own if width(row) >= every)
        sure = f" ({n}/{n} [{number(wilson(n, n).low)}, 1.00])" if n > 1 else ""
        seen = f"every seed of width {every} and wider{sure} answers every validation pair"
    elif some is not None:
        seen = (
            f"some seed of width {some} and of every wider one answers every validation pair, but not every seed does"
        )
    else:
        seen = f"no width from {min(widths)} to {max(widths)} answers every validation pair from there on"
    half = f"; half of the runs do from width {found['half perfect']} on" if some is not None and own[0].n > 1 else ""
    reached = "no width reaches" if mean is None else f"width {mean} and wider reach"
    lost = sum(row.diverged for row in own)
    gone = f"; {lost} run{'s' * (lost > 1)} diverged and count as not there" if lost else ""
    return f"{head} {seen}{half}; {reached} a mean validation accuracy of {GOOD:g}{gone}."


def references(options: Mapping[str, Any], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Score two floors and a ceiling, in the columns of the sweep's table: on the validation and test pairs of every
    seed, since each has its own split, and on all P^2."""
    P, recipe = options["P"], recipe_of(options)
    splits = [PairSplit.of(P, seed, recipe) for seed in seeds]
    by_hand = answered(constructive_model(P))
    kinds = {
        "one answer": [_one_answer(P, split) for split in splits],
        "training pairs by heart": [_one_answer(P, split).index_fill(0, split.train, 1) for split in splits],
        "four units by hand": [by_hand for _ in splits],
    }
    return [{"model": kind, **_scores(right, splits)} for kind, right in kinds.items()]


def _one_answer(P: int, split: PairSplit) -> Tensor:
    """1 where the answer that fewest training pairs have is right: each has P pairs in all, so it is the most common of
    the others."""
    answers = addition_table(P)[2]
    return (answers == answers[split.train].bincount(minlength=P).argmin()).double()


def _scores(right: Sequence[Tensor], splits: Sequence[PairSplit]) -> dict[str, Any]:
    tested = bool(len(splits[0].test))
    val, test = (
        [float(own[getattr(split, part)].mean()) for own, split in zip(right, splits, strict=True)]
        for part in ("val", "test")
    )
    return {
        "val acc": share(val),
        "test acc": share(test) if tested else None,
        "full table": share([float(own.mean()) for own in right]),
    }


def _perfect(found: Sequence[Row], out: Report) -> None:
    """Chart P(perfect within E epochs | d), one chart per E, since intervals of few seeds are wide and would overlap;
    for several settings, a line for each at all allowed epochs."""
    allowed = {row.options["epochs"] for row in found}
    budget, parts = max(allowed), PARTS if len({row.where for row in found}) == 1 else (1,)
    for epochs in sorted({max(1, budget // part) for part in parts}, reverse=True):
        limit = f"{epochs} epochs" if len(allowed) == 1 else "the epochs allowed"
        shares = [{"series": setting(row), "d": width(row), "y": wilson(perfect(row, epochs), row.n)} for row in found]
        chart = interval_lines(
            shares, x="d", y="y", series="series", references={"every seed": 1.0}, x_title="hidden width",
            y_title="P(perfect)", title=f"perfect within {limit}",
        )  # fmt: skip
        caption = f"Share of seeds that answer every validation pair within {limit}, with its Wilson interval."
        out.chart("perfect_by_width" if epochs == budget else f"perfect_within_{epochs}", chart, caption=caption)
