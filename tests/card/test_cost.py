"""What a card will take is estimated from a few steps: of one model on a CPU, of a bank on a GPU."""

import signal
from dataclasses import replace

import pytest
import torch
from card_toys import TOY

from assay.card import cost
from assay.card.battery import Trial
from assay.card.cost import expected
from assay.card.making import compiled
from assay.core.run import Numerics

QUESTION = TOY.questions[0]
CPU = torch.device("cpu")


@pytest.mark.parametrize("together", [False, True], ids=["one model", "a bank"])
def test_a_step_is_timed_of_a_mixture_too(together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = replace(QUESTION, task="mqar:vocab_size=32:input_seq_len=16:num_kv_pairs=4:min_kv_pairs=2", curriculum=0.9)
    now = iter(range(1000))
    monkeypatch.setattr(cost.time, "perf_counter", lambda: float(next(now)))  # a second from step to step
    told = cost._seconds_per_step(TOY, mixed, "gru", CPU, together=together)
    assert told == (0.5 if together else 1.0), "two models share a step"


def test_what_is_known_is_not_charged_and_what_is_missing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_seconds_per_step", lambda *_, **__: 1.0)
    whole = expected(TOY, QUESTION, "gru", CPU)
    assert (whole.least, whole.most) == (12 * (3 / 3 + 2 + 2), 12 * (3 / 3 + 3 + 1 + 2 + 4))
    screened = [Trial("recall", "gru", rate, 100, 4) for rate in QUESTION.rates]
    left = expected(TOY, QUESTION, "gru", CPU, screened)
    assert (left.least, left.most) == (whole.least - 12, whole.most - 12)
    known = [Trial("recall", "gru", seed, seed, 24) for seed in range(6)]
    left = expected(TOY, QUESTION, "gru", CPU, known, [Trial("recall", "gru", 1.0, 1, 24)])
    assert left.least == left.most == 24


def test_kernels_are_compiled_beside_and_nothing_is_left_running() -> None:
    with compiled(["gru", "no_such_mixer", "linear_attention"], Numerics()) as beside:
        assert beside.poll() is None
    assert beside.returncode == 0, "what fails there is told where it is timed"
    with pytest.raises(KeyboardInterrupt), compiled(["gru"], Numerics()) as interrupted:
        raise KeyboardInterrupt
    assert interrupted.returncode == -signal.SIGKILL


def test_layers_are_timed_that_this_process_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[str] = []
    monkeypatch.setattr(cost, "speed", lambda word, *_, **__: timed.append(word))
    cost.main("cpu", "torch", "gru", "delta_net")
    assert timed == ["gru", "delta_net"]
