"""Shipped records are compared with what was trained here only where the anchors come out the same."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from card_toys import TINY, TOY, TRIED, TWIN

from assay.card import anchors, cost, protocol
from assay.card.anchors import FIRST, Agreement, agreement, agreements
from assay.card.battery import Answer, Records, Trial
from assay.card.judge import LEVEL
from assay.card.question import Question, Tier
from assay.core import shipped
from assay.core.run import Numerics, Record, Run
from assay.core.store import Store
from assay.train.recipe import Train

Cli = Callable[..., tuple[int, str, str]]
MADE: dict[str, bytes] = {}
"""The toy field's records, trained once for all tests of this file."""
LEARNED = replace(
    TOY,
    questions=(
        replace(
            TOY.questions[0], task="memorization:vocab_size=9:input_seq_len=8", steps=30, rates=(3e-3, 3e-2, 3e-1),
            margin=0.2,
        ),
    ),
)  # fmt: skip
"""A question that both anchors learn in thirty steps: what learns nothing agrees with everything."""
QUESTION = Question("recall", "recalls", "mqar")


def answered(name: str, *scores: float) -> Answer:
    return Answer(name, QUESTION, dict(enumerate(scores)), rate=1e-2, at_edge=False, tried=TRIED, window=2)


SHIPPED = {each.mixer: each for each in (answered("a", 0.9, 0.94), answered("b", 0.4, 0.43), answered("c", 0.7, 0.7))}


@pytest.mark.parametrize(
    ("own", "holds"),
    [
        ({"a": [0.92, 0.92], "b": [0.41, 0.42]}, True),
        ({"a": [0.95, 0.96], "b": [0.36, 0.38]}, True),
        ({"a": [0.60, 0.61], "b": [0.15, 0.13]}, False),
        ({"a": [1.00, 1.00], "b": [0.75, 0.77]}, False),
        ({"a": [0.62, 0.62], "b": [0.71, 0.71]}, False),
        ({"a": [0.92, 0.92]}, False),
    ],
    ids=["the same", "about the same", "both worse", "both better", "one worse, one better", "an anchor is missing"],
)
def test_anchors_agree_only_where_a_difference_as_large_as_the_margin_is_ruled_out(
    own: dict[str, list[float]], holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anchors, "ANCHORS", ("a", "b"))
    by_seed = {name: dict(enumerate(scores)) for name, scores in own.items()}
    assert agreement("recall", by_seed, SHIPPED, margin=0.2).holds is holds


