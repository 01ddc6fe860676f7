"""Rank correlations of the battery with the language model: planted orders are found, noise is not."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.api import Execution
from assay.card.battery import Trial
from assay.card.protocol import ANCHORS, FAMILIES, FIELD, SMOKE, TIERS
from assay.card.running import Runner
from assay.card.validity import LEAST, _family, validities, validities_of
from assay.core import shipped
from assay.core.run import Numerics, Record, Run
from assay.mixers import mixers

Cli = Callable[..., tuple[int, str, str]]

NAMES = [word.partition(":")[0] for word in FIELD if ":conv" not in word and ":beta" not in word]


def test_a_question_that_ranks_as_the_language_model_does_is_told_from_noise() -> None:
    rng = random.Random(1)
    target = {name: rng.random() for name in NAMES}
    good = {name: value + 0.1 * rng.random() for name, value in target.items()}
    noise = {name: rng.random() for name in NAMES}
    found = {each.question: each for each in validities({"good": good, "noise": noise}, {"text": target})}
    assert found["good"].p is not None and found["good"].p < 0.01
    assert found["good"].rho is not None and found["good"].rho.low is not None and found["good"].rho.low > 0.5
    assert found["noise"].p is not None and found["noise"].p > 0.05
    one = dict.fromkeys(NAMES, 0.5) | {name: target[name] for name in NAMES if _family(name) == "delta"}
    (hung,) = validities({"one family": one}, {"text": target})
    assert hung.without is not None and hung.rho is not None
    assert hung.without[0] == 0.0 < hung.rho.mean, "it hangs on the one family whose scores differ"


def test_few_mixers_give_no_number() -> None:
    few = {name: float(place) for place, name in enumerate(NAMES[: LEAST - 1])}
    (row,) = validities({"recall": few}, {"text": few})
    assert (row.mixers, row.rho, row.p, row.without) == (LEAST - 1, None, None, None)
    enough = {name: float(place) for place, name in enumerate(NAMES[:LEAST])}
    (row,) = validities({"recall": enough}, {"text": enough})
    assert row.rho is not None and row.rho.mean == 1 and row.p is not None and row.p < 0.01


def law(trial: Trial) -> Record:
    """Scores that rise with a mixer's place in the field, of copy alone; its language model has the same order, of
    recalled bytes the other one."""
    place = FIELD.index(trial.mixer.replace("=2.0", "=2")) / len(FIELD) if trial.mixer else 0.0
    level = place if trial.question in ("copy", "language") else 0.5
    told = {"accuracy": level, "by_size": {"16": level, "4": level}, "by_length": {"64": level}}
    text = {"bits_per_byte": 3 - place, "bits_per_byte_recalled": 2 + place}
    curve = [{"accuracy": level + 0.2 * (trial.rate == 1e-2), "bits_per_byte": 3 - place - 0.2 * (trial.rate == 1e-2)}]
    run = Run("icl", {"trial": str(trial)}, trial.seed, {}, Numerics())
    return Record(run, "done", {**told, **text, "curve": curve, "references": {}})


def test_every_question_is_held_against_all_bytes_and_those_that_recall_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {name: [mixers.parse(word).label for word in FIELD] for name in ("recall", "update", "parity", "language")}
    runner = Runner(SMOKE, Execution(), compute=lambda session: [])
    monkeypatch.setattr(Runner, "field", lambda self: there | {"copy": there["recall"][:9]})
    monkeypatch.setattr(Runner, "only_shipped", lambda self, trials: {trial: law(trial) for trial in trials})
    found = {(each.question, each.target): each for each in validities_of(runner)}
    assert len(found) == 8
    assert {name for name, _ in found} == {"recall", "update", "parity", "copy"}
    all_bytes, recalled = found["copy", "bits per byte"].rho, found["copy", "of recalled bytes"].rho
    assert all_bytes is not None and recalled is not None
    assert (all_bytes.mean, recalled.mean, found["copy", "bits per byte"].mixers) == (1, -1, 9)


def test_the_command_has_the_tiers_that_ship_or_the_one_asked_for_and_needs_no_gpu(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, out, err = cli("card", "validity")
    assert code == 0, err
    rows = {tier.name: 2 * (len(tier.questions) - 1) for tier in TIERS.values() if tier.name != "full"}
    lines = [line.split()[0] for line in out.splitlines()[2:]]
    assert {name: lines.count(name) for name in TIERS} == {**rows, "full": 0}, "no records of `full` ship"
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    code, out, _ = cli("card", "validity", "--tier", "standard")
    assert code == 0 and "smoke" not in out and "compression" in out and "too few" in out


def test_a_mixer_has_one_family_whatever_its_options() -> None:
    assert len(FIELD) == len(set(FIELD)) and set(ANCHORS) <= set(FIELD)
    for family, words in FAMILIES.items():
        assert {_family(word) for word in words} == {family}
    assert _family("delta_net:beta_max=2.0") == "delta" and _family("of_a_file") == "other"


def test_the_page_says_on_which_mixers_the_correlations_hang(script: Callable[[str], Any]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "card.md").read_text(encoding="utf-8")
    assert script("docs/influence_card.py").placed(page) == page, "run python docs/influence_card.py"
