"""In-context Markov chains: their law, and an oracle that is the exact posterior by a slow integral."""

import math
from itertools import pairwise

import pytest
import torch

from assay.core.errors import UserError
from assay.nn.random import stream
from assay.studies.icl.scoring import score
from assay.tasks.base import Batch
from assay.tasks.markov import Markov


def draw(task, batch=256):
    return task.sample(batch, stream(0, "test"))


def test_every_symbol_is_asked_for_at_the_one_before_it():
    batch = draw(Markov())
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert torch.equal(batch.positions, torch.arange(256).expand(256, -1))


def test_transitions_are_those_of_one_chain_per_sequence_and_uniform_over_all_chains():
    """Two symbols: P(A to B) is uniform on [0, 1], so over many steps behind A the share of B is as well."""
    batch = draw(Markov(num_symbols=2, input_seq_len=400), 4000)
    at_a = batch.inputs == 0
    often = at_a.sum(1) > 50
    share = ((batch.targets == 1) & at_a).sum(1)[often] / at_a.sum(1)[often]
    # Chains that leave A at once are there seldom: of all that are, the share is spread over the whole of [0, 1].
    assert torch.histc(share, bins=5, min=0, max=1).min() > 0.1 * len(share)
    first, later = (
        ((batch.targets == 1) & at_a)[:, part].sum(1)[often] / at_a[:, part].sum(1)[often].clamp(min=1)
        for part in (slice(0, 200), slice(200, 400))
    )
    assert torch.corrcoef(torch.stack([first, later]))[0, 1] > 0.9, "the halves of a sequence have one chain"


def test_the_first_two_symbols_are_uniform_and_independent():
    batch = draw(Markov(num_symbols=3, input_seq_len=1), 60_000)
    pairs = torch.bincount(3 * batch.inputs[:, 0] + batch.targets[:, 0], minlength=9) / 60_000
    torch.testing.assert_close(pairs, torch.full((9,), 1 / 9), rtol=0, atol=0.006)


def test_three_symbols_in_a_row_have_the_probability_of_a_flat_dirichlet_law():
    """A, then A, then A: the integral of p^2 over a uniform p is 1/3 of the starts, of two symbols."""
    batch = draw(Markov(num_symbols=2, input_seq_len=2), 60_000)
    alike = (batch.targets == batch.inputs[:, :1]).all(1).double().mean().item()
    assert alike == pytest.approx(1 / 3, abs=0.01)


def slow_posterior(tokens, symbols, steps=2000):
    """P(next is symbol 1 | tokens) for two symbols: both rows' probabilities on a grid, weighted by the likelihood."""
    grid = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    weight = [torch.ones(steps, dtype=torch.float64) for _ in range(symbols)]
    for here, following in pairwise(tokens):
        weight[here] = weight[here] * (grid if following else 1 - grid)
    last = weight[tokens[-1]]
    return ((last * grid).sum() / last.sum()).item()


def test_the_oracle_is_the_exact_posterior():
    task = Markov(num_symbols=2, input_seq_len=9)
    batch = draw(task, 4)
    found = task.oracle(batch).exp()
    for row, tokens in zip(found, batch.inputs.tolist(), strict=True):
        for place in range(9):
            assert row[place, 1].item() == pytest.approx(slow_posterior(tokens[: place + 1], 2), abs=1e-5)


def test_the_oracle_has_the_least_loss_and_the_uniform_guess_log_v():
    task, size = Markov(num_symbols=8, input_seq_len=64), 400

    def loss(answers):
        return score(lambda batches: map(answers, batches), task, size=size, rngs=[stream(0, "x")])[0]["loss"]

    oracle, unigram, uniform = (
        loss(answers)
        for answers in (
            task.oracle,
            lambda batch: task.references(batch)["unigram"],
            lambda batch: task.references(batch)["uniform"],
        )
    )
    assert uniform == pytest.approx(math.log(8), abs=1e-5) and oracle < min(unigram, uniform) - 0.05
    # Who knew the chain would have the mean entropy of its rows, 1/2 + 1/3 + ... + 1/8 for a row drawn alone.
    assert oracle > sum(1 / k for k in range(2, 9)) - 0.1


def test_answers_look_at_nothing_that_comes_later():
    task = Markov(num_symbols=4, input_seq_len=12)
    batch = draw(task, 8)
    changed = Batch(torch.cat([batch.inputs[:, :6], 3 - batch.inputs[:, 6:]], 1), batch.targets, batch.positions)
    for answers in (task.oracle, lambda b: task.references(b)["unigram"]):
        torch.testing.assert_close(answers(batch)[:, :6], answers(changed)[:, :6], rtol=0, atol=0)


def test_one_symbol_is_refused():
    with pytest.raises(UserError, match="leaves nothing to predict"):
        Markov(num_symbols=1)
