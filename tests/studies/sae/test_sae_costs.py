"""Models that are trained together share what it took: what the first is charged must not stand for the others."""

from collections.abc import Iterator
from typing import Any

import pytest

from assay.core.run import Run
from assay.core.worker import Job, execute
from assay.studies.sae import fitting
from assay.studies.sae.sae import Sae, parsed
from assay.train.coder_bank import CoderBank


class Hand:
    """A clock that stands still unless it is moved."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    process_time = perf_counter


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    """To load takes 12 s, to train a bank 60 s, to score a model 1 s."""
    hand, load, run, score = Hand(), fitting.load, CoderBank.run, fitting.score

    def slow_load(*given: Any) -> Any:
        hand.now += 12
        return load(*given)

    def slow_run(bank: CoderBank) -> Iterator[Any]:
        hand.now += 60
        yield from run(bank)

    def slow_score(*given: Any) -> Iterator[Any]:
        for found in score(*given):
            hand.now += 1
            yield found

    monkeypatch.setattr(fitting, "time", hand)
    monkeypatch.setattr(fitting, "load", slow_load)
    monkeypatch.setattr(CoderBank, "run", slow_run)
    monkeypatch.setattr(fitting, "score", slow_score)
    return hand


def costs(runs: list[Run], hand: Hand) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def store(message: Any) -> None:
        if hasattr(message, "cost"):
            hand.now += 1000  # the driver's time is nobody's
            found.append(dict(message.cost))

    execute(Job("sae", runs), store)
    return found


def test_a_bank_is_shared_by_its_models_and_none_pays_for_the_others(hand: Hand) -> None:
    study = Sae(coders=parsed(["topk:k=2", "topk:k=4"]), d_code=8, lrs=(1e-3,), epochs=2, seeds=(0, 1))
    found = costs(study.plan(), hand)
    assert [(cost["seconds"], cost["cpu_seconds"]) for cost in found] == [(60 / 4 + 12 / 4 + 1,) * 2] * 4
    assert [(cost["train_seconds"], cost["trained_together"]) for cost in found] == [(15, 4)] * 4


def test_coders_that_are_fitted_share_the_loading_alone(hand: Hand) -> None:
    found = costs(Sae(coders=parsed(["pca"]), d_code=8, seeds=(0, 1)).plan(), hand)
    assert [cost["seconds"] for cost in found] == [12 / 2 + 1] * 2