def test_anchors_that_come_out_bit_for_bit_agree_however_far_seeds_lie_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shipped recall has mixers that learn with one of their seeds: no two means were shown to be close."""
    monkeypatch.setattr(anchors, "ANCHORS", ("a", "b"))
    wild = {each.mixer: each for each in (answered("a", 0.2, 0.9), answered("b", 0.1, 0.8))}
    assert agreement("recall", {"a": {0: 0.2, 1: 0.9}, "b": {0: 0.1, 1: 0.8}}, wild, margin=0.2).holds
    assert not agreement("recall", {"a": {0: 0.9, 1: 0.2}, "b": {0: 0.1, 1: 0.8}}, wild, margin=0.2).holds, (
        "seed by seed"
    )


def test_seeds_that_vary_much_rule_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "ANCHORS", ("a", "b"))
    wild = {each.mixer: each for each in (answered("a", 0.2, 0.9), answered("b", 0.1, 0.8))}
    assert not agreement("recall", {"a": {0: 0.55, 1: 0.5}, "b": {0: 0.45, 1: 0.4}}, wild, margin=0.2).holds


def asked_of(shift: float, shipped: dict[str, Answer]) -> tuple[list[list[int]], Agreement]:
    """The seeds that are trained, look by look, on a machine whose scores lie off by `shift`, and what comes out."""
    tier, looks = Tier("toy", "toy", (0, 1), (QUESTION,)), list[list[int]]()

    def compute(trials: Sequence[Trial]) -> Records:
        looks.append([trial.seed for trial in trials if trial.mixer == "a"])
        numbers = {trial: shipped[trial.mixer].scores[trial.seed] + shift for trial in trials}
        run = Run("icl", {}, 0, {}, Numerics())
        return {trial: Record(run, "done", {"accuracy": value}) for trial, value in numbers.items()}

    return looks, agreements(tier, {"recall": shipped}, compute)["recall"]


def test_anchors_are_trained_until_the_tests_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "ANCHORS", ("a", "b"))
    quiet = SHIPPED | {name: answered(name, 0.5, 0.51) for name in "defgh"}
    looks, found = asked_of(0.01, quiet)
    assert looks == [[0]] and found.holds, "one seed of each is enough"
    looks, found = asked_of(0.12, quiet)
    assert looks == [[0], [1]] and found.holds, "one seed did not decide"
    looks, found = asked_of(0.19, quiet)
    assert looks == [[0], [1]] and not found.holds and found.level == LEVEL - FIRST, "two looks share one level"


def test_one_seed_is_not_tried_where_it_cannot_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "ANCHORS", ("a", "b"))
    wide = SHIPPED | {name: answered(name, 0.4, 0.6) for name in "defgh"}
    looks, found = asked_of(0.0, wide)
    assert looks == [[0, 1]] and found.level == LEVEL and found.holds


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(protocol, "TIERS", {"smoke": LEARNED})
    for module in (protocol, anchors):
        monkeypatch.setattr(module, "ANCHORS", ("gru", "linear_attention"))
    monkeypatch.setattr(protocol, "FIELD", ("gru", "linear_attention"))
    monkeypatch.setattr(cost, "LENGTH", 16)
    monkeypatch.setattr(cost, "REPEATS", 1)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "shipped")
    (tmp_path / "twin.py").write_text(TWIN)


def make_field(cli: Cli, out: str) -> Path:
    """Train the two mixers by the command that makes the records of the real field."""
    words = ("--own-baselines", "--ship", str(shipped.FOLDER), "--out", out, "--executor", "serial")
    code, _, err = cli("card", "gru", "linear_attention", *words)
    assert code == 0, err
    return shipped.FOLDER / "card.smoke.jsonl.xz"


@pytest.fixture
def field(toy: None, cli: Cli) -> Path:
    """Two mixers whose records ship."""
    path = shipped.FOLDER / "card.smoke.jsonl.xz"
    if "records" in MADE:
        path.parent.mkdir()
        path.write_bytes(MADE["records"])
    else:
        MADE["records"] = make_field(cli, "elsewhere").read_bytes()
    return path


def test_a_field_that_ships_is_not_trained_but_for_its_anchors(field: Path, cli: Cli) -> None:
    code, out, err = cli("card", "twin.py", "--json", "--executor", "serial")
    assert code == 0, err
    assert "linear_attention none optimizer.lr" not in err, "no rate of the field is tried again"
    card = json.loads(out)[0]
    assert card["anchors"]["recall"]["agree"], card["anchors"]
    assert card["questions"]["recall"]["differences"].keys() == {"gru", "linear_attention"}
    assert card["questions"]["recall"]["differences"]["gru"]["standing"] == "level"
    code, out, err = cli("card", "gru", "--executor", "serial", "--out", "fresh")
    assert code == 0 and "to run" not in err, "a mixer that ships is not trained at all"
    assert not Path("fresh/.store").exists()
    assert cli("card", "gru", "--stored", "--executor", "serial", "--out", "fresh")[0] == 0
    code, _, err = cli("card", "mesa", "--vs", "gru", "--stored", "--executor", "serial", "--out", "fresh")
    assert code == 2 and "no question has all its records for mesa" in err and not Path("fresh/.store").exists()
    code, _, err = cli("card", "linear_attention:conv=4", "--vs", "gru", "--stored", "--executor", "serial")
    assert code == 2 and "Those of linear_attention ship: ask for that" in err, "the same with other options"
    assert "linear_attention †" in out and "† records that ship" in out
    page = Path("fresh/card/gru.html").read_text()
    assert "gru †" in page and "class GRU" in page, "its file stands on the page too"


DIVERGES = f"""{TWIN}
    def core(self, d_model, max_len):
        made = super().core(d_model, max_len)
        made.seen = 0
        def spoilt(module, given, answers):
            module.seen += module.training
            return answers * float("nan") if module.seen > 8 else answers
        made.register_forward_hook(spoilt)
        return made
