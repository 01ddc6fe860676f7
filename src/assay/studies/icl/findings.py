"""Says which mixer scores best on which task, in these runs.

Rows are compared within a task and a setting. Mixers with a short convolution are not compared with those without one:
the convolution does half the work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from statistics import fmean
from typing import Any

from assay.core.errors import UserError
from assay.core.grouping import grouped
from assay.core.study import Report
from assay.report.labels import labels
from assay.report.rows import Row, by_setting
from assay.report.sentences import Measure, across, compared
from assay.studies.icl.capacity import has_convolution
from assay.tasks import tasks

MOST = 3
"""Most sentences; more tasks are counted."""
MEASURES = (
    Measure("accuracy", "accuracy", ".4f", share=True),
    Measure("error over variance (mse)", "mse", ".4f", lower=True),
)
OF_TEXT = (Measure("bits per byte", "bits_per_byte", ".4f", lower=True),)


def say(found: Sequence[Row], out: Report) -> None:
    """Say a sentence for each task, apart for mixers with and without a short convolution."""
    asked_of = labels([row.options["task"] for row in found], short=True)
    asked = [(row, (task, _convolution(row, found))) for row, task in zip(_named(found), asked_of, strict=True)]
    kinds = {kind: by_setting(row for row, _ in own) for kind, own in grouped(asked, lambda pair: pair[1]).items()}
    said = [
        (sentence, f"{measure.value}_by_step")
        # Where several mixers were compared comes first.
        for (task, convolution), settings in sorted(kinds.items(), key=lambda kind: -max(map(len, kind[1].values())))
        for measure in _measures([row for own in settings.values() for row in own])
        if (sentence := across(settings, measure, of="mixer", over="settings", runs=_runs(task, convolution, settings)))
    ]
    for sentence, chart in said if len(said) <= MOST else said[: MOST - 1]:
        out.finding(sentence, chart=chart)
    if len(said) > MOST:
        out.finding(f"{len(said) - MOST + 1} more comparisons, of other tasks or kinds of mixer, are in the table.")
    _say_what_did_not_learn([row for row, _ in asked], out)


def _say_what_did_not_learn(found: Sequence[Row], out: Report) -> None:
    """Name the rows whose accuracy is not told from that of a guess: they are no finding about a mixer."""
    guesses = [(row.label, floor) for row in found if (floor := guess(row.options["task"])) and _no_better(row, floor)]
    if guesses:
        named = ", ".join(dict.fromkeys(label for label, _ in guesses))
        floors = " or ".join(dict.fromkeys(f"{floor:.2f}" for _, floor in sorted(guesses, key=itemgetter(1))))
        out.finding(
            f"No better than a guess (accuracy {floors}), or not told from it: {named}. This says nothing yet about "
            "what they can do: train longer, try other rates, or give a mixer without a short convolution one (conv=4)."
        )


def _no_better(row: Row, floor: float) -> bool:
    found = row.interval("accuracy", bounded=True)
    return found is not None and (found.mean if found.low is None else found.low) <= floor


def say_untrained(found: Sequence[Row], out: Report) -> None:
    """Say what functions that were not trained here score on each task, MOST tasks at most."""
    asked_of = labels([row.options["task"] for row in found], short=True)
    named = [(task, replace(row, label=row.names["model"])) for row, task in zip(found, asked_of, strict=True)]
    said = [
        sentence
        for task, pairs in grouped(named, lambda pair: pair[0]).items()
        for own in [[row for _, row in pairs]]
        for measure in _measures(own)
        if (sentence := compared(own, measure, of="model", runs=f"{task}, untrained"))
    ]
    for sentence in said[:MOST]:
        out.finding(sentence)


def _measures(found: Sequence[Row]) -> tuple[Measure, ...]:
    return OF_TEXT if any(row.values("bits_per_byte") for row in found) else MEASURES


def _named(found: Sequence[Row]) -> list[Row]:
    """Rows labelled by their mixers alone, and by their state mixers where those differ."""
    telling = ["seq_mixer"] + ["state_mixer"] * (len({row.names["state_mixer"] for row in found}) > 1)
    return [replace(row, label=" ".join(row.names[title] for title in telling)) for row in found]


def _convolution(row: Row, found: Sequence[Row]) -> str:
    """Whether the row has a short convolution, where some rows have one and others do not."""
    own, *others = (has_convolution(each.options["model"]["seq_mixer"]) for each in (row, *found))
    return "" if len(set(others)) == 1 else f"with{'' if own else 'out'} a short convolution"


def _runs(task: str, convolution: str, settings: dict[str, list[Row]]) -> str:
    steps = sorted({row.options["train"]["max_steps"] for own in settings.values() for row in own})
    trained = f"{' or '.join(map(str, steps))} steps" if len(steps) <= 2 else f"{steps[0]} to {steps[-1]} steps"
    return ", ".join(filter(None, [task, trained, convolution]))


def guess(task: Mapping[str, Any]) -> float | None:
    """Return the accuracy of the best guess, the mean over the parts that are scored; None where it is not known."""
    try:
        floors = [part.floor() for part in tasks.load(task).scored_parts()]
    except UserError:  # a plug-in that is not here
        return None
    known = [floor for floor in floors if floor is not None]
    return fmean(known) if len(known) == len(floors) else None
