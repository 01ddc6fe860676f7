"""The law of fuzzy recall: motifs, their map, padding, and which tokens are asked."""

from collections import Counter

import pytest
import torch

from assay.core.errors import UserError
from assay.nn.random import stream
from assay.tasks.base import Batch
from assay.tasks.fuzzy_recall import FuzzyRecall

SMALL = FuzzyRecall(vocab_size=7, input_seq_len=20, k_motif_size=2, v_motif_size=2)


def draw(task, batch=64):
    return task.sample(batch, stream(0, "test"))


def slow_pairs(task, tokens):
    """Cut a sequence into its pairs: [(place of the key, key, value)]."""
    keys, pad, place, pairs = task.keys, task.vocab_size - 1, 0, []
    while tokens[place] == pad:
        place += 1
    while place < len(tokens):
        start, key, value = place, [], []
        while tokens[place] < keys:
            key.append(tokens[place])
            place += 1
        while place < len(tokens) and tokens[place] >= keys:
            assert tokens[place] != pad, "padding stands in front alone"
            value.append(tokens[place])
            place += 1
        pairs.append((start, tuple(key), tuple(value)))
    return pairs


def slow_answers(task, tokens):
    """The tokens of values whose key was shown before, by the place before each."""
    shown, answers = {}, {}
    for place, key, value in slow_pairs(task, tokens):
        if key in shown:
            assert shown[key] == value, "one value per key"
            answers |= {place + len(key) + step - 1: token for step, token in enumerate(value)}
        shown[key] = value
    return answers


@pytest.mark.parametrize("task", [FuzzyRecall(), SMALL, FuzzyRecall(k_motif_size=1, v_motif_size=1)], ids=str)
def test_the_last_tokens_of_values_that_return_are_asked_and_the_oracle_knows_them(task):
    batch = draw(task)
    for tokens, places, targets in zip(
        *(x.tolist() for x in (batch.inputs, batch.positions, batch.targets)), strict=True
    ):
        answers = slow_answers(task, tokens)
        wanted = sorted(answers)[-task.answers :]
        assert set(places) == set(wanted) and targets == [answers[place] for place in places]
        assert len(tokens) - 2 in answers, "the last pair returns"
    assert torch.equal(task.oracle(batch), batch.targets)


def test_the_worked_example_is_answered():
    a, b, c, pad = 0, 1, 2, 14
    tokens = torch.tensor([[pad, pad, c, a, 11, b, 8, 12, c, 9, b, 8, 12, c, a, 11]])
    task = FuzzyRecall(vocab_size=15, input_seq_len=16)
    assert slow_answers(task, tokens[0].tolist()) == {10: 8, 11: 12, 14: 11}
    batch = Batch(tokens, torch.zeros(1, 3), torch.tensor([[10, 11, 14]]))
    assert task.oracle(batch).tolist() == [[8, 12, 11]]


def test_sizes_and_motifs_are_uniform_and_there_is_as_little_padding_as_can_be():
    task = FuzzyRecall()
    sizes, values, ones = Counter(), Counter(), Counter()
    batch = draw(task, 400)
    for tokens in batch.inputs.tolist():
        pairs = slow_pairs(task, tokens)
        assert pairs[0][0] <= 2 * 6, "a pair of any size would not fit"
        for _, key, value in pairs[:8]:  # those that always fit
            assert len(set(key)) == len(key) and len(set(value)) == len(value)
            sizes[len(key)] += 1
            values[len(value)] += 1
            ones[key[0]] += 1
    for seen, classes in ((sizes, 3), (values, 3), (ones, 7)):
        assert len(seen) == classes
        assert all(count / 3200 == pytest.approx(1 / classes, abs=0.04) for count in seen.values())


def test_counting_is_little_better_than_a_guess():
    batch = draw(FuzzyRecall(), 500)
    right = (FuzzyRecall().references(batch)["frequent"] == batch.targets).double().mean().item()
    assert 1 / 8 < right < 0.3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"input_seq_len": 11}, "input_seq_len=11 is too short for two pairs of 6 tokens. Use input_seq_len=12"),
        ({"vocab_size": 6}, "vocab_size=6 has too few tokens.*Use vocab_size=7 or more"),
        ({"k_motif_size": 0}, "k_motif_size=0 must be at least 1"),
    ],
)
def test_impossible_options_are_refused_with_a_remedy(options, says):
    with pytest.raises(UserError, match=f"task 'fuzzy_recall': .*{says}"):
        FuzzyRecall(**options)
