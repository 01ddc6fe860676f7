"""The law of multi-hop recall: one cycle, shuffled edges, questions of every number of hops."""

import pytest
import torch

from assay.core.errors import UserError
from assay.nn.random import stream
from assay.tasks.base import Batch
from assay.tasks.multi_hop_recall import MultiHopRecall

SMALL = MultiHopRecall(vocab_size=8, num_nodes=4, max_hops=3, num_queries=3)


def draw(task, batch=128):
    return task.sample(batch, stream(0, "test"))


def test_the_worked_example_is_answered():
    a, b, c, d = 3, 4, 5, 6
    tokens = torch.tensor([[c, a, b, c, a, d, d, b, 1, b, 0, a, 2, b]])
    batch = Batch(tokens, torch.zeros(1, 3), torch.tensor([[9, 11, 13]]))
    assert SMALL.oracle(batch).tolist() == [[a, d, d]]
    assert SMALL.references(batch)["one_hop"].tolist() == [[c, d, c]]


@pytest.mark.parametrize("task", [MultiHopRecall(), SMALL, MultiHopRecall(num_nodes=5, num_queries=1)], ids=str)
def test_following_the_edges_one_by_one_gives_the_answers(task):
    batch, n = draw(task), task.num_nodes
    for tokens, places, targets in zip(
        *(x.tolist() for x in (batch.inputs, batch.positions, batch.targets)), strict=True
    ):
        following = dict(zip(tokens[0 : 2 * n : 2], tokens[1 : 2 * n : 2], strict=True))
        node, seen = tokens[0], set()
        while node not in seen:
            seen.add(node)
            node = following[node]
        assert len(seen) == n == len(following) and min(seen) >= task.max_hops, "one cycle through all nodes"
        for j, (place, target) in enumerate(zip(places, targets, strict=True)):
            assert tokens[place - 1] == j % task.max_hops
            node = tokens[place]
            for _ in range(tokens[place - 1] + 1):
                node = following[node]
            assert node == target
        assert sorted(places) == list(range(2 * n + 1, len(tokens), 2))
    assert torch.equal(task.oracle(batch), batch.targets)


def test_edges_nodes_and_questions_are_uniform():
    batch = draw(SMALL, 20_000)
    nodes = batch.inputs[:, :8].flatten().bincount(minlength=8)[3:].double() / batch.inputs[:, :8].numel()
    torch.testing.assert_close(nodes, torch.full((5,), 0.2).double(), rtol=0, atol=0.01)
    for places in batch.positions.unbind(1):
        share = ((places - 9) // 2).bincount(minlength=3).double() / 20_000
        torch.testing.assert_close(share, torch.full((3,), 1 / 3).double(), rtol=0, atol=0.015)
    first_asked = (batch.inputs.gather(1, batch.positions) == batch.inputs[:, :1]).double().mean(0)
    torch.testing.assert_close(first_asked, torch.full((3,), 0.25).double(), rtol=0, atol=0.015)


def test_one_hop_is_right_in_the_questions_of_one_hop_alone():
    batch = draw(MultiHopRecall(), 256)
    right = (MultiHopRecall().references(batch)["one_hop"] == batch.targets).double().mean(0)
    assert right.tolist() == [1, 0, 0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_hops": 16}, "max_hops=16 goes round a cycle of num_nodes=16. Use num_nodes=17"),
        ({"vocab_size": 19}, "vocab_size=19 is too small.*Use vocab_size=20 or more"),
        ({"num_queries": 0}, "num_queries=0 must be at least 1"),
        ({"max_hops": 0}, "max_hops=0 must be at least 1"),
    ],
)
def test_impossible_options_are_refused_with_a_remedy(options, says):
    with pytest.raises(UserError, match=f"task 'multi_hop_recall': .*{says}"):
        MultiHopRecall(**options)
