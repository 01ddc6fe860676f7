"""The law of disjoint sets, and that the shared token is found."""

import pytest
import torch

from assay.core.errors import UserError
from assay.nn.random import stream
from assay.tasks.base import Batch
from assay.tasks.disjoint import Disjoint

SMALL = Disjoint(vocab_size=14, short_length=2, long_length=5)


def draw(task, batch=1024):
    return task.sample(batch, stream(0, "test"))


def test_the_worked_example_is_answered():
    task = Disjoint(short_length=3, long_length=5)
    tokens = torch.tensor([[1, 17, 42, 9, 2, 55, 8, 42, 23, 61, 3]])
    assert task.oracle(Batch(tokens, torch.zeros(1, 1), torch.tensor([[10]]))).tolist() == [[42]]


@pytest.mark.parametrize("task", [Disjoint(), SMALL], ids=str)
def test_lists_share_the_answer_alone(task):
    batch = draw(task)
    for tokens, (answer,) in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        short, long = tokens[task.short], tokens[task.long]
        assert len(set(short)) == len(short) and len(set(long)) == len(long)
        assert set(short) & set(long) == {answer}
        assert min(short + long) >= 4
    assert torch.equal(task.oracle(batch), batch.targets)


def test_the_sequence_is_laid_out_with_its_marks():
    batch = draw(SMALL)
    assert SMALL.shape().length == 10
    for place, mark in ((0, 1), (3, 2), (9, 3)):
        assert (batch.inputs[:, place] == mark).all()
    assert (batch.positions == 9).all()


def test_answer_and_places_are_uniform():
    batch = draw(SMALL, 40_000)
    content, short = (batch.inputs == batch.targets), SMALL.short
    for seen, expected in (
        (batch.targets.flatten().bincount(minlength=14)[4:], 1 / 10),
        (content[:, short].sum(0), 1 / 2),
        (content[:, SMALL.long].sum(0), 1 / 5),
        (batch.inputs[:, SMALL.long].flatten().bincount(minlength=14)[4:] / 5, 1 / 10),
    ):
        share = seen.double() / 40_000
        torch.testing.assert_close(share, torch.full_like(share, expected), rtol=0, atol=0.013)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"vocab_size": 43}, "vocab_size=43 leaves too few.*short_length=8 and long_length=32. Use vocab_size=44"),
        ({"short_length": 0}, "short_length=0 must be at least 1"),
        ({"long_length": 0}, "long_length=0 must be at least 1"),
    ],
)
def test_impossible_options_are_refused_with_a_remedy(options, says):
    with pytest.raises(UserError, match=f"task 'disjoint': .*{says}"):
        Disjoint(**options)
