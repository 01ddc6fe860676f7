"""In-context language learning: the automata's law, and an oracle that is the exact posterior by a slow sum."""

from collections import Counter
from itertools import product

import pytest
import torch

from assay.core.errors import UserError
from assay.nn.random import stream
from assay.tasks.base import Batch
from assay.tasks.icll import Icll, automata

SMALL = Icll(num_states=2, num_symbols=2, num_strings=2, string_length=3, likely=0.8)


def draw(task, batch=256):
    return task.sample(batch, stream(0, "test"))


def slow_predictive(task, tokens):
    """Sum over all automata, named states and likely symbols included, the probability of the tokens so far followed by
    each symbol."""
    states, symbols = range(task.num_states), range(task.num_symbols)
    rest = (1 - task.likely) / (task.num_symbols - 1)
    totals = [[0.0] * task.num_symbols for _ in tokens]
    for goals in product(states, repeat=task.num_states * task.num_symbols):
        for liked in product(symbols, repeat=task.num_states):
            state, weight = 0, 1.0
            for place, token in enumerate(tokens):
                if token == 0:
                    state = 0
                else:
                    weight *= task.likely if token - 1 == liked[state] else rest
                    state = goals[state * task.num_symbols + token - 1]
                for symbol in symbols:
                    totals[place][symbol] += weight * (task.likely if symbol == liked[state] else rest)
    asked = [place for place in range(len(tokens)) if place % (1 + task.string_length) < task.string_length]
    return torch.tensor([[x / sum(totals[place]) for x in totals[place]] for place in asked], dtype=torch.float64)


@pytest.mark.parametrize(
    "task",
    [SMALL, Icll(num_states=2, num_symbols=3, num_strings=2, string_length=3), Icll(num_strings=2, string_length=4)],
    ids=str,
)
def test_the_oracle_is_the_exact_posterior(task):
    batch = draw(task, 2)
    found = task.predictive(batch.inputs)
    for row, tokens in zip(found, batch.inputs.tolist(), strict=True):
        torch.testing.assert_close(row, slow_predictive(task, tokens), rtol=0, atol=1e-12)


def test_automata_that_behave_alike_are_counted_once_with_their_weight():
    target, weight = automata(3, 2, torch.device("cpu"))
    assert weight.sum().item() == pytest.approx(1) and len(weight) == 1 + 12 + 216, "of 1, 2 and 3 states reached"
    assert weight.min().item() * 3**6 == pytest.approx(2), "two names for the other states"
    assert target.shape == (229, 6)


def test_strings_begin_with_the_token_0_and_every_symbol_is_asked_before_it():
    batch, task = draw(Icll()), Icll()
    strings = batch.inputs.reshape(-1, 8, 9)
    assert (strings[:, :, 0] == 0).all() and strings[:, :, 1:].min() == 1 and strings.max() == 2
    assert torch.equal(batch.targets, strings[:, :, 1:].flatten(1))
    assert torch.equal(batch.inputs.gather(1, batch.positions + 1), batch.targets)
    assert batch.positions.shape[1] == task.num_strings * task.string_length


def test_the_first_symbol_is_the_likely_one_of_the_first_state():
    """Over sequences it is uniform; within one, two strings begin alike with probability p^2 + (1 - p)^2."""
    first = draw(Icll(likely=0.8, num_symbols=2), 20_000).inputs.reshape(-1, 8, 9)[:, :, 1]
    assert (first[:, 0] == 1).double().mean().item() == pytest.approx(0.5, abs=0.02)
    assert (first[:, 0] == first[:, 1]).double().mean().item() == pytest.approx(0.8**2 + 0.2**2, abs=0.02)


def test_the_second_symbol_follows_the_automaton():
    """Where two strings begin alike they are in one state; else in two independent ones of three, alike 1 in 3."""
    task = Icll(likely=0.8)
    strings = draw(task, 40_000).inputs.reshape(-1, 8, 9)
    alike = strings[:, 0, 1] == strings[:, 1, 1]
    agree = (strings[:, 0, 2] == strings[:, 1, 2]).double()
    same = 0.8**2 + 0.2**2
    assert agree[alike].mean().item() == pytest.approx(same, abs=0.015)
    # States of one draw agree as above; two different states have independent likely symbols, and agree by half.
    assert agree[~alike].mean().item() == pytest.approx(same / 3 + 0.5 * 2 / 3, abs=0.02)


def test_the_oracle_nears_the_bound_of_who_knows_the_automaton_and_counting_stays_behind():
    task = Icll()
    batch = draw(task, 512)
    right = {"oracle": task.oracle(batch)} | task.references(batch)
    score = {name: (given == batch.targets).double().mean().item() for name, given in right.items()}
    assert score["oracle"] > score["trigram"] + 0.005 > score["bigram"] > score["unigram"] > 0.6
    last = (right["oracle"] == batch.targets)[:, -16:].double().mean().item()
    assert last == pytest.approx(task.likely, abs=0.03) and score["oracle"] < task.likely


def slow_ngram(tokens, place, order):
    """Count what followed the last `order` tokens; where the best is tied or there is none, ask the shorter context."""
    best, left = [1, 2], set(range(1, 3))
    for length in range(order, -1, -1):
        context = tokens[place + 1 - length : place + 1]
        follow = Counter(
            tokens[end + 1]
            for end in range(place)
            if end + 1 >= length and tokens[end + 1 - length : end + 1] == context and tokens[end + 1] in left
        )
        if follow:
            most = max(follow.values())
            best = [symbol for symbol in sorted(left) if follow[symbol] == most]
            left = set(best)
    return min(best)


def test_ngrams_count_what_followed():
    task = Icll(num_strings=4, string_length=4)
    batch = draw(task, 16)
    for order, (_, given) in enumerate(task.references(batch).items()):
        for tokens, places, answers in zip(
            batch.inputs.tolist(), batch.positions.tolist(), given.tolist(), strict=True
        ):
            assert answers[order:] == [slow_ngram(tokens, place, order) for place in places][order:]


def test_the_worked_example_is_answered():
    tokens = torch.tensor([["|ab".index(c) for c in "|abba|abbb|abba|abaa"]])  # the last two come after the question
    task = Icll(num_states=2, num_strings=4, string_length=4)
    assert task.oracle(Batch(tokens, tokens))[0, 14].item() == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"num_states": 4, "num_symbols": 3},
            "12 edges have more than 20000 ways.*too many for an exact oracle. Use num_states=3",
        ),
        ({"num_symbols": 1}, "num_symbols=1 leaves nothing to predict"),
        ({"likely": 0.5}, "likely=0.5 must be above 1 / num_symbols"),
        ({"likely": 1.0}, "likely=1.0 must be above"),
        ({"num_strings": 0}, "num_strings=0 must be at least 1"),
    ],
)
def test_impossible_options_are_refused_with_a_remedy(options, says):
    with pytest.raises(UserError, match=f"task 'icll': .*{says}"):
        Icll(**options)
