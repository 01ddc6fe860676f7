"""The two laws of retrieval, their ceilings, and the observer that reaches them."""

import pytest
import torch

from assay.core.errors import UserError
from assay.nn.random import stream
from assay.tasks.base import Batch
from assay.tasks.retrieval import Retrieval

UNIQUE, AMBIGUOUS = Retrieval(keys="unique"), Retrieval(keys="ambiguous")


def draw(task, batch=2048):
    return task.sample(batch, stream(0, "test"))


def r2(predicted, targets):
    return 1 - ((predicted - targets).square().mean() / targets.var(0).mean()).item()


def assert_same_law(fast, slow):
    """Means and covariances agree to within five standard errors of the smaller sample."""
    scale, rows = fast.std(0), len(slow)
    assert ((fast.mean(0) - slow.mean(0)).abs() <= 5 * scale / rows**0.5).all()
    assert ((torch.cov(fast.T) - torch.cov(slow.T)).abs() <= 5 * torch.outer(scale, scale) * (2 / rows) ** 0.5).all()


def slow_unique(task, rng):
    """The definition, one sequence at a time."""
    x = torch.zeros(task.L, task.d_in)
    x[:-1, task.value] = torch.randn(task.L - 1, task.V_dim, generator=rng)
    places = torch.randperm(task.L - 1, generator=rng)[: task.K_keys].tolist()
    for key, t in enumerate(places):
        x[t, key] = 1
    asked = int(torch.randint(task.K_keys, (), generator=rng))
    x[-1, asked] = x[-1, task.K_keys + task.V_dim] = 1
    return x, x[places[asked], task.value]


def slow_ambiguous(task, rng):
    """The spec's law, one sequence at a time."""
    x, keys = torch.zeros(task.L, task.d_in), torch.randperm(task.K_keys, generator=rng).tolist()
    while len(keys) < task.L - 1:
        keys.append(int(torch.randint(task.K_keys, (), generator=rng)))
    for t, key in enumerate(keys):
        x[t, key] = 1
    x[:-1, task.value] = torch.randn(task.L - 1, task.V_dim, generator=rng)
    asked = int(torch.randint(task.L - 1, (), generator=rng))
    slot = 0 if torch.rand((), generator=rng) < 0.5 else task.L - 1
    x[slot, task.key] = 0
    x[slot, keys[asked]] = 1
    return x, x[asked, task.value]


@pytest.mark.parametrize(("keys", "slow_law"), [("unique", slow_unique), ("ambiguous", slow_ambiguous)])
def test_the_batch_has_the_law_of_the_slow_definition(keys, slow_law):
    task = Retrieval(keys=keys, L=6, K_keys=2, V_dim=1, F_feat=2)
    rng, rows = stream(1, "slow"), 3000
    slow_inputs, slow_targets = map(torch.stack, zip(*(slow_law(task, rng) for _ in range(rows)), strict=True))
    fast = draw(task, 30_000)
    slow = torch.cat((slow_inputs.flatten(1), slow_targets), dim=1)
    assert_same_law(torch.cat((fast.inputs.flatten(1), fast.targets), dim=1), slow)


def test_unique_keys_stand_once_each_at_uniform_places():
    x = draw(UNIQUE).inputs
    keys = x[:, :-1, UNIQUE.key]
    assert torch.equal(keys.sum(1), torch.ones(2048, 8))
    assert keys.sum(2).max() == 1
    # Each place holds a given key with probability 1/31; the sd of a frequency over 2048 rows is .004.
    torch.testing.assert_close(keys.mean(0), torch.full((31, 8), 1 / 31), rtol=0, atol=0.02)


def test_a_unique_query_has_a_slot_and_a_mark_of_its_own():
    x = draw(UNIQUE).inputs
    assert (x[:, -1, UNIQUE.key].sum(1) == 1).all()
    assert (x[:, -1, 12] == 1).all()
    x[:, -1, UNIQUE.key] = x[:, -1, 12:13] = 0
    assert not x[:, -1].any()
    assert not x[:, :, UNIQUE.feature].any()


