"""The page of a card is one file that needs no network: verdicts, a profile of all questions, then each question with
the field beside it, what the mixer costs here, the whole field as a table, the mixer's file and provenance."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from operator import itemgetter
from statistics import fmean
from typing import Any

from assay.card.battery import LOST, Answer, Records, Trial, validation
from assay.card.card import Card
from assay.card.charts import LEAST, MINE, beside, number, profile, sentence, standings
from assay.card.judge import Line, interval_of
from assay.card.protocol import ANCHORS, SCREENING, SCREENING_SEED, SLACK, VERSION
from assay.core.run import Record
from assay.core.words import NAMED
from assay.report.page import build_page
from assay.report.section import Section
from assay.report.style import MUTED
from assay.studies.icl.report import BYTES
from assay.tasks import tasks

COLUMNS = (
    "rate: the learning rate that was chosen; edge: it is the lowest or highest of those tried: nothing is compared; "
    f"rates that work: those of the grid that come within {SLACK:g} of the best after a third of the steps; twice the "
    "training: the score after twice as many steps, where the goal was not reached; steps: of training; tasks: what is "
    "trained, as `assay icl` spells it; verdict: what may be said of this mixer alone"
)
"""How to read what the page's table has beside that of the screen."""


def page(card: Card, records: Records, files: Mapping[str, str], notes: Sequence[str] = ()) -> str:
    """Build the page; `files` are those that the mixer comes from, and `notes` say what was left out."""
    asked = f"What can {card.mixer} do, next to the field? Protocol {VERSION}, {card.tier.says}."
    sections = [("Verdicts", asked, _verdicts(card, notes))]
    sections += [
        (each.name, _asked(each), _question(card, each, told, records))
        for each, told in zip(card.lines, card.verdicts(), strict=True)
    ]
    cost = "Tokens per second of one layer of width 64, forward and backward, and token by token; and its memory."
    sections += [
        ("Cost", cost, _cost(card)),
        ("The field", "Every mixer beside it, question by question.", _field(card)),
    ]
    return build_page(sections, list(_behind(records)), title=f"Card of {card.mixer}", files=files, cards=False)


def _behind(records: Records) -> Iterator[Record]:
    """Yield each run once, as its question's; the numbers are in the charts, and would double the page."""
    runs = {record.run.id: (trial.question, record) for trial, record in records.items()}
    for question, record in runs.values():
        yield replace(record, run=replace(record.run, study=question), metrics={}, cost={})


def _asked(each: Line) -> str:
    question = each.answer.question
    goal = (
        f"A model that {question.does} scores at least {question.goal:g}" if question.goal else sentence(question.does)
    )
    return f"{goal.rstrip('.')}. {question.setting}; the task is {question.task}."


def _verdicts(card: Card, notes: Sequence[str]) -> Section:
    """The first screen: in short, and what may be said of the mixer alone; beside whom stands with each question."""
    made = Section("card")
    for told in (card.headline(), *(each.verdict for each in card.lines), *card.comparable(), *notes):
        made.finding(sentence(told))
    note = f"{card.legend()}; {COLUMNS}."
    made.table("card", [card.row(each) | _more(each) for each in card.lines], lead=card.LEAD, note=note)
    rows = [row for each in card.lines for row in _shares(card, each)]
    caption = (
        f"A diamond is {card.mixer} with its 95 % interval, a stroke each mixer of the field. The dashed line at 0 is "
        f"the floor, a guess; left of it is worse than a guess, and {LEAST:g} stands for less too. 1 is the ceiling, "
        "or where nobody knows it the best score here."
    )
    made.chart("profile", profile(rows, title="share of the way from floor to ceiling"), caption=caption)
    return made


