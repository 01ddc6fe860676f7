"""Mixers with a planted weakness: each keeps every promise, has exactly that weakness, and the card says so."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from card_toys import TRIED
from torch import Tensor

from assay.card.battery import Answer, Bounds, answer, battery
from assay.card.judge import line
from assay.card.protocol import TIERS
from assay.card.question import Tier
from assay.card.running import reader
from assay.card.wording import in_words
from assay.command.plugin_files import plugins_of
from assay.contracts.base import check
from assay.mixers import mixers
from assay.nn.random import initialised_from, stream

PLANTED = sorted((Path(__file__).parent / "planted").glob("*.py"))


def built(word: str, length: int = 128) -> Any:
    for path in PLANTED:
        plugins_of(str(path), [])
    with initialised_from(0, "planted"):
        return mixers.parse(word).build(32, length).eval()


def memory_after(module: Any, tokens: Tensor) -> Tensor:
    """The memory of a recurrent mixer after some tokens."""
    state = module.init_state(1)
    with torch.no_grad():
        for token in tokens:
            _, state = module.step(token[None], state)
    return state[1]


def some(count: int) -> Tensor:
    return torch.randn(count, 32, generator=stream(0, "planted"))


@pytest.mark.parametrize("path", PLANTED, ids=lambda path: path.stem)
def test_a_planted_mixer_is_a_short_file_that_keeps_every_promise(path: Path) -> None:
    plugins_of(str(path), [])
    assert len(path.read_text().splitlines()) < 60
    broken = [verdict for verdict in check("mixers", mixers.parse(path.stem)) if not verdict.kept]
    assert not broken, broken


def test_a_window_of_16_does_not_see_what_is_further_back() -> None:
    x = some(64)[None]
    moved = torch.cat([x[:, :1] + 1, x[:, 1:]], dim=1)
    gaps = {word: float((built(word)(x) - built(word)(moved))[:, 40:].abs().max())
            for word in ("window_of_16", "attention:conv=4")}  # fmt: skip
    assert gaps["window_of_16"] == 0 < gaps["attention:conv=4"]


def test_what_is_not_overwritten_adds_up() -> None:
    often = some(1).expand(100, -1)
    few = {word: memory_after(built(word), often[:20]).norm() for word in ("no_overwriting", "delta_net")}
    many = {word: memory_after(built(word), often).norm() for word in few}
    assert many["no_overwriting"] > 4 * few["no_overwriting"] and many["delta_net"] < 1.1 * few["delta_net"]


def test_without_decay_nothing_fades() -> None:
    """What one token has left behind, after 8 tokens of silence and after 100."""

    def left(word: str, silent: int) -> float:
        module, silence = built(word), torch.zeros(silent, 32)
        said, unsaid = (memory_after(module, torch.cat([first, silence])) for first in (some(1), silence[:1]))
        return float((said - unsaid).norm())

    kept = {word: left(word, 100) / left(word, 8) for word in ("no_decay", "mamba2")}
    assert kept["no_decay"] == pytest.approx(1, rel=1e-4) and kept["mamba2"] < 0.9


def shipped_field(tier: Tier, name: str) -> list[Answer]:
    question, runner = tier.question(name), reader(tier)
    names = runner.field()[name]
    found = battery(replace(tier, questions=(question,)), {name: names}, runner.only_shipped)
    return [answer(tier, question, each, found) for each in names]


def test_the_card_of_a_window_of_16_says_that_it_does_not_recall() -> None:
    """Its scores are those of a card that was trained in full, next to the field as it ships."""
    question = TIERS["smoke"].question("recall")
    window = Answer(
        "window_of_16",
        question,
        {0: 0.139, 1: 0.146},
        rate=0.03,
        at_edge=False,
        tried=TRIED,
        window=3,
        longer={0: 0.138, 1: 0.147},
    )
    judged = line(window, shipped_field(TIERS["smoke"], "recall"), Bounds(0.0625, 1.0))
    told = in_words([judged])[0]
    assert judged.certified and told.startswith("recalls 16 pairs with none of 2 seeds"), told
    assert (
        judged.differences["attention:conv=4"].standing == "below"
        and "; at equal training worse than attention:conv=4, based:conv=4, mamba2, mlstm and 7 more" in told
    ), told


def test_the_card_of_a_delta_rule_that_adds_says_that_it_does_not_update() -> None:
    """Scores of a card that was trained in full: it recalls as delta_net does, and keeps new values worse."""
    scores = {
        "update": ((0.354, 0.366, 0.344, 0.387, 0.354), (0.395, 0.395, 0.372, 0.401, 0.435), 0.01),
        "recall": ((0.402, 0.406, 0.472, 0.461, 0.469), (0.477, 0.388, 0.470, 0.485, 0.462), 0.03),
    }
    standing = {}
    for name, (first, longer, rate) in scores.items():
        question = TIERS["standard"].question(name)
        adds = Answer(
            "no_overwriting", question, dict(enumerate(first)), rate=rate, at_edge=False, tried=TRIED, window=2,
            longer=dict(enumerate(longer)),
        )  # fmt: skip
        judged = line(adds, shipped_field(TIERS["standard"], name), Bounds(0.0625, 1.0))
        standing[name] = judged.differences["delta_net"].standing
    assert standing == {"update": "below", "recall": "level"}


def test_the_card_of_a_state_space_model_without_decay_says_that_it_does_not_update() -> None:
    """Scores of a card that was trained in full: it recalls as mamba2 does, and keeps new values worse."""
    scores = {"update": ((0.767, 0.814), (0.800, 0.819)), "recall": ((0.984, 0.989), ())}
    told, standing = {}, {}
    for name, (first, longer) in scores.items():
        question = TIERS["smoke"].question(name)
        keeps = Answer(
            "no_decay", question, dict(enumerate(first)), rate=0.01, at_edge=False, tried=TRIED, window=2,
            longer=dict(enumerate(longer)),
        )  # fmt: skip
        judged = line(keeps, shipped_field(TIERS["smoke"], name), Bounds(0.0625, 1.0))
        standing[name], told[name] = judged.differences["mamba2"].standing, in_words([judged])[0]
    assert standing == {"update": "below", "recall": "level"}
    assert told["update"].startswith("keeps the newest of 2 values of 4 keys with none of 2 seeds"), told["update"]
    assert "nor with twice the training" in told["update"] and "; worse than mamba2" in told["update"]
