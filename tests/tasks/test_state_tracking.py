"""Prefix products of groups: the tables are groups, the tokens uniform, the products right."""

from dataclasses import replace

import pytest
import torch

from assay.core.errors import UserError
from assay.nn.random import stream
from assay.tasks import tasks
from assay.tasks.base import Batch
from assay.tasks.state_tracking import GENERATORS, StateTracking, division, elements, multiplication

GROUPS = {"parity": 2, "s3": 6, "a5": 60, "s5": 120}
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


@pytest.mark.parametrize("group", GENERATORS)
@pytest.mark.parametrize("length", [1, 40, "3..40"])
def test_two_tokens_make_up_the_group(group, length):
    task = StateTracking(group=group, length=length, tokens="generators")
    batch = draw(task, 4000)
    seen = batch.inputs.unique().tolist()
    assert [elements(group)[token] for token in seen] == sorted(GENERATORS[group])
    assert abs((batch.inputs == seen[0]).double().mean().item() - 0.5) < 0.03
    for at in range(16):
        products = slow_products(group, batch.inputs[at].tolist())
        assert [products[place] for place in batch.positions[at].tolist()] == batch.targets[at].tolist()
    assert torch.equal(task.oracle(batch), batch.targets)
    if length == 40:
        assert batch.targets[:, 30:].unique().numel() == GROUPS[group], "every element is reached"
        assert all(task.tokens == "generators" for task in task.longer().values())


def test_parity_has_no_two_generators():
    with pytest.raises(UserError, match="group=parity has no two generators"):
        StateTracking(tokens="generators")


@pytest.mark.parametrize(("group", "order"), GROUPS.items())
def test_the_tables_are_those_of_a_group(group, order):
    table, every = multiplication(group, CPU), torch.arange(order)
    assert table.shape == (order, order) and len(elements(group)) == order
    assert torch.equal(table[0], every) and torch.equal(table[:, 0], every)
    some = every[:: max(1, order // 20)]  # of r: 120^3 products take a while
    left = table[table][:, :, some]  # (p q) r
    right = table[every[:, None, None], table[None, :, some]]  # p (q r)
    assert torch.equal(left, right)
    assert torch.equal(table[every[:, None], division(group, CPU)], every.expand(order, order))


def test_all_but_parity_do_not_commute_and_a5_is_even():
    for group in ("s3", "a5", "s5"):
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


def test_a_range_asks_once_at_the_end_of_a_sequence_of_uniform_length():
    task = StateTracking(group="s3", length="3..40")
    batch = draw(task, 38_000)
    assert task.shape().length == 40 and batch.targets.shape == batch.positions.shape == (38_000, 1)
    seen = (batch.positions[:, 0] + 1).bincount(minlength=41).double()
    assert seen[:3].sum() == 0 and ((seen[3:] - 1000) ** 2 / 1000).sum() < 38 + 5 * (2 * 38) ** 0.5
    for tokens, (end,), (target,) in zip(
        batch.inputs[:64].tolist(), batch.positions[:64].tolist(), batch.targets[:64].tolist(), strict=True
    ):
        assert slow_products("s3", tokens[: end + 1])[-1] == target
    assert torch.equal(task.oracle(batch), batch.targets)


def test_what_stands_behind_the_question_of_a_range_does_not_change_the_answer():
    task = StateTracking(length="3..40")
    batch = draw(task)
    behind = torch.arange(40) > batch.positions
    changed = replace(batch, inputs=torch.where(behind, 1 - batch.inputs, batch.inputs))
    assert not torch.equal(changed.inputs, batch.inputs) and torch.equal(task.oracle(changed), batch.targets)


def test_longer_versions_are_asked_as_in_training():
    for word, expected in ((40, lambda n: n), ("3..40", lambda n: f"{n}..{n}")):
        longer = StateTracking(length=word).longer()
        assert {n: task.length for n, task in longer.items()} == {n: expected(n) for n in (40, 64, 96, 128, 192, 256)}
    assert (draw(StateTracking(length="64..64")).positions == 63).all()


def test_a_number_and_a_range_are_read_from_a_word_and_ids_of_numbers_stay():
    assert tasks.parse("state_tracking:length=7").spec() == {"name": "state_tracking", "group": "parity", "length": 7}
    assert tasks.parse("state_tracking:length=3..40").lengths == (3, 40)


@pytest.mark.parametrize("length", [0, "0..4", "5..3", "3..", "2.5", "forty"])
def test_an_impossible_length_is_refused(length):
    with pytest.raises(UserError, match=f"task 'state_tracking': length={length} .*Use.*length=3..40"):
        StateTracking(length=length)