def _shares(card: Card, each: Line) -> Iterator[dict[str, Any]]:
    """Yield how much of the way from floor to ceiling every mixer comes; what is worse than a guess is below 0."""
    question, floor = each.answer.question, each.bounds.floor
    answers = [answer for answer in (each.answer, *card.field[question.name]) if not answer.lost]
    if not answers:
        return
    best = min((answer.mean for answer in answers), key=question.loss)
    ceiling = each.bounds.ceiling
    way = question.loss(floor) - question.loss(best if ceiling is None else ceiling)

    def along(value: float | None) -> float | None:
        if value is None:
            return None
        above = question.loss(floor) - question.loss(value)
        if way <= 0:  # nobody knows the ceiling, and nobody here is better than a guess
            return 0.0 if above >= 0 else LEAST
        return min(1.0, max(LEAST, above / way))

    for answer in answers:
        whole = interval_of(answer, each.deviation, each.freedom)
        ends = sorted(bound for bound in (along(whole.low), along(whole.high)) if bound is not None)
        low, high = ends if len(ends) == 2 else (None, None)
        yield {
            "question": question.name,
            "series": answer.mixer,
            "mine": answer is each.answer,
            "x": along(answer.mean),
            "low": low,
            "high": high,
            "score": number(whole, ".3g"),
        }


def _question(card: Card, each: Line, told: str, records: Records) -> Section:
    """Everything about one question; `told` is its verdict, with whom it is told apart from."""
    made, others = Section("card"), card.field[each.answer.question.name]
    made.finding(sentence(told))
    made.finding(sentence(f"certificate: {'; '.join(map(str, each.parts))}"))
    few = [each.answer, *_few(each, others)]
    _scores(made, card, each, others)
    _by_state(made, each, others, {answer.mixer for answer in few})
    _curves(made, each, few, records)
    _lengths(made, each, few, records)
    _rates(made, each, few, records)
    return made


def _few(each: Line, others: Sequence[Answer]) -> list[Answer]:
    """Return the anchors and the best of the field: more lines than these cannot be read in one chart."""
    best = sorted(others, key=lambda answer: each.answer.question.loss(answer.mean))
    return [answer for answer in best if answer.mixer in ANCHORS or answer in best[:NAMED]]


def _name(each: Line) -> str:
    return each.answer.question.name.replace(" ", "_")


def _more(each: Line) -> dict[str, Any]:
    answer = each.answer
    return {
        "rates that work": f"{answer.window}/{len(answer.question.rates)}",
        "twice the training": interval_of(replace(answer, scores=answer.longer), each.deviation, each.freedom)
        if answer.longer
        else None,
        "steps": answer.question.steps,
        "tasks": answer.question.task,
        "verdict": each.verdict,
    }


def _unit(each: Line) -> str:
    question = each.answer.question
    return f"{question.unit} (less is better)" if question.lower else question.unit


def _references(each: Line) -> dict[str, float]:
    found = {"floor": each.bounds.floor}
    return found if each.bounds.ceiling is None else found | {"ceiling": each.bounds.ceiling}


def _scores(made: Section, card: Card, each: Line, others: Sequence[Answer]) -> None:
    """Every mixer, best first, between floor and ceiling."""
    question = each.answer.question
    rows, seeds = [], []
    there = [answer for answer in (each.answer, *others) if not answer.lost]
    for answer in sorted(there, key=lambda answer: question.loss(answer.mean)):
        whole, mine = interval_of(answer, each.deviation, each.freedom), answer is each.answer
        apart = mine or (answer.mixer in each.differences and each.differences[answer.mixer].standing != "level")
        look = {"label": card.marked(answer.mixer, question.name), "colour": MINE if mine else MUTED}
        bounds = {"y": whole.mean, "low": whole.low, "high": whole.high, "score": number(whole, ".3g")}
        rows.append({**look, **bounds, "apart": apart})
        seeds += [{**look, "y": value} for value in answer.scores.values()]
    chart = standings(rows, seeds, title=_unit(each), references=_references(each))
    told = (
        "Every mixer with its 95 % interval, by how seeds vary over the field, or by its own where they vary more; "
        f"every seed a small dot. Filled: told apart from {each.answer.mixer}, by how both vary."
    )
    made.chart(_name(each), chart, caption=f"{told} {card.footnote}".strip())


