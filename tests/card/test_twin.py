"""A copy of delta_net under another name lands where delta_net does, on every line of the real tiers."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from assay.api import Execution
from assay.card import cost, protocol
from assay.card.battery import Records, Trial
from assay.card.card import Card
from assay.card.making import made
from assay.card.protocol import FIELD, SMOKE, TIERS
from assay.card.question import Tier
from assay.card.running import Runner
from assay.core.run import Numerics, Record, Run
from assay.core.seeds import derive

TWIN, MODEL = "delta_net_again", "delta_net"
Cli = Callable[..., tuple[int, str, str]]
COPY = """
from dataclasses import dataclass
from assay.mixers import mixers
from assay.mixers.delta_net import DeltaNet

@mixers.register("delta_net_again")
@dataclass(frozen=True, kw_only=True)
class Again(DeltaNet):
    aliases = ()
"""
OTHERS = [word for word in FIELD if word != MODEL]


def fabricated(tier: Tier, trial: Trial, *, apart: int = 0) -> Record:
    """A record of a field that spreads over each question's range. The twin has the level of its model, and with
    `apart` seeds of its own, as one that was trained on another machine."""
    question = tier.question(trial.question)
    own = trial.mixer == TWIN
    mixer = MODEL if own else trial.mixer
    level = Random(derive(0, trial.question, mixer)).uniform(0.2, 0.85)
    noise = Random(derive(apart * own, trial.question, mixer, trial.seed)).gauss(0, 0.03)
    score = level + noise - 0.15 * (trial.rate != question.rates[1])
    lost = dict.fromkeys(("bits_per_byte", "mse", "loss"), 4 - 2 * score)
    told = {"accuracy": score, **lost, "by_size": {}, "by_length": {}}
    if question.metric[0].startswith("by_"):
        told[question.metric[0]] = {question.metric[1]: score}
    run = Run("icl", {"trial": str(trial)}, trial.seed, {}, Numerics())
    references = {
        name: {"accuracy": share, **dict.fromkeys(lost, loss)}
        for name, share, loss in (("oracle", 1.0, 0.0), ("plain", 0.1, 4.5))
    }
    return Record(run, "done", {**told, "curve": [told], "references": references})


def cards(tier: Tier, out: Path, *, apart: int = 0) -> list[Card]:
    def look(trials: Sequence[Trial]) -> Records:
        return {trial: fabricated(tier, trial, apart=apart) for trial in trials}

    field = {question.name: OTHERS for question in tier.questions}
    runner = Runner(tier, Execution(out=out), compute=lambda session: [])
    return made([TWIN, MODEL], field, runner, look)[0]


@pytest.mark.parametrize("name", TIERS)
def test_a_twin_has_the_rank_of_its_model_on_every_line(name: str, tmp_path: Path) -> None:
    twin, model = cards(TIERS[name], tmp_path)
    assert len(twin.lines) == len(TIERS[name].questions)
    for mine, other in zip(twin.lines, model.lines, strict=True):
        question = mine.answer.question.name
        assert mine.rank == other.rank and mine.rank.endswith("of 20"), question
        assert mine.differences[MODEL].standing == "level" and mine.differences[MODEL].interval.mean == 0, question
        for word in OTHERS:
            assert mine.differences[word].standing == other.differences[word].standing, (question, word)
    standings = {each.standing for line in twin.lines for each in line.differences.values()}
    assert standings == {"above", "below", "level"}, "the field is told apart"


def test_a_twin_with_seeds_of_its_own_is_seldom_told_from_its_model(tmp_path: Path) -> None:
    tier = TIERS["standard"]
    lines = [line for apart in range(1, 6) for line in cards(tier, tmp_path, apart=apart)[0].lines]
    told = sum(line.differences[MODEL].standing != "level" for line in lines)
    assert len(lines) == 30 and told <= 1, "5 % of lines at most"


def test_a_twin_that_is_trained_scores_as_its_model_to_the_last_bit(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what a model begins with, nor its data, nor the width that matches it depends on a mixer's name."""
    few: dict[str, Any] = {"steps": 3, "every": 3, "eval_size": 20, "rates": (1e-2, 3e-2), "goal": None}
    asked = (SMOKE.question("copy"),)
    monkeypatch.setattr(protocol, "TIERS", {"smoke": replace(SMOKE, questions=tuple(replace(q, **few) for q in asked))})
    monkeypatch.setattr(cost, "LENGTH", 16)
    monkeypatch.setattr(cost, "REPEATS", 1)
    monkeypatch.setattr("assay.command.card.check_promises", lambda *words: None)  # its promises are tried elsewhere
    monkeypatch.chdir(tmp_path)
    Path("twin.py").write_text(COPY)
    code, out, err = cli("card", "twin.py", "--vs", MODEL, "--executor", "serial", "--json")
    assert code == 0, err
    for name, line in json.loads(out)[0]["questions"].items():
        gap = line["differences"][MODEL]
        assert gap["standing"] == "level" and gap["interval"]["mean"] == 0 and line["rank"] == "1-2 of 2", name
