"""What a card will take is estimated from a few steps, and from the scoring of a few sequences."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from card_toys import TOY
from torch import Tensor, nn

from assay.card import cost
from assay.card.battery import Trial
from assay.card.cost import Pace, Speed, expected, fixed_seconds, kept_bytes, pace_of, speeds
from assay.card.making import compiled
from assay.core.run import Numerics
from assay.studies.icl import scoring
from assay.train.trainer import Trainer

QUESTION = TOY.questions[0]
CPU = torch.device("cpu")


MIXED = replace(QUESTION, task="mqar:vocab_size=32:input_seq_len=16:num_kv_pairs=4:min_kv_pairs=2", curriculum=0.9)


class Stepping:
    """A trainer of a mixture whose steps take a second each, by a clock that only it moves."""

    device = CPU

    def __init__(self) -> None:
        self.now = 0.0

    def run(self) -> Iterator[int]:
        for step in range(100):
            self.now += 1.0
            yield step


def test_slow_steps_are_timed_once_for_each_part_of_a_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer: Any = Stepping()
    monkeypatch.setattr(cost.time, "perf_counter", lambda: trainer.now)
    assert cost._seconds_per_step(trainer, 1, 3) == 1.0
    assert trainer.now == 1 + 3, "a warm-up, and each part"


def test_a_large_step_is_timed_with_fewer_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def stepped(trainer: Trainer, before: int, parts: int) -> float:
        seen.append(trainer.train.micro_batch_size)
        return 1.0

    monkeypatch.setattr(cost, "_seconds_per_step", stepped)
    monkeypatch.setattr(cost, "_seconds_to_score", lambda *_: 3.0)
    large = replace(MIXED, batch=8000, every=10)
    assert large.work > 30 * cost.LARGEST
    pace = pace_of(TOY, large, "gru", CPU, together=False)
    assert seen == [large.batch * cost.LARGEST // large.work]
    assert pace.step == pytest.approx(large.batch / seen[0] + 0.3), "a validation of 3 s in 10 steps"
    small = replace(MIXED, eval_size=30, batch=10, every=10)
    assert pace_of(TOY, small, "gru", CPU, together=False).step == 1.3 and seen[1] == small.batch
    bank = pace_of(TOY, small, "gru", CPU, together=True)
    assert bank.step == pytest.approx(0.55), "two models share a step; a validation is counted as 3 batches forward"


def test_what_a_run_is_scored_on_is_timed_by_a_few_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at other lengths than that of training, which takes as long as hundreds of training steps."""
    scored: dict[int, list[int]] = {}
    real = scoring.score

    def counted(answers: Any, task: Any, *, size: int, rngs: Any) -> Any:
        scored.setdefault(task.shape().length, []).append(size)
        return real(answers, task, size=size, rngs=rngs)

    monkeypatch.setattr(scoring, "score", counted)
    pace = pace_of(TOY, replace(MIXED, eval_size=10**6), "gru", CPU, together=False)
    assert list(scored) == [16, 32, 64, 128] and all(size < 2000 for own in scored.values() for size in own)
    assert pace.tests > 4 * pace.step


def test_what_is_known_is_not_charged_and_what_is_missing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "pace_of", lambda *_, **__: Pace(1.0, 0.0))
    whole = expected(TOY, QUESTION, "gru", CPU)
    assert (whole.least, whole.most) == (12 * (3 / 3 + 2 + 2), 12 * (3 / 3 + 3 + 1 + 2 + 4))
    screened = [Trial("recall", "gru", rate, 100, 4) for rate in QUESTION.rates]
    left = expected(TOY, QUESTION, "gru", CPU, screened)
    assert (left.least, left.most) == (whole.least - 12, whole.most - 12)
    known = [Trial("recall", "gru", seed, seed, 24) for seed in range(6)]
    left = expected(TOY, QUESTION, "gru", CPU, known, [Trial("recall", "gru", 1.0, 1, 24)])
    assert left.least == left.most == 24
    monkeypatch.setattr(cost, "pace_of", lambda *_, **__: Pace(0.0, 1.0))
    tests = expected(TOY, QUESTION, "gru", CPU, screened)
    assert (tests.least, tests.most) == (2 + 2, 3 + 1 + 2 + 2), "the runs that are left, each tested once"


