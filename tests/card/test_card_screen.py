"""The screen and the page of a card, from answers that are given: no mixer is trained."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from card_toys import TRIED

from assay.card.anchors import Agreement
from assay.card.battery import Answer, Bounds
from assay.card.card import Card, _ratio
from assay.card.charts import LEAST, _Plane, beside, profile
from assay.card.cost import Speed
from assay.card.judge import line
from assay.card.page import _more, _shares
from assay.card.places import LINE, Box, dot, length_of, places
from assay.card.question import Question, Tier

QUESTION = Question("recall", "recalls 16 pairs", "mqar")
TIER = Tier("smoke", "smoke: large differences only", (0, 1), (QUESTION,))
BOUNDS = Bounds(0.1, 1.0)


def test_a_ratio_has_no_power_of_ten() -> None:
    assert [_ratio(value) for value in (0.6231, 37.4, 99.6, 256.4, 2561.0)] == ["0.62", "37", "100", "256", "2,561"]


def answered(name: str, *scores: float, params: int = 100, state: int = 10, longer: Sequence[float] = ()) -> Answer:
    sizes = {"layer_params": params, "state_scalars": state, "flops_per_token": 5.0}
    by_seed, more = dict(enumerate(scores)), dict(enumerate(longer))
    return Answer(name, QUESTION, by_seed, rate=1e-2, at_edge=False, tried=TRIED, window=2, longer=more, sizes=sizes)


def card(mine: Answer, *field: Answer, ships: Sequence[str] = ()) -> Card:
    speeds = {each.mixer: Speed(100.0 * (1 + place), 10.0) for place, each in enumerate((mine, *field))}
    shipped = frozenset((name, "recall") for name in ships)
    return Card(mine.mixer, TIER, [line(mine, field, BOUNDS)], {"recall": field}, speeds, shipped=shipped)


def test_whose_state_is_as_large_or_larger_is_said_where_every_seed_recalls() -> None:
    field = [
        answered("same", 0.97, 0.99),
        answered("large", 0.96, 0.98, state=80),
        answered("small", 0.97, 0.98, state=2),
    ]
    told = card(answered("mine", 0.98, 0.98), *field).verdicts()[0]
    assert told.endswith("; its 2 layers carry 40 bytes of state, about as many as same, and fewer than large (320)")
    two = card(answered("mine", 0.98, 0.98), *field, answered("larger", 0.97, 0.97, state=160)).verdicts()[0]
    assert two.endswith(" and fewer than large, larger (320 or more)")
    weak = card(answered("mine", 0.2, 0.2, longer=(0.2, 0.2)), *field).verdicts()[0]
    assert "bytes" not in weak and "none of 2 seeds" in weak
    half = card(answered("mine", 0.98, 0.2, longer=(0.98, 0.2)), *field).verdicts()[0]
    assert "bytes" not in half, "one seed does not recall"


def test_shipped_rows_have_a_dagger_and_a_footnote() -> None:
    mine, other = answered("mine", 0.9, 0.92), answered("other", 0.5, 0.52)
    shown = card(mine, other, ships=["other"])
    assert "other † (+0.40" in shown.text() and "† records that ship" in shown.text()
    assert shown.to_json()["shipped"] == {"recall": ["other"]}
    assert "†" not in card(mine, other).text()


def test_the_size_and_the_speed_stand_beside_the_field() -> None:
    shown = card(answered("mine", 0.9, 0.9), answered("other", 0.9, 0.9, params=150)).costs()
    assert "100 parameters (the field's 150 to 150); 40 bytes of state" in shown[0]
    assert shown[-2].startswith("trained on this machine (") and "): 100 tokens/s, which is 0.5 x other" in shown[-2]
    assert shown[-1].startswith("decoded on this machine (") and "): 10 tokens/s, which is 1 x other" in shown[-1]


@pytest.mark.parametrize(
    ("rounds", "said"),
    [((50.0, 55.0, 60.0), "which is 0.55 x other (0.5 to 0.6)"), ((50.0, 55.0, 80.0), "which is 0.5 to 0.8 x other")],
    ids=["close", "far apart"],
)
def test_a_ratio_of_speeds_has_its_range_and_is_withheld_where_rounds_lie_far_apart(
    rounds: tuple[float, ...], said: str
) -> None:
    shown = card(answered("mine", 0.9, 0.9), answered("other", 0.9, 0.9))
    speeds = {"mine": Speed(55.0, 10.0, rounds={"trained": rounds}),
              "other": Speed(100.0, 10.0, rounds={"trained": (100.0,) * 3})}  # fmt: skip
    told = next(each for each in replace(shown, speeds=speeds).costs() if each.startswith("trained"))
    assert told.endswith(said), told


def test_what_is_kept_for_the_backward_pass_stands_beside_the_field() -> None:
    shown = card(answered("mine", 0.9, 0.9), answered("other", 0.9, 0.9), answered("third", 0.9, 0.9))
    speeds = {"mine": Speed(1, 1, kept={64: 2000, 1024: 4000}), "other": Speed(1, 1, kept={64: 4000, 1024: 4000}),
              "third": Speed(1, 1)}  # fmt: skip
    told = replace(shown, speeds=speeds).costs()[-1]
    assert told == (
        "kept for the backward pass, per token: 2 kB at 64 tokens (0.5 x other); 4 kB at 1,024 tokens (1 x other)"
    )


def test_undecided_says_how_many_more_seeds_would_tell() -> None:
    told = card(answered("mine", 0.60, 0.68, longer=(0.6, 0.68)), answered("best", 0.66, 0.74)).verdicts()[0]
    assert "not told apart from best; undecided: about 13 more seeds of both would tell it from best" in told
    assert told.endswith("(name both, and --seeds 15)"), "more seeds of this one alone would not"
    others = [answered(str(place), 0.3, 0.36) for place in range(8)]
    told = card(answered("mine", 0.3, 0.36, longer=(0.3, 0.36)), answered("best", 0.43, 0.49), *others).verdicts()[0]
    assert told.endswith("undecided: about 4 more seeds of it would tell it from best (--seeds 6)"), told


def test_worse_than_a_guess_is_drawn_left_of_the_floor_with_its_interval() -> None:
    """The floor is .1 and the ceiling 1, so that .01 is a tenth of the way below a guess."""
    below, far = answered("below", 0.01, 0.01), replace(answered("far", 0.0, 0.0), scores={0: -2.0, 1: -2.0})
    field = answered("other", 0.5, 0.52), far
    rows = list(_shares(shown := card(below, *field), shown.lines[0]))
    found = {row["series"]: row for row in rows}
    assert found["below"]["x"] == pytest.approx(-0.1) and found["far"]["x"] == LEAST
    assert LEAST <= found["below"]["low"] < -0.1 < found["below"]["high"]
    spec = profile(rows, title="").to_dict(validate=False)
    start, end = next(scale["domain"] for layer in spec["layer"] if (scale := layer["encoding"]["x"].get("scale")))
    drawn = [row[key] for row in rows for key in ("x", "low", "high")]
    assert all(start <= value <= end for value in drawn)
    dashed = [layer for layer in spec["layer"] if layer["mark"].get("strokeDash")]
    assert [spec["datasets"][layer["data"]["name"]][0]["y"] for layer in dashed] == [0.0]


@pytest.mark.parametrize("lower", [True, False], ids=["bits", "accuracy"])
def test_the_best_of_those_that_are_worse_than_a_guess_is_no_ceiling(lower: bool) -> None:
    """Nobody knows the ceiling of text, and the best score here stands for it, but not below the floor."""
    text = replace(QUESTION, lower=lower, goal=None)
    worse, worst, guess = (5.0, 6.0, 4.0) if lower else (3.0, 2.0, 4.0)
    mine, other, level = (
        replace(answered(name, score, score), question=text)
        for name, score in (("mine", worse), ("other", worst), ("level", guess))
    )
    for field, shares in (([other], [LEAST, LEAST]), ([other, level], [LEAST, LEAST, 0.0])):
        judged = line(mine, field, Bounds(guess, None))
        shown = Card("mine", replace(TIER, questions=(text,)), [judged], {"recall": field}, {})
        assert [row["x"] for row in _shares(shown, shown.lines[0])] == shares


def test_names_in_a_chart_stand_on_none_of_each_other_and_above_the_axis() -> None:
    points = [{"series": f"mixer_{n}", "mine": n == 3, "x": x, "y": 0.5 + 0.001 * n} for n in range(9) for x in (1, 10)]
    plane = _Plane(points, log_x=True, beside={"floor": 0.0, "ceiling": 1.0})
    places = [(label["series"], (label["y"] - plane.bottom) / plane.height) for label in plane.labels(points)]
    assert {name for name, _ in places} == {point["series"] for point in points}
    assert all(abs(one - two) > 0.99 * LINE for (_, one), (_, two) in combinations(places, 2))
    low = [{"series": f"mixer_{n}", "mine": False, "x": 1, "y": 0.0} for n in range(5)]
    assert all(label["y"] >= plane.bottom for label in _Plane(low, log_x=True, beside={"ceiling": 1.0}).labels(low))


def test_no_name_stands_on_a_reference_line_and_one_off_its_mark_is_led_to_it() -> None:
    levels = {"floor": 0.1, "ceiling": 1.0}
    ends = [("at_floor", 0.1), ("near_it", 0.12), ("over_it", 0.13), ("at_ceiling", 1.0), ("under_it", 0.97)]
    looks = {"mine": False, "score": "", "low": None}
    lone = [{"series": name, "x": 2.0**place, "y": y, **looks} for place, (name, y) in enumerate(ends)]
    several = [{"series": name, "x": x, "y": y, **looks} for name, y in ends for x in (1.0, 2.0)]
    for points in (lone, several):
        plane = _Plane(points, log_x=True, beside=levels, longest=0.3)
        labels = plane.around(points, points) if points is lone else plane.labels(points)
        assert {label["series"] for label in labels} == {name for name, _ in ends}
        reach = LINE / 2 * plane.height
        for label in labels:
            assert all(abs(label["y"] - level) > 0.99 * reach for level in levels.values()), label
            assert label["far"] or abs(label["y"] - label["at"]) < 1.3 * reach, f"{label} is not beside its mark"
        spec = beside(points, x_title="", y_title="", log_x=True, references=levels).to_dict(validate=False)
        leaders = [layer for layer in spec["layer"] if "x2Offset" in layer["mark"]]
        drawn = {row["series"] for layer in leaders for row in spec["datasets"][layer["data"]["name"]]}
        assert drawn == {label["series"] for label in labels if label["far"]}
        assert all((of["y"]["field"], of["y2"]["field"]) == ("at", "y") for of in (one["encoding"] for one in leaders))
    assert drawn, "five names at two heights are too many for all to stand beside their lines"


def test_a_long_name_at_the_end_of_a_line_has_room() -> None:
    name = "delta_net:beta_max=2.0"
    points = [{"series": name, "mine": True, "x": x, "y": 0.5, "score": "0.5"} for x in (50.0, 1000.0)]
    chart = beside(points, x_title="", y_title="").to_dict(validate=False)
    start, end = chart["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert (end - 1000) / (end - start) > length_of(name), "its name fits right of the last point"


def test_a_name_stands_on_no_point_and_no_other_name_where_there_is_room() -> None:
    close = [(f"mixer_{n}", 0.3 + 0.02 * n, 0.5 + 0.03 * n) for n in range(4)]
    dots = [dot(x, y) for _, x, y in close]
    boxes = [place.box for place in places(close, dots, [], [])]
    assert not any(one.meets(two) for one, two in combinations(boxes, 2))
    assert not any(box.meets(point) for box in boxes for point in dots)
    crowd = [(f"mixer_{n}", 0.5, 0.9) for n in range(6)]
    boxes = [place.box for place in places(crowd, [], [], [])]
    assert not any(one.meets(two) for one, two in combinations(boxes, 2)), "rather further off than on another name"
    assert any(place.far for place in places(crowd, [], [], []))
    (only,) = places([("mixer", 0.95, 0.5)], [], [], [])
    assert only.align == "right" and only.box.right < 0.95, "to the left, where the plot ends on the right"
    (only,) = places([("mixer", 0.5, 0.98 - LINE / 2)], [], [Box(0, 0.97, 1, 0.97)], [])
    assert only.box.top < 0.97 and only.box.left > 0.5, "below a line"
    (only,) = places([("mixer", 0.5, 0.5)], [Box(0.5, 0.3, 1, 0.7)], [], [reference := Box(0, 0.5, 1, 0.5)])
    assert not only.box.meets(reference), "rather on points than on a line that is to be kept free"
    assert only.far or abs(only.y - 0.5) < 0.6 * LINE


def test_the_line_to_a_name_goes_through_no_other_name() -> None:
    """Five points at one height, closer to one another than their names are long, below a line to be kept free."""
    crowd = [(f"mixer_{n}", 0.3 + 0.08 * n, 0.9) for n in range(5)]
    found = places(crowd, [dot(x, y) for _, x, y in crowd], [], [Box(-1, 0.93, 2, 0.93)])
    assert sum(place.far for place in found) > 3
    assert not any(one.crosses(two) for one, two in combinations(found, 2))


def test_the_headline_counts_who_is_told_better() -> None:
    low, high, alike = (
        answered("low", 0.2, 0.21, 0.19, longer=(0.2, 0.21, 0.19)),
        answered("high", 0.92, 0.93, 0.91),
        answered("alike", 0.9, 0.9, 0.9),
    )
    third = answered("third", 0.5, 0.51, 0.49)
    told = "In short, mixers that beat it at equal training: "
    assert card(low, high, alike).headline() == f"{told}2 of 2 in recall"
    assert card(high, low, alike, third).headline() == f"{told}none in recall"
    assert card(high, low).headline() == f"{told}0 of 1 in recall", "one is not many"
    assert card(low, high).text().splitlines()[1] == f"{told}1 of 1 in recall"
    assert "nothing of it can be compared" in card(replace(low, at_edge=True), high).headline()


def test_a_card_of_one_seed_is_json_without_infinity() -> None:
    """Nothing says how far seeds lie apart, and JSON has no infinity."""
    told = json.loads(json.dumps(card(answered("mine", 0.9), answered("other", 0.5)).to_json(), allow_nan=False))
    assert told["questions"]["recall"]["freedom"] == 0


def test_plus_is_better_on_the_screen_whatever_the_direction_of_a_score() -> None:
    """Of bits per byte less is better: the raw difference stays in the JSON."""
    text = replace(QUESTION, name="language", lower=True, goal=None)
    mine, other = (
        replace(answered(name, *scores), question=text)
        for name, scores in (("mine", (2.0, 2.02)), ("other", (1.8, 1.82)))
    )
    judged = line(mine, [other], Bounds(4.0, None))
    shown = Card("mine", replace(TIER, questions=(text,)), [judged], {"language": [other]}, {})
    assert "other (-0.20" in shown.text() and "better (+) or worse (-)" in " ".join(shown.text().split())
    told = shown.to_json()["questions"]["language"]["differences"]["other"]
    assert told["interval"]["mean"] == pytest.approx(0.2) and told["standing"] == "below"


def test_a_language_model_that_loses_to_counting_is_told_so() -> None:
    text = replace(QUESTION, name="language", lower=True, goal=None)
    mine = replace(answered("mine", 2.0, 2.02), question=text)
    for ngram, said in ((1.714, True), (2.2, False)):
        told = line(mine, [], Bounds(4.0, None, ngram=ngram)).verdict
        assert told.endswith("; worse than an n-gram predictor (1.71)") is said and ("n-gram" in told) is said


def test_twice_the_training_has_the_interval_of_the_pooled_deviation() -> None:
    mine = answered("mine", 0.6, 0.7, longer=(0.76, 0.76))
    each = line(mine, [answered("other", 0.4, 0.6), answered("third", 0.3, 0.5)], BOUNDS)
    found = _more(each)["twice the training"]
    assert found.mean == 0.76 and found.mean - found.low == pytest.approx(each.interval.mean - each.interval.low)


@pytest.mark.parametrize(
    ("scores", "said"),
    [((0.09, 0.1), "no better than a guess"), ((0.11, 0.12), "not told from a guess"), ((0.4, 0.42), "")],
    ids=["below the floor", "near it", "above it"],
)
def test_a_score_at_its_floor_is_called_a_guess(scores: tuple[float, ...], said: str) -> None:
    told = card(answered("mine", *scores, longer=scores), answered("other", 0.5, 0.52)).verdicts()[0]
    assert said in told and ("guess" in told) is bool(said), told


def test_cards_of_two_tiers_have_files_of_their_own() -> None:
    shown = card(answered("mine", 0.9, 0.92), answered("other", 0.5, 0.52))
    assert shown.stem == "mine" and replace(shown, tier=replace(TIER, name="standard")).stem == "mine.standard"


def test_differences_that_may_be_the_machines_are_said_unless_anchors_come_out_bit_for_bit() -> None:
    shown = card(answered("mine", 0.9, 0.92), answered("other", 0.5, 0.52), ships=["other"])
    near, exact = (Agreement("recall", {"other": 0.01}, p=0.0, exact=exact) for exact in (False, True))
    told = replace(shown, agreements=(near,)).comparable()[0]
    assert "agree: recall (other +0.01). So this machine shifts scores by less than 0.2 in recall; a" in told
    assert told.endswith("smaller than that may come from the machine.")
    close = card(answered("mine", 0.9, 0.92), answered("other", 0.75, 0.77), ships=["other"])
    told = replace(close, agreements=(near,)).comparable()[0]
    assert told.endswith(
        "may come from the machine: so may those in recall (other)."
    ) and "better than other" in "".join(close.verdicts())
    same = replace(shown, agreements=(exact,)).comparable()[0]
    assert "shifts scores" not in same and "recall (other +0.01, every run the same)" in same


def test_a_mixer_without_a_score_is_in_no_chart_and_counts_for_no_size() -> None:
    lost = replace(answered("mine", 0.0, 0.0), lost="diverged", diverged=3, sizes={})
    shown = card(lost, answered("other", 0.5, 0.52))
    assert [row["series"] for row in _shares(shown, shown.lines[0])] == ["other"]
    assert shown.row(shown.lines[0])["score"] == "diverged" and not shown.failed and not shown.lines[0].certified
    more = replace(shown, lines=[*shown.lines, line(answered("mine", 0.9, 0.9), [], BOUNDS)])
    assert more.to_json()["size"]["layer_params"] == 100
