"""Prefix products of groups: the tables are groups, the tokens uniform, the products right."""

from dataclasses import replace

import pytest
import torch

from assay.core.errors import UserError
from assay.nn.random import stream
from assay.tasks.base import Batch
from assay.tasks.state_tracking import StateTracking, division, elements, multiplication

GROUPS = {"parity": 2, "s3": 6, "a5": 60}
CPU = torch.device("cpu")


def draw(task, batch=512):
    return task.sample(batch, stream(0, "test"))


def slow_products(group, tokens):
    """Compose the permutations one after the other."""
    every, product, out = elements(group), elements(group)[0], []
    for token in tokens:
        product = tuple(product[i] for i in every[token])
        out.append(every.index(product))
    return out


def test_parity_counts_ones():
    tokens = torch.tensor([[1, 1, 0, 1, 0]])
    assert StateTracking(length=5).oracle(Batch(tokens, tokens)).tolist() == [[1, 0, 0, 1, 1]]
    batch = draw(StateTracking())
    assert torch.equal(batch.targets, batch.inputs.cumsum(1) % 2)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("length", [1, 2, 40, 256])
def test_targets_and_oracle_are_the_products(group, length):
    task = replace(StateTracking(group=group), length=length)
    batch = draw(task, 8)
    expected = torch.tensor([slow_products(group, row) for row in batch.inputs.tolist()])
    assert torch.equal(batch.targets, expected)
    assert torch.equal(task.oracle(batch), expected)
    assert batch.positions[3].tolist() == list(range(length))


@pytest.mark.parametrize(("group", "order"), GROUPS.items())
def test_the_tables_are_those_of_a_group(group, order):
    table, every = multiplication(group, CPU), torch.arange(order)
    assert table.shape == (order, order) and len(elements(group)) == order
    assert torch.equal(table[0], every) and torch.equal(table[:, 0], every)
    left = table[table]  # (p q) r
    right = table[every[:, None, None], table[None]]  # p (q r)
    assert torch.equal(left, right)
    assert torch.equal(table[every[:, None], division(group, CPU)], every.expand(order, order))


def test_s3_and_a5_do_not_commute_and_a5_is_even():
    for group in ("s3", "a5"):
        table = multiplication(group, CPU)
        assert not torch.equal(table, table.T)
    assert all(torch.linalg.det(torch.eye(5)[list(p)]).round() == 1 for p in elements("a5"))


@pytest.mark.parametrize(("group", "order"), GROUPS.items())
def test_tokens_and_neighbours_are_uniform_and_independent(group, order):
    x = draw(replace(StateTracking(group=group), length=5), 20_000).inputs
    expected = 20_000 / order
    for t in range(5):
        seen = x[:, t].bincount(minlength=order).double()
        assert ((seen - expected) ** 2 / expected).sum().item() < order + 5 * (2 * order) ** 0.5
    pairs = (x[:, 1:-1] == x[:, 2:]).double().mean().item()
    assert abs(pairs - 1 / order) < 0.012


def test_an_empty_sequence_is_refused():
    with pytest.raises(UserError, match="task 'state_tracking': length=0 must be at least 1"):
        StateTracking(length=0)