"""
"""Its outputs are no numbers after a few steps of training, which no promise tries."""


def test_a_plan_says_how_a_mixer_is_asked_and_which_anchors_are_trained(field: Path, cli: Cli) -> None:
    code, out, err = cli("card", "twin.py", "--dry-run", "--executor", "serial")
    asked, anchors, whole = out.splitlines()
    rounds = "3 rates for 10 steps, 2 or more for 30, one with 2 seeds, and longer where it does not reach the goal"
    assert code == 0 and asked.startswith(f"recall: {rounds}; ") and "next to 2 mixers whose records ship" in asked, err
    assert re.fullmatch(r"anchors: [24] runs of gru and linear_attention or more, to see if .+", anchors), anchors
    assert whole.startswith("for twin: ")


def test_no_anchor_is_trained_for_a_mixer_without_a_score(field: Path, cli: Cli) -> None:
    Path("twin.py").write_text(DIVERGES)
    code, _, err = cli("card", "twin.py", "--executor", "serial")
    assert code == 0 and "diverged" in err and "round 1 of 5" in err and "anchors" not in err, err
    told = json.loads(Path("results/card/twin.json").read_text())[0]
    assert not told["anchors"] and told["questions"]["recall"]["interval"] is None


def test_rows_of_a_recipe_that_was_tampered_with_are_shown_and_not_ranked(
    toy: None, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The field is trained with another schedule than its records say: their ids and options are the protocol's."""
    once = replace(LEARNED, questions=(replace(LEARNED.questions[0], goal=None),))  # nothing is trained twice as long
    monkeypatch.setattr(protocol, "TIERS", {"smoke": once})
    with monkeypatch.context() as tampered:
        tampered.setattr(Train, "rate", lambda self, step: 0.0)
        make_field(cli, "elsewhere")
    code, out, err = cli("card", "twin.py", "--executor", "serial")
    assert code == 0, err
    assert "are not shown to agree: recall" in " ".join(out.split()), out
    told = json.loads(Path("results/card/twin.json").read_text())[0]
    assert not told["questions"]["recall"]["differences"] and not told["anchors"]["recall"]["agree"]
    assert all(gap > 0.2 for gap in told["anchors"]["recall"]["gaps"].values()), "each anchor learns more here"


def test_a_budget_leaves_out_what_does_not_fit_and_says_so(
    field: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Question("copy", "copies", "mqar:vocab_size=32:input_seq_len=8:num_kv_pairs=1", model=TINY, steps=10**9)
    two = Tier("smoke", "toy", (0, 1), (*LEARNED.questions, second))
    monkeypatch.setattr(protocol, "TIERS", {"smoke": two})
    words = ("card", "gru", "--vs", "gru", "--dry-run", "--executor", "serial")
    code, out, err = cli(*words, "--budget", "1h")
    assert code == 0 and "left out, to stay within the budget: copy" in err and "copy" not in out
    code, out, err = cli(*words, "--budget", "999999999h")
    assert code == 0 and "left out" not in err and "copy: 4 rates" in out and "in all" in out
    code, out, err = cli(*words, "--budget", "soon")
    assert code == 2 and "10m, 90s or 1h" in err


def test_a_budget_charges_only_for_runs_that_are_neither_stored_nor_shipped(
    field: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute for every training step: whatever has to be trained cannot fit."""
    second = replace(LEARNED.questions[0], name="again", batch=15, steps=6, goal=2.0)
    monkeypatch.setattr(protocol, "TIERS", {"smoke": replace(LEARNED, questions=(*LEARNED.questions, second))})
    monkeypatch.setattr(cost, "pace_of", lambda *_, **__: cost.Pace(60.0, 0.0))
    words = ("card", "gru", "--vs", "gru", "--executor", "serial", "--workers", "1")
    tight = ("--dry-run", "--budget", "10m")
    code, out, err = cli(*words, *tight)
    assert code == 0 and out.startswith("recall: nothing to compute; next to nobody"), "all of it ships"
    assert "left out, to stay within the budget: again" in err
    code, _, err = cli(*words)
    assert code == 0, err
    code, out, err = cli(*words, *tight)
    assert code == 0 and "left out" not in err and "again: nothing to compute; " in out, "all of it is stored"
    assert "for gru: nothing to compute; " in out, "nothing is left, of the anchors neither"
    assert " s to " not in out and " min" not in out
    store = Store("results/card")
    trained = [record.run for record in store.records("icl") if record.run.options["model"]]
    shutil.rmtree(store.folder(next(run for run in trained if run.options["train"]["max_steps"] == 12)))
    code, out, err = cli(*words, "--dry-run")
    assert code == 0 and "for gru: 12 min to" in out, "one run of 12 steps, twice the training, is missing"
    code, out, err = cli("card", "gru", "--vs", "base_conv", *words[4:], *tight)
    assert "again alone may take longer" in err, "a field that is trained here takes time too"
    assert "left out, to stay within the budget: recall" in err, "the cheaper of the two is asked"
