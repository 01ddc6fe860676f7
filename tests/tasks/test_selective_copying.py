"""The law of selective copying: contents, blanks, and their order."""

from collections import Counter

import pytest
import torch

from assay.core.errors import UserError
from assay.nn.random import stream
from assay.tasks.base import Batch
from assay.tasks.selective_copying import SelectiveCopying

SMALL = SelectiveCopying(vocab_size=6, input_seq_len=12, num_tokens_to_copy=3)


def draw(task, batch=64):
    return task.sample(batch, stream(0, "test"))


def test_the_worked_example_is_answered():
    a, b, c, blank, begin = 0, 1, 2, 4, 5
    tokens = torch.tensor([[blank, blank, c, blank, a, blank, blank, b, begin, blank, blank, blank]])
    batch = Batch(tokens, torch.zeros(1, 3), torch.tensor([[9, 10, 11]]))
    assert SMALL.oracle(batch).tolist() == [[c, a, b]]


@pytest.mark.parametrize("task", [SelectiveCopying(), SMALL, SelectiveCopying(input_seq_len=33)], ids=str)
def test_contents_are_asked_in_order_behind_the_sign(task):
    batch = draw(task)
    count, blank = task.num_tokens_to_copy, task.vocab_size - 2
    for tokens, targets, places in zip(
        *(x.tolist() for x in (batch.inputs, batch.targets, batch.positions)), strict=True
    ):
        sign = tokens.index(task.vocab_size - 1)
        assert [token for token in tokens[:sign] if token != blank] == targets
        assert tokens[sign - 1] == targets[-1], "a blank stands in front of a content, never behind the last"
        assert tokens[sign + 1 :] == [blank] * count and places == list(range(sign + 1, len(tokens)))
    assert torch.equal(task.oracle(batch), batch.targets)


def test_contents_are_uniform_and_so_is_what_a_blank_stands_before():
    batch = draw(SMALL, 20_000)
    share = batch.targets.flatten().bincount(minlength=4).double() / batch.targets.numel()
    torch.testing.assert_close(share, torch.full((4,), 0.25).double(), rtol=0, atol=0.01)
    places = (batch.inputs < 4).double().argmax(1)  # blanks before the first content: binomial(5, 1/3)
    assert places.double().mean().item() == pytest.approx(5 / 3, abs=0.03)
    assert places.double().var().item() == pytest.approx(5 * 2 / 9, abs=0.05)


def test_the_order_is_worth_more_than_the_contents():
    batch = draw(SelectiveCopying(), 500)
    given = SelectiveCopying().references(batch)["unordered"]
    for answer, targets in zip(given.tolist(), batch.targets.tolist(), strict=True):
        assert len(set(answer)) == 1 and Counter(targets)[answer[0]] == max(Counter(targets).values())
    right = (given == batch.targets).double().mean().item()
    assert 1 / 14 < right < 0.3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"input_seq_len": 32}, "input_seq_len=32 is too short for num_tokens_to_copy=16.*Use input_seq_len=33"),
        ({"num_tokens_to_copy": 0}, "num_tokens_to_copy=0 must be at least 1"),
        ({"vocab_size": 3}, "vocab_size=3 leaves no two contents. Use vocab_size=4"),
    ],
)
def test_impossible_options_are_refused_with_a_remedy(options, says):
    with pytest.raises(UserError, match=f"task 'selective_copying': .*{says}"):
        SelectiveCopying(**options)
