"""The page of a card: verdicts, every question with the field beside it, learning curves, the rates tried and speed, in
one file that needs no network."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from assay.card.battery import LOST, Answer, Records, Trial, validation
from assay.card.card import Card
from assay.card.judge import Line, in_words, interval_of
from assay.card.protocol import SCREENING, SCREENING_SEED, VERSION
from assay.metrics.intervals import Interval, share
from assay.report.charts import interval_bars, interval_lines
from assay.report.page import build_page
from assay.report.section import Section


def page(card: Card, records: Records) -> str:
    asked = f"What can {card.mixer} do, next to the field? Protocol {VERSION}, {card.tier.says}."
    behind = list({record.run.id: replace(record, metrics={}, cost={}) for record in records.values()}.values())
    return build_page([(f"card of {card.mixer}", asked, section(card, records))], behind, title=f"{card.mixer}: card")


def section(card: Card, records: Records) -> Section:
    made = Section("card")
    for each, sentence in zip(card.lines, in_words(card.lines), strict=True):
        made.finding(sentence, chart=_name(each))
    made.table(
        "card", [card.row(each) | _more(each) for each in card.lines], lead=card.LEAD, note="\n".join(card.costs())
    )
    for each in card.lines:
        others = card.field[each.answer.question.name]
        _scores(made, each, others)
        _curves(made, each, others, records)
        _rates(made, each, others, records)
    _speeds(made, card)
    return made


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
    answers = sorted([each.answer, *others], key=lambda answer: -answer.mean)
    bars = [{"label": answer.mixer, "y": interval_of(answer, each.deviation, each.freedom)} for answer in answers]
    dots = [
        {"label": answer.mixer, "y": value, "seed": seed} for answer in answers for seed, value in answer.scores.items()
    ]
    marks = {"floor": each.bounds.floor, "ceiling": each.bounds.ceiling}
    name = each.answer.question.name
    chart = interval_bars(bars, label="label", value="y", dots=dots, references=marks, value_title=f"{name}, accuracy")
    made.chart(_name(each), chart, caption=f"{name}: every mixer with its interval, every seed a dot.")


def _curves(made: Section, each: Line, others: Sequence[Answer], records: Records) -> None:
    """Validation while training, at the chosen rate."""
    question = each.answer.question
    points: list[dict[str, Any]] = []
    for answer in (each.answer, *others):
        runs = [records[Trial(question.name, answer.mixer, answer.rate, s, question.steps)] for s in answer.scores]
        for place, point in enumerate(runs[0].metrics.get("curve", [])):
            curves = [run.metrics.get("curve", []) for run in runs]
            values = [curve[place]["accuracy"] for curve in curves if len(curve) > place]
            points.append({"series": answer.mixer, "x": point["step"], "y": share(values)})
    if points:
        chart = interval_lines(points, x="x", y="y", series="series", x_title="training step", y_title="accuracy")
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
            points, x="x", y="y", series="series", x_title="learning rate", y_title="accuracy", log_x=True
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
