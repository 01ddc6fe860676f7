"""The screen and the page of a card, from answers that are given: no mixer is trained."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from assay.card.battery import Answer, Bounds
from assay.card.card import Card
from assay.card.charts import LETTER, LINE, _Plane
from assay.card.cost import Speed
from assay.card.judge import line
from assay.card.protocol import Question, Tier

QUESTION = Question("recall", "recalls 16 pairs", "mqar")
TIER = Tier("smoke", "smoke: large differences only", (0, 1), (QUESTION,))
BOUNDS = Bounds(0.1, 1.0)


def answered(name: str, *scores: float, params: int = 100, state: int = 10, longer: Sequence[float] = ()) -> Answer:
    sizes = {"layer_params": params, "state_scalars": state, "flops_per_token": 5.0}
    by_seed, more = dict(enumerate(scores)), dict(enumerate(longer))
    return Answer(name, QUESTION, by_seed, rate=1e-2, at_edge=False, window=2, longer=more, sizes=sizes)


def card(mine: Answer, *field: Answer, ships: Sequence[str] = ()) -> Card:
    speeds = {each.mixer: Speed(100.0 * (1 + place), 10.0) for place, each in enumerate((mine, *field))}
    lent = frozenset((name, "recall") for name in ships)
    return Card(mine.mixer, TIER, [line(mine, field, BOUNDS)], {"recall": field}, speeds, lent=lent)


def test_who_recalls_as_much_per_byte_is_said_where_every_seed_recalls() -> None:
    field = [
        answered("same", 0.97, 0.99),
        answered("large", 0.96, 0.98, state=80),
        answered("small", 0.97, 0.98, state=2),
    ]
    told = card(answered("mine", 0.98, 0.98), *field).verdicts()[0]
    assert told.endswith("as much per byte of state as same, and in 40 bytes of state, where large carry 320 or more")
    weak = card(answered("mine", 0.2, 0.2, longer=(0.2, 0.2)), *field).verdicts()[0]
    assert "per byte" not in weak and "0 of 2 seeds" in weak
    half = card(answered("mine", 0.98, 0.2, longer=(0.98, 0.2)), *field).verdicts()[0]
    assert "per byte" not in half, "one seed does not recall"


def test_shipped_rows_have_a_dagger_and_a_footnote() -> None:
    mine, other = answered("mine", 0.9, 0.92), answered("other", 0.5, 0.52)
    shown = card(mine, other, ships=["other"])
    assert "other † (+0.40" in shown.text() and "† records that ship" in shown.text()
    assert shown.to_json()["shipped"] == {"recall": ["other"]}
    assert "†" not in card(mine, other).text()


def test_the_size_and_the_speed_stand_beside_the_field() -> None:
    shown = card(answered("mine", 0.9, 0.9), answered("other", 0.9, 0.9, params=150)).costs()
    assert "100 parameters (the field's 150 to 150); 40 bytes of state" in shown[0]
    assert "100 trained, which is 0.5 x other" in shown[-1]


def test_undecided_says_how_many_more_seeds_would_tell() -> None:
    told = card(answered("mine", 0.60, 0.68, longer=(0.6, 0.68)), answered("best", 0.66, 0.74)).verdicts()[0]
    assert (
        "not told apart from best; undecided: about " in told and "more seeds of each would tell it from best" in told
    )


def test_names_in_a_chart_stand_on_none_of_each_other_and_above_the_axis() -> None:
    points = [{"series": f"mixer_{n}", "mine": n == 3, "x": x, "y": 0.5 + 0.001 * n} for n in range(9) for x in (1, 10)]
    plane = _Plane(points, log_x=True, beside=[0.0, 1.0])
    places = [(label["series"], (label["y"] - plane.bottom) / plane.height) for label in plane.labels(points)]
    assert {name for name, _ in places} == {point["series"] for point in points} and LETTER < 1
    assert all(abs(one - two) > 0.99 * LINE for (_, one), (_, two) in combinations(places, 2))
    low = [{"series": f"mixer_{n}", "mine": False, "x": 1, "y": 0.0} for n in range(5)]
    assert all(label["y"] >= plane.bottom for label in _Plane(low, log_x=True, beside=[1.0]).labels(low))


def test_the_headline_counts_who_is_told_better() -> None:
    low, high, alike = (
        answered("low", 0.2, 0.21, 0.19),
        answered("high", 0.9, 0.91, 0.89),
        answered("alike", 0.9, 0.9, 0.9),
    )
    third = answered("third", 0.5, 0.51, 0.49)
    assert card(low, high, alike).headline() == "In short, mixers told better than it: 2 of 2 in recall"
    assert card(high, low, alike, third).headline() == "In short, mixers told better than it: none in recall"
    assert card(high, low).headline() == "In short, mixers told better than it: 0 of 1 in recall", "one is not many"
    assert card(low, high).text().splitlines()[1] == "In short, mixers told better than it: 1 of 1 in recall"
    assert "nothing of it can be compared" in card(replace(low, at_edge=True), high).headline()


def test_a_card_of_one_seed_is_json_without_infinity() -> None:
    """Nothing says how far seeds lie apart, and JSON has no infinity."""
    told = json.loads(json.dumps(card(answered("mine", 0.9), answered("other", 0.5)).to_json(), allow_nan=False))
    assert told["questions"]["recall"]["freedom"] == 0
