"""The law of MAD's plain and noisy recall: maps, slots, noise and which keys are asked."""

from dataclasses import replace

import pytest
import torch

from assay.core.errors import UserError
from assay.nn.random import stream
from assay.tasks.base import Batch
from assay.tasks.in_context_recall import InContextRecall
from assay.tasks.noisy_recall import NoisyRecall
from assay.tasks.repeats import last_places

FEW = InContextRecall(vocab_size=64, input_seq_len=24)  # keys return seldom
SMALL = NoisyRecall(vocab_size=10, noise_vocab_size=4, input_seq_len=12, frac_noise=0.3)
TASKS = [InContextRecall(), NoisyRecall(), FEW, SMALL, InContextRecall(vocab_size=128)]


def draw(task, batch=512):
    return task.sample(batch, stream(0, "test"))


def slow_answers(task, tokens):
    """Read slot by slot, and note the value of each key that was shown before: {place: value}."""
    shown, answers, keys, values = {}, {}, task.keys, task.values
    noise = range(values.stop, task.vocab_size)
    for place in range(0, len(tokens), 2):
        key, value = tokens[place], tokens[place + 1]
        if key >= keys:
            assert key in noise and value in noise
            continue
        assert value in values and shown.get(key, value) == value, "one value per key"
        if key in shown:
            answers[place] = value
        shown[key] = value
    return answers


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_the_last_keys_that_return_are_asked_and_the_oracle_knows_them(task):
    batch = draw(task, 64)
    assert batch.positions.shape[1] == task.answers
    for tokens, places, targets in zip(
        *(x.tolist() for x in (batch.inputs, batch.positions, batch.targets)), strict=True
    ):
        answers = slow_answers(task, tokens)
        wanted = list(answers)[-task.answers :]
        assert set(places) == set(wanted) and len(tokens) - 2 in answers, "the last slot always asks"
        assert targets == [answers[place] for place in places]
        assert len(wanted) < task.answers or places == wanted
    assert torch.equal(task.oracle(batch), batch.targets)


def test_the_worked_example_is_answered():
    tokens = torch.tensor([[2, 7, 0, 4, 2, 7, 1, 4, 0, 4, 2, 7]])
    task = InContextRecall(vocab_size=8, input_seq_len=12)
    batch = Batch(tokens, torch.zeros(1, 3), torch.tensor([[4, 8, 10]]))
    assert task.oracle(batch).tolist() == [[7, 4, 7]]
    assert task.references(batch)["frequent"].tolist() == [[4, 4, 4]], "a tie goes to the smaller value"
    assert slow_answers(task, tokens[0].tolist()) == {4: 7, 8: 4, 10: 7}


def test_the_published_sizes_ask_56_and_43_times():
    assert (InContextRecall().keys, len(InContextRecall().values), InContextRecall().answers) == (8, 8, 56)
    noisy = NoisyRecall()
    assert (noisy.keys, len(noisy.values), noisy.noise_slots, noisy.answers) == (8, 8, 13, 43)


@pytest.mark.parametrize("task", [InContextRecall(), FEW, SMALL], ids=str)
def test_there_are_as_many_answers_as_keys_return_on_average(task):
    found = [len(slow_answers(task, tokens)) for tokens in draw(task, 400).inputs.tolist()]
    assert task.answers == pytest.approx(sum(found) / len(found), abs=1.1)


def test_keys_values_and_noise_are_uniform():
    task = replace(NoisyRecall(), input_seq_len=16, frac_noise=0.25)
    batch = draw(task, 20_000)
    slots = batch.inputs.reshape(-1, 8, 2)
    noisy = slots[:, :, 0] >= 16
    assert (noisy.sum(1) == 2).all() and not noisy[:, -1].any()
    torch.testing.assert_close(noisy[:, :-1].double().mean(0), torch.full((7,), 2 / 7).double(), rtol=0, atol=0.02)
    key = slots[:, :-1, 0][~noisy[:, :-1]]
    value = slots[:, :, 1][~noisy]
    noise = slots[noisy].flatten()
    for tokens, low, count in ((key, 0, 8), (value, 8, 8), (noise, 16, 16)):
        share = (tokens - low).bincount(minlength=count).double() / len(tokens)
        assert len(share) == count
        torch.testing.assert_close(share, torch.full((count,), 1 / count).double(), rtol=0, atol=0.006)


def test_counting_is_better_than_a_guess_and_far_from_the_ceiling():
    batch = draw(InContextRecall(), 2000)
    right = (InContextRecall().references(batch)["frequent"] == batch.targets).double().mean().item()
    assert 1 / 8 < right < 0.5


def test_the_last_places_are_taken_in_order_and_take_turns_where_there_are_too_few():
    chosen = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 1, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0]]).bool()
    assert last_places(chosen, 3).tolist() == [[2, 3, 5], [4, 1, 4], [3, 3, 3]]


@pytest.mark.parametrize(
    ("task", "options", "says"),
    [
        (InContextRecall, {"input_seq_len": 7}, "input_seq_len=7 must be even.*Use input_seq_len=8"),
        (InContextRecall, {"input_seq_len": 2}, "input_seq_len=2 must be even and at least 4.*Use input_seq_len=4"),
        (InContextRecall, {"vocab_size": 3}, "vocab_size=3 leaves no two keys.*Use vocab_size=4"),
        (NoisyRecall, {"vocab_size": 16}, "vocab_size=16 leaves no two keys.*Use vocab_size=20"),
        (NoisyRecall, {"noise_vocab_size": 0}, "noise_vocab_size=0 must be at least 1"),
        (NoisyRecall, {"frac_noise": 1.0}, "frac_noise=1.0 is no share"),
        (NoisyRecall, {"frac_noise": 0.99}, "frac_noise=0.99 of 64 slots leaves no key.*Use frac_noise=0.97"),
    ],
)
def test_impossible_options_are_refused_with_a_remedy(task, options, says):
    with pytest.raises(UserError, match=f"task '{task.name}': .*{says}"):
        task(**options)