def _by_state(made: Section, each: Line, others: Sequence[Answer], named: Set[str]) -> None:
    """The score against the bytes that a mixer carries from token to token."""
    points = []
    for answer in (each.answer, *others):
        if answer.sizes.get("state_scalars"):
            whole = interval_of(answer, each.deviation, each.freedom)
            look = {"series": answer.mixer, "mine": answer is each.answer, "x": BYTES * answer.sizes["state_scalars"]}
            bounds = {"y": whole.mean, "low": whole.low, "high": whole.high, "score": number(whole, ".3g")}
            points.append({**look, **bounds})
    if len(points) > 1:
        few, marks = named if len(points) > 2 * NAMED else None, _references(each)
        title = "bytes of state per sequence"
        chart = beside(points, x_title=title, y_title=_unit(each), log_x=True, references=marks, named=few)
        made.chart(f"{_name(each)}_by_state", chart, caption="The score against the state that is carried.")


def _runs(answer: Answer, records: Records) -> list[Record]:
    question = answer.question
    trials = [Trial(question.name, answer.mixer, answer.rate, s, question.steps) for s in answer.scores]
    return [records[trial] for trial in trials if not answer.lost]


def _means(mine: Answer, answer: Answer, values: Mapping[float, Sequence[float]]) -> Iterator[dict[str, Any]]:
    """Yield a point for each x, the mean over seeds."""
    for x, found in values.items():
        mean = fmean(found)
        yield {"series": answer.mixer, "mine": answer is mine, "x": x, "y": mean, "score": f"{mean:.3g}"}


def _drawn(
    made: Section, name: str, each: Line, found: Mapping[str, Mapping[float, Sequence[float]]], few: Sequence[Answer],
    *, caption: str, x_title: str, log_x: bool = False, references: Mapping[str, float] | None = None,
) -> None:  # fmt: skip
    """Draw lines of means, with the seeds of this mixer as dots; `found` has the values by mixer and x."""
    mine = each.answer
    points = [point for answer in few for point in _means(mine, answer, found[answer.mixer])]
    seeds = [{"x": x, "y": y} for x, values in found[mine.mixer].items() for y in values if len(values) > 1]
    if any(point["mine"] for point in points):
        y_title = _unit(each)
        chart = beside(points, x_title=x_title, y_title=y_title, log_x=log_x, references=references, seeds=seeds)
        made.chart(f"{_name(each)}_{name}", chart, caption=caption)


def _curves(made: Section, each: Line, few: Sequence[Answer], records: Records) -> None:
    """Validation while training, at the chosen rate."""
    question = each.answer.question
    steps = [*range(question.every, question.steps, question.every), question.steps]  # the last is validated always
    found: dict[str, dict[float, list[float]]] = {}
    for answer in few:
        at = found.setdefault(answer.mixer, {})
        for run in _runs(answer, records):
            curve = {point["step"]: point[question.watched] for point in run.metrics.get("curve", [])}
            for step in steps:
                if reached := [value for place, value in curve.items() if place <= step]:
                    at.setdefault(step, []).append(reached[-1])
    told = (
        "Validation while training, at the chosen rate, on sequences and sizes as in training: the score may ask for "
        "longer or larger ones alone. A run that has solved it stops, and keeps its score."
    )
    _drawn(made, "while_training", each, found, few, caption=told, x_title="training step")


def _lengths(made: Section, each: Line, few: Sequence[Answer], records: Records) -> None:
    """The score at other lengths than those of training, where a task has them."""
    found: dict[str, dict[float, list[float]]] = {}
    for answer in few:
        at = found.setdefault(answer.mixer, {})
        for run in _runs(answer, records):
            for length, value in sorted(run.metrics.get("by_length", {}).items(), key=lambda item: int(item[0])):
                at.setdefault(int(length), []).append(value)
    versions = tasks.parse(each.answer.question.task).longer().values()
    pairs = {pairs for task in versions if (pairs := getattr(task, "num_kv_pairs", 0))}
    # fewer than are trained, which most mixers hold
    asked = (
        f", asked for {max(pairs)} pairs, fewer than the score asks for; training showed so few in shorter sequences "
        "alone, so that the first point may be below the score"
        if pairs
        else ""
    )
    told = f"From the trained length on, without more training{asked}; mixers with a table of positions are not asked."
    _drawn(made, "by_length", each, found, few, caption=told, x_title="tokens in the sequence", log_x=True)


