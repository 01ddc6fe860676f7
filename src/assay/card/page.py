"""The page of a card: verdicts, every question with the field beside it, learning curves, the rates tried and speed, in
one file that needs no network."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from assay.card.battery import LOST, Answer, Records, Trial, validation
from assay.card.card import Card
from assay.card.judge import NAMED, Line, in_words, interval_of
from assay.card.protocol import ANCHORS, SCREENING, SCREENING_SEED, VERSION
from assay.metrics.intervals import Interval, share, student_t
from assay.report.charts import heatmap, interval_bars, interval_lines
from assay.report.page import build_page
from assay.report.section import Section
from assay.studies.icl.report import BYTES


def page(card: Card, records: Records, files: Mapping[str, str]) -> str:
    """Build the page; `files` are those that the mixer comes from."""
    asked = f"What can {card.mixer} do, next to the field? Protocol {VERSION}, {card.tier.says}."
    name = f"card of {card.mixer}"
    runs = {record.run.id: record for record in records.values()}.values()
    # Runs of the study icl, counted as the card's; their numbers are in its charts, and would double the page.
    behind = [replace(record, run=replace(record.run, study=name), metrics={}, cost={}) for record in runs]
    told = (name, asked, section(card, records))
    return build_page([told], behind, title=f"{card.mixer}: card", files=files)


def section(card: Card, records: Records) -> Section:
    made = Section("card")
    for each, sentence in zip(card.lines, in_words(card.lines), strict=True):
        made.finding(sentence, chart=_name(each))
    note = "\n".join([*card.costs(), *card.comparable()])
    made.table("card", [card.row(each) | _more(each) for each in card.lines], lead=card.LEAD, note=note)
    _profile(made, card)
    for each in card.lines:
        others = card.field[each.answer.question.name]
        _scores(made, each, others)
        _by_state(made, each, others)
        few = _few(each, others)
        _curves(made, each, few, records)
        _rates(made, each, few, records)
    _speeds(made, card)
    return made


def _few(each: Line, others: Sequence[Answer]) -> list[Answer]:
    """Return the anchors and the best of the field: more lines than these cannot be read in one chart."""
    best = sorted(others, key=lambda answer: each.answer.question.loss(answer.mean))
    return [answer for answer in best if answer.mixer in ANCHORS or answer in best[:NAMED]]


def _profile(made: Section, card: Card) -> None:
    """Every mixer on every question that has a floor and a ceiling: how much of the way between them it comes."""
    rows = []
    for each in card.lines:
        name, low, high = each.answer.question.name, each.bounds.floor, each.bounds.ceiling
        if high is not None and high > low:
            for answer in (each.answer, *card.field[name]):
                share_of = min(1.0, max(0.0, (answer.mean - low) / (high - low)))
                rows.append({"question": name, "mixer": answer.mixer, "share": share_of})
    if rows and any(card.field.values()):
        chart = heatmap(rows, x="question", y="mixer", value="share", domain=(0.0, 1.0))
        made.chart(
            "profile", chart, caption="How much of the way from floor to ceiling every mixer comes; means over seeds."
        )


def _by_state(made: Section, each: Line, others: Sequence[Answer]) -> None:
    """The score against the bytes that a mixer carries from token to token."""
    question = each.answer.question
    points = [
        {
            "series": answer.mixer,
            "x": BYTES * answer.sizes["state_scalars"],
            "y": interval_of(answer, each.deviation, each.freedom),
        }
        for answer in (each.answer, *others)
        if answer.sizes.get("state_scalars")
    ]
    if question.goal is not None and len(points) > 1:
        chart = interval_lines(
            points, x="x", y="y", series="series", x_title="bytes of state", y_title=question.name, log_x=True
        )
        made.chart(f"{_name(each)}_by_state", chart, caption=f"{question.name}: the score against the state carried.")


def _name(each: Line) -> str:
    return each.answer.question.name.replace(" ", "_")


def _more(each: Line) -> dict[str, Any]:
    answer = each.answer
    return {
        "rates that work": f"{answer.window}/{len(answer.question.rates)}",
        "twice the training": share(list(answer.longer.values())) if answer.longer else None,
        "steps": answer.question.steps,
        "tasks": answer.question.task,
        "verdict": each.verdict,
    }


def _scores(made: Section, each: Line, others: Sequence[Answer]) -> None:
    """Bars of every mixer, best first, between floor and ceiling."""
    question = each.answer.question
    answers = sorted([each.answer, *others], key=lambda answer: question.loss(answer.mean))
    bars = [{"label": answer.mixer, "y": interval_of(answer, each.deviation, each.freedom)} for answer in answers]
    dots = [
        {"label": answer.mixer, "y": value, "seed": seed} for answer in answers for seed, value in answer.scores.items()
    ]
    marks = {"floor": each.bounds.floor}
    if each.bounds.ceiling is not None:
        marks["ceiling"] = each.bounds.ceiling
    name, unit = question.name, "bits per byte" if question.lower else "accuracy"
    chart = interval_bars(bars, label="label", value="y", dots=dots, references=marks, value_title=f"{name}, {unit}")
    made.chart(_name(each), chart, caption=f"{name}: every mixer with its interval, every seed a dot.")


def _curves(made: Section, each: Line, others: Sequence[Answer], records: Records) -> None:
    """Validation while training, at the chosen rate."""
    question = each.answer.question
    points: list[dict[str, Any]] = []
    for answer in (each.answer, *others):
        runs = [records[Trial(question.name, answer.mixer, answer.rate, s, question.steps)] for s in answer.scores]
        for place, point in enumerate(runs[0].metrics.get("curve", [])):
            curves = [run.metrics.get("curve", []) for run in runs]
            values = [curve[place][question.watched] for curve in curves if len(curve) > place]
            points.append(
                {
                    "series": answer.mixer,
                    "x": point["step"],
                    "y": student_t(values) if question.lower else share(values),
                }
            )
    if points:
        chart = interval_lines(
            points, x="x", y="y", series="series", x_title="training step", y_title=question.watched.replace("_", " ")
        )
        made.chart(f"{_name(each)}_while_training", chart, caption=f"{question.name}: validation while training.")


def _rates(made: Section, each: Line, others: Sequence[Answer], records: Records) -> None:
    """Every rate of the screening: how wide is the window in which a mixer learns?"""
    question = each.answer.question
    points = []
    for answer in (each.answer, *others):
        for rate in question.rates:
            trial = Trial(question.name, answer.mixer, rate, SCREENING_SEED, question.steps // SCREENING)
            if trial in records and (loss := validation(records[trial], question)) < LOST:
                found = Interval(abs(loss), None, None, 1)
                points.append({"series": answer.mixer, "x": rate, "y": found})
    if points:
        chart = interval_lines(
            points,
            x="x",
            y="y",
            series="series",
            x_title="learning rate",
            y_title=question.watched.replace("_", " "),
            log_x=True,
        )
        told = f"{question.name}: validation after a third of the steps, by rate; one seed."
        made.chart(f"{_name(each)}_by_rate", chart, caption=told)


def _speeds(made: Section, card: Card) -> None:
    rows = [
        {"label": mixer, "y": Interval(value, None, None, 1), "way": way}
        for mixer, found in card.speeds.items()
        for way, value in (("trained", found.trained), ("decoded", found.decoded))
    ]
    if rows:
        chart = interval_bars(rows, label="label", value="y", series="way", value_title="tokens per second, one layer")
        made.chart("speed", chart, caption="Tokens per second of one layer of width 64, measured on this machine.")
