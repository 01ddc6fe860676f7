"""Memorization has one map for all batches, and nothing of it stands in a sequence."""

import pytest
import torch

from assay.core.errors import UserError
from assay.nn.random import stream
from assay.tasks.memorization import Memorization, values


def draw(task, batch=512, name="test"):
    return task.sample(batch, stream(0, name))


def slow_map(task, *names):
    """Read key and target pair by pair; raise if a key has two values."""
    found = {}
    for name in names:
        batch = draw(task, name=name)
        for tokens, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
            for key, value in zip(tokens[0::2], targets, strict=True):
                assert found.setdefault(key, value) == value
    return found


def test_the_map_is_the_same_in_training_and_in_the_test_and_one_to_one():
    found = slow_map(Memorization(), "train", "test", "other")
    assert set(found) == set(range(127)) and len(set(found.values())) == 127
    assert set(found.values()) <= set(range(127, 255))


def test_another_seed_is_another_map():
    one, two = (values(256, seed, torch.device("cpu")) for seed in (0, 1))
    assert (one == two).double().mean() < 0.1


def test_sequences_show_keys_and_questions_alone():
    batch = draw(Memorization())
    assert (batch.inputs[:, 0::2] < 127).all() and (batch.inputs[:, 1::2] == 255).all()
    assert batch.positions[3].tolist() == list(range(1, 32, 2))
    share = batch.inputs[:, 0::2].flatten().bincount(minlength=127).double()
    expected = batch.targets.numel() / 127
    assert ((share - expected) ** 2 / expected).sum() < 127 + 5 * (2 * 127) ** 0.5


def test_the_oracle_knows_the_map_and_a_constant_is_right_once_in_127():
    task, batch = Memorization(), draw(Memorization(), 4000)
    assert torch.equal(task.oracle(batch), batch.targets)
    right = (task.references(batch)["constant"] == batch.targets).double().mean().item()
    assert right == pytest.approx(1 / 127, abs=0.0015)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"input_seq_len": 5}, "input_seq_len=5 must be even.*Use input_seq_len=6"),
        ({"vocab_size": 4}, "vocab_size=4 leaves no two keys. Use vocab_size=5"),
        ({"map_seed": -1}, "map_seed=-1 is no seed"),
    ],
)
def test_impossible_options_are_refused_with_a_remedy(options, says):
    with pytest.raises(UserError, match=f"task 'memorization': .*{says}"):
        Memorization(**options)