def _rates(made: Section, each: Line, few: Sequence[Answer], records: Records) -> None:
    """Every rate of the screening: how wide is the window in which a mixer learns?"""
    question = each.answer.question
    found: dict[str, dict[float, list[float]]] = {}
    for answer in few:
        at = found.setdefault(answer.mixer, {})
        for rate in question.rates:
            trial = Trial(question.name, answer.mixer, rate, SCREENING_SEED, question.steps // SCREENING)
            if trial in records and (loss := validation(records[trial], question)) < LOST:
                at[rate] = [abs(loss)]
    told = (
        "The rates tried first, after a third of the steps, one seed. The best of them are trained in full, and by "
        f"those runs, which are not drawn, {each.answer.rate:g} was chosen."
    )
    _drawn(made, "by_rate", each, found, few, caption=told, x_title="learning rate", log_x=True)


def _cost(card: Card) -> Section:
    made = Section("card")
    for told in card.costs():
        made.finding(sentence(told))
    hows = {"trained": "forward and backward, 8 sequences of 256", "decoded": "one token after the other"}
    for way, told in hows.items():
        found = {mixer: value for mixer, each in card.speeds.items() if (value := getattr(each, way))}
        rows = [
            {"label": mixer, "colour": MINE if mixer == card.mixer else MUTED, "apart": True, "low": None, "y": value,
             "high": None, "score": f"{value:,.0f}"}
            for mixer, value in sorted(found.items(), key=itemgetter(1), reverse=True)
        ]  # fmt: skip
        if rows:
            chart = standings(rows, [], title="tokens per second", references={}, log=True)
            made.chart(f"speed_{way}", chart, caption=f"{way.capitalize()}, {told}; measured on this machine.")
    by_length = {mixer: each.by_length for mixer, each in card.speeds.items()}
    kept = {mixer: {length: size / 1000 for length, size in each.kept.items()} for mixer, each in card.speeds.items()}
    told = "Training speed against length, as many tokens in every batch; measured on this machine."
    _against_length(made, "speed_by_length", card.mixer, by_length, unit="tokens per second", caption=told)
    told = "What one layer keeps for the backward pass against length: every storage counted once."
    _against_length(made, "kept_by_length", card.mixer, kept, unit="kB per token", caption=told)
    return made


def _against_length(
    made: Section, name: str, mine: str, found: Mapping[str, Mapping[int, float]], *, unit: str, caption: str
) -> None:
    points = [
        {"series": mixer, "mine": mixer == mine, "x": length, "y": value, "score": f"{value:,.3g}"}
        for mixer, own in found.items()
        for length, value in own.items()
    ]
    if points:
        chart = beside(points, x_title="tokens in the sequence", y_title=unit, log_x=True)
        made.chart(name, chart, caption=caption)


def _field(card: Card) -> Section:
    """Every mixer as a row: its scores, its size and its speed."""
    made = Section("card")
    names = dict.fromkeys([card.mixer, *(answer.mixer for own in card.field.values() for answer in own)])
    rows = []
    for name in names:
        row: dict[str, Any] = {"mixer": card.marked(name)}
        for each in card.lines:
            question = each.answer.question.name
            answer = next((one for one in (each.answer, *card.field[question]) if one.mixer == name), None)
            scored = answer if answer and not answer.lost else None
            row[question] = scored and interval_of(scored, each.deviation, each.freedom)
            if answer and answer.sizes and "parameters" not in row:
                row |= {"parameters": answer.sizes["params"], "bytes of state": BYTES * answer.sizes["state_scalars"]}
        speed = card.speeds.get(name)
        row |= {
            "trained, tokens/s": speed and round(speed.trained),
            "decoded, tokens/s": speed and speed.decoded and round(speed.decoded),
        }
        rows.append(row)
    keys = dict.fromkeys(key for row in rows for key in row)
    told = (
        "Parameters of the whole model, and its bytes of state, in the first question that a mixer was asked. "
        f"{card.footnote}"
    ).strip()
    formats = dict.fromkeys((each.answer.question.name for each in card.lines), ".2f")
    made.table("field", [{key: row.get(key) for key in keys} for row in rows], formats=formats, note=told)
    return made
