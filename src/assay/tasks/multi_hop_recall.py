"""Multi-hop recall shows a cycle as shuffled edges and asks for the k-th node after another (Depo, Allen-Zhu 2025).

    C A  B C  A D  D B | 2 B  1 A  3 B  ->  A, D, D      B -> C -> A -> D -> B: two steps from B is A

The first 2 n tokens are the edges of one cycle through `num_nodes` distinct tokens, uniform, in a uniform order. Then
come `num_queries` questions of two tokens, the number of hops and the node to begin at; the answer is read at the node
and is never shown. Entry j of `positions` and `targets` asks for 1 + (j mod max_hops) hops, from a uniform node, in a
uniform place among the questions: `by_answer` is the score by hops. Tokens 0, 1, ... stand for 1, 2, ... hops, the
others are nodes. One hop is recall; k hops need k lookups one after another, or the cycle's powers.

Floor: a uniform guess among the other nodes, 1 / (n - 1); the reference `one_hop` gives the next node whatever is
asked, and is right in the questions of one hop alone, 1 in `max_hops`. Ceiling: 1, by following the edges.

Differs from the paper: a node is one token, and the number of nodes is fixed; sizes are ours.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from assay.tasks import tasks
from assay.tasks.base import Batch, Task, TaskShape, Tokens
from assay.tasks.subsets import distinct


@tasks.register("multi_hop_recall")
@dataclass(frozen=True, kw_only=True)
class MultiHopRecall(Task):
    """Follow the edges of a cycle seen in context, several at a time."""

    vocab_size: int = 64
    """Kinds of token: one for each number of hops, the others for nodes."""
    num_nodes: int = 16
    """Nodes of a sequence's cycle."""
    max_hops: int = 4
    """Most steps along the cycle that a question asks for; fewer than there are nodes."""
    num_queries: int = 8
    """Questions of a sequence."""

    def __post_init__(self) -> None:
        self.require_positive("num_nodes", "max_hops", "num_queries")
        self.require(
            self.max_hops < self.num_nodes,
            f"max_hops={self.max_hops} goes round a cycle of num_nodes={self.num_nodes}. "
            f"Use num_nodes={self.max_hops + 1} or more.",
        )
        self.require(
            self.vocab_size >= self.max_hops + self.num_nodes,
            f"vocab_size={self.vocab_size} is too small for num_nodes={self.num_nodes} and a token for each of "
            f"max_hops={self.max_hops}. Use vocab_size={self.max_hops + self.num_nodes} or more.",
        )

    def shape(self) -> TaskShape:
        length = 2 * (self.num_nodes + self.num_queries)
        return TaskShape(inputs=Tokens(self.vocab_size), outputs=Tokens(self.vocab_size), length=length)

    def sample(self, batch: int, rng: torch.Generator) -> Batch:
        n, asked, device = self.num_nodes, self.num_queries, rng.device
        (drawn,) = distinct(batch, n, (self.vocab_size - self.max_hops,), rng)
        (order,) = distinct(batch, n, (n,), rng)
        (slots,) = distinct(batch, asked, (asked,), rng)
        cycle = drawn + self.max_hops  # each node is followed by the next, the last one by the first
        start = torch.randint(n, (batch, asked), generator=rng, device=device)
        hops = 1 + torch.arange(asked, device=device) % self.max_hops
        inputs = torch.empty(batch, self.shape().length, dtype=torch.long, device=device)
        inputs[:, 0 : 2 * n : 2] = cycle.gather(1, order)
        inputs[:, 1 : 2 * n : 2] = cycle.gather(1, (order + 1) % n)
        positions = 2 * (n + slots) + 1
        inputs.scatter_(1, positions - 1, (hops - 1).expand(batch, asked))
        inputs.scatter_(1, positions, cycle.gather(1, start))
        return Batch(inputs=inputs, targets=cycle.gather(1, (start + hops) % n), positions=positions)

    def oracle(self, batch: Batch) -> Int[Tensor, "batch answers"]:
        """Follow the edges as often as is asked."""
        hops = 1 + batch.inputs.gather(1, batch.asked - 1)
        return self._follow(batch, hops)

    def references(self, batch: Batch) -> dict[str, Tensor]:
        return {"one_hop": self._follow(batch, torch.ones_like(batch.asked))}

    def _follow(self, batch: Batch, hops: Int[Tensor, "batch answers"]) -> Int[Tensor, "batch answers"]:
        edges = batch.inputs[:, : 2 * self.num_nodes]
        following = torch.zeros(len(edges), self.vocab_size, dtype=torch.long, device=edges.device)
        following.scatter_(1, edges[:, 0::2], edges[:, 1::2])
        node = batch.inputs.gather(1, batch.asked)
        for step in range(self.max_hops):
            node = torch.where(step < hops, following.gather(1, node), node)
        return node