def test_distractors_have_values_like_the_others():
    x = draw(UNIQUE).inputs[:, :-1]
    distractor = x[..., UNIQUE.key].sum(-1) == 0
    for values in (x[distractor][:, UNIQUE.value], x[~distractor][:, UNIQUE.value]):
        assert abs(values.mean().item()) < 0.02
        assert abs(values.std().item() - 1) < 0.02


def test_unique_retrieval_is_solved_exactly_by_looking_up():
    batch = draw(UNIQUE)
    assert torch.equal(UNIQUE.oracle(batch), batch.targets)
    assert UNIQUE.ceiling() == 1.0


def test_the_first_ambiguous_keys_are_a_permutation_and_the_query_stands_first_or_last():
    x = draw(AMBIGUOUS).inputs
    at_start = x[:, -1].abs().sum(1) == 0
    assert abs(at_start.float().mean().item() - 0.5) < 0.05
    assert torch.equal(x[~at_start][:, :8, AMBIGUOUS.key].sum(1), torch.ones(int((~at_start).sum()), 8))
    # An overwritten k_0 leaves the other seven of the permutation, all different.
    assert x[at_start][:, 1:8, AMBIGUOUS.key].sum(1).max() == 1
    assert not x[..., AMBIGUOUS.feature].any()
    assert not x[:, -1, AMBIGUOUS.value].any()


@pytest.mark.parametrize("task", [AMBIGUOUS, Retrieval(keys="ambiguous", L=20, K_keys=4)], ids=str)
def test_the_ideal_observer_of_ambiguous_keys_reaches_the_ceiling(task):
    batch = draw(task, 30_000)
    assert task.ceiling() == task.K_keys / (task.L - 1)
    assert abs(r2(task.oracle(batch), batch.targets) - task.ceiling()) < 0.01


def test_undoing_the_overwritten_key_is_worth_something():
    batch = draw(AMBIGUOUS, 30_000)
    keys, last = batch.inputs[:, :-1, AMBIGUOUS.key], batch.inputs[:, -1, AMBIGUOUS.key]
    query = torch.where(last.any(1, keepdim=True), last, keys[:, 0])
    copies = (keys * query[:, None]).sum(-1)
    naive = torch.einsum("bt,btv->bv", copies, batch.inputs[:, :-1, AMBIGUOUS.value]) / copies.sum(1, keepdim=True)
    assert r2(naive, batch.targets) < r2(AMBIGUOUS.oracle(batch), batch.targets) - 0.01


def test_the_oracle_takes_the_mean_over_copies_by_hand():
    """Keys a b | b b, the query a over k_0 or at the end: L = 5, K = 2."""
    task = Retrieval(keys="ambiguous", L=5, K_keys=2, V_dim=1, F_feat=2)
    x = torch.zeros(2, 5, 5)
    x[:, :4, 2] = torch.tensor([1.0, 2.0, 4.0, 6.0])
    x[:, [1, 2, 3], 1] = 1
    x[0, 0, 1] = 1  # asks for b: k_0 was a, so b stands at 1, 2 and 3 only
    x[1, 0, 0] = x[1, 4, 0] = 1  # asks for a at the end
    answer = task.oracle(Batch(x, torch.zeros(2, 1)))
    assert answer.flatten().tolist() == [4.0, 1.0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"L": 16}, "L=16 is too short for K_keys=8"),
        ({"K_keys": 0}, "K_keys=0 must be at least 1"),
        ({"F_feat": 3}, "F_feat=3 must be even.*Use F_feat=4"),
    ],
)
def test_impossible_options_are_refused_with_a_remedy(options, says):
    with pytest.raises(UserError, match=f"task 'retrieval': .*{says}"):
        Retrieval(**options)