def test_a_card_takes_time_beside_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rounds of timing layers by one of them, for each mixer, and a page for each of those that are asked."""
    monkeypatch.setattr(cost, "LENGTH", 16)
    clock = iter([0.0, 2.0])
    monkeypatch.setattr(cost.time, "perf_counter", lambda: next(clock))
    told = fixed_seconds(["gru", "base_conv"], ["gru", "base_conv", "linear_attention"], CPU)
    assert told == cost.STARTING + 2 * cost.DRAWING + 2.0 * (cost.REPEATS + 1)


def test_kernels_are_compiled_beside_and_nothing_is_left_running() -> None:
    with compiled(["gru", "no_such_mixer", "linear_attention"], Numerics()) as beside:
        assert beside.poll() is None
    assert beside.returncode == 0, "what fails there is told where it is timed"
    with pytest.raises(KeyboardInterrupt), compiled(["gru"], Numerics()) as interrupted:
        raise KeyboardInterrupt
    assert interrupted.returncode == -signal.SIGKILL


def test_layers_are_timed_that_this_process_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[str] = []
    monkeypatch.setattr(cost, "speeds", lambda words, *_, **__: timed.extend(words))
    cost.main("cpu", "torch", "gru", "delta_net")
    assert timed == ["gru", "delta_net"]


class Unfused(nn.Module):
    """Causal attention that writes its weights down, without parameters."""

    def forward(self, x: Tensor) -> Tensor:
        weights = (x @ x.mT).softmax(-1)
        return weights @ x


class Squared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight  # keeps x, and the weight, which is there anyway
        return y * y  # keeps y, once


def test_what_is_kept_for_the_backward_pass_is_counted_once() -> None:
    for length in (4, 16):
        assert kept_bytes(Squared(), torch.randn(2, length, 8)) == 4 * (8 + 8)


def test_written_weights_of_attention_grow_with_length_and_a_recurrence_does_not() -> None:
    def at(layer: nn.Module, length: int) -> float:
        return kept_bytes(layer, torch.randn(2, length, 16).requires_grad_())

    assert at(Unfused(), 256) - at(Unfused(), 64) == 4 * (256 - 64), "a row of weights per token"
    recurrent = nn.RNN(16, 16, batch_first=True)
    states = [at(_First(recurrent), length) for length in (64, 256)]
    assert states[0] == pytest.approx(states[1], rel=0.05)


class _First(nn.Module):
    """A module of torch that returns its output before its state."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


def test_mixers_are_timed_in_turn_and_lengths_and_memory_of_those_that_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    monkeypatch.setattr(cost, "LENGTH", 64)
    monkeypatch.setattr(cost, "BATCH", 4)
    monkeypatch.setattr(cost, "_train", lambda layer, x: order.append(type(layer).__name__))
    found = speeds(["base_conv", "linear_attention"], CPU, by_length=["base_conv"])
    assert len(order) == (cost.REPEATS + 1) * 3 and len(set(order[:2])) == 2, "both, and one length more"
    assert all(len(each.rounds[way]) == cost.REPEATS for each in found.values() for way in ("trained", "decoded"))
    assert list(found["base_conv"].by_length) == list(found["base_conv"].kept) == [64, 256]
    assert not found["linear_attention"].kept


def test_a_ratio_has_the_range_of_its_rounds() -> None:
    mine, other = (Speed(2.0, 1.0, rounds={"trained": rounds}) for rounds in ((1.0, 2.0, 6.0), (2.0, 2.0, 4.0)))
    ratio = mine.ratio(other, "trained")
    assert (ratio.mean, ratio.low, ratio.high) == (1.0, 0.5, 1.5)
    assert mine.ratio(other, "decoded").mean == 1.0 and mine.ratio(other, "decoded").low is None
