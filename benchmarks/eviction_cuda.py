"""Measures exact online eviction against a loop over tokens that never waits for the host, by the time the GPU is busy.

    python benchmarks/eviction_cuda.py             on a GPU (about two minutes on an H200)
    python benchmarks/eviction_cuda.py --toy       the same program with a tiny model, on a CPU: exactness alone

The loop is written for speed: a token is one CUDA graph of a plain Llama (fused projections, a cache of k + 1 places,
the new key written over the evicted one, the clock in a tensor), replayed once per token, so that the host only starts
graphs. Ours is the one pass of `assay perplexity`, 4 methods x 6 levels as lanes. Both are compared per (lane, token).
One lane at a time is how such loops are written, and the goal is of that. Lanes as rows of one loop, all with one
budget, are in the second line: they read the weights once for all.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from device_time import Spent, mean, spent
from einops import rearrange
from measuring import verdict
from perplexity import LEVELS, METHODS, one_pass
from perplexity import llama as small_llama
from torch import Tensor
from torch.nn.functional import linear, silu

from assay.attention import attention
from assay.attention.base import Budget
from assay.attention.lanes import Lane

TOKENS, LOOPED, SINKS, GOAL = 2048, 256, 4, 10.0


@dataclass
class Block:
    """The weights of a layer, projections of one input side by side."""

    layer: Any
    qkv: Tensor = field(init=False)
    gates: Tensor = field(init=False)

    def __post_init__(self) -> None:
        own, inner = self.layer.self_attn, self.layer.mlp
        self.qkv = torch.cat([own.q_proj.weight, own.k_proj.weight, own.v_proj.weight])
        self.gates = torch.cat([inner.gate_proj.weight, inner.up_proj.weight])


class Loop:
    """Some sequences of one method and budget, a token of each at a time."""

    def __init__(self, net: Any, ids: Tensor, method: str, slots: int) -> None:
        config = net.config
        self.net, self.ids, self.method, self.slots = net, ids, method, slots
        self.heads, self.kv = config.num_attention_heads, config.num_key_value_heads
        self.blocks = [Block(layer) for layer in net.model.layers]
        rows, time = ids.shape
        shape = len(self.blocks), rows, self.kv, slots + 1
        like: Any = {"device": ids.device, "dtype": net.dtype}
        self.keys, self.values = (torch.zeros(*shape, config.head_dim, **like) for _ in range(2))
        self.position = torch.full(shape, -1, device=ids.device)
        self.score = torch.zeros(shape, device=ids.device)
        self.entry = torch.zeros(*shape[:-1], 1, dtype=torch.long, device=ids.device)
        self.chance = torch.rand(time, *shape[:-1], 1, device=ids.device)
        self.clock = torch.zeros((), dtype=torch.long, device=ids.device)
        self.logits = torch.zeros(time, rows, config.vocab_size, **like)
        self.cos, self.sin = (
            x[0] for x in net.model.rotary_emb(self.keys, torch.arange(time, device=ids.device)[None])
        )

    def restart(self) -> None:
        self.position.fill_(-1)
        for held in (self.score, self.entry, self.clock):
            held.zero_()

    def step(self) -> None:
        """Read the token at the clock: attend to the residents and the new key, update scores, evict."""
        t = self.clock
        hidden = self.net.model.embed_tokens(self.ids.index_select(1, t[None])[:, 0])
        cos, sin = self.cos.index_select(0, t[None]), self.sin.index_select(0, t[None])
        for number, block in enumerate(self.blocks):
            layer = block.layer
            mixed = self.attend(number, linear(layer.input_layernorm(hidden), block.qkv), cos, sin)
            hidden = hidden + layer.self_attn.o_proj(mixed)
            gate, up = linear(layer.post_attention_layernorm(hidden), block.gates).chunk(2, dim=-1)
            hidden = hidden + layer.mlp.down_proj(silu(gate) * up)
        self.logits.index_copy_(0, t[None], self.net.lm_head(self.net.model.norm(hidden))[None])
        t.add_(1)

    def attend(self, number: int, projected: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        d = self.keys.shape[-1]
        q, k, v = rearrange(projected, "r (h d) -> r h d", d=d).split([self.heads, self.kv, self.kv], dim=1)
        q, k = (x * cos + turned(x) * sin for x in (q, k))
        keys, values, place = self.keys[number], self.values[number], self.position[number]
        entry = self.entry[number]
        for held, new in ((keys, k), (values, v)):
            held.scatter_(2, entry[..., None].expand(-1, -1, -1, d), new[:, :, None])
        place.scatter_(2, entry, self.clock.expand_as(entry))
        grouped = rearrange(q, "r (h g) d -> r h g d", h=self.kv)
        scores = (grouped @ keys.mT).float() * d**-0.5
        weights = scores.masked_fill((place < 0)[:, :, None], float("-inf")).softmax(-1)
        self.evict(number, weights)
        return rearrange(weights.to(v.dtype) @ values, "r h g d -> r (h g d)")

    def evict(self, number: int, weights: Tensor) -> None:
        """Choose the place that the next key takes: a free one while there is one, then the victim's."""
        t, place, score, entry = self.clock, self.position[number], self.score[number], self.entry[number]
        recent = self.slots // 2 if self.method in ("h2o", "random_evict") else 0
        match self.method:
            case "h2o":
                score.scatter_(2, entry, 0.0)
                score.add_(weights.sum(2))
            case "tova":
                score.copy_(weights.mean(2).mean(1, keepdim=True).expand_as(score))
            case "random_evict":
                score.scatter_(2, entry, self.chance.index_select(0, t[None])[0, number])
            case "streaming_llm":
                score.copy_(place)
            case _:
                raise ValueError(self.method)
        stays = (place < 0) | ((place > t - recent) if recent else place < 0)
        if self.method in ("streaming_llm", "random_evict"):
            stays = stays | (place < SINKS)
        victim = score.masked_fill(stays, float("inf")).argmin(-1, keepdim=True)
        full = t >= self.slots
        place.scatter_(2, victim, place.gather(2, victim).masked_fill(full, -1))
        entry.copy_(victim.where(full, t + 1))

    def run(self, play: Callable[[], None] | None = None) -> Tensor:
        """Read every token; returns the logits, (time, rows, vocab)."""
        self.restart()
        for _ in range(self.ids.shape[1]):
            (play or self.step)()
        return self.logits


def turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def graphed(loop: Loop) -> Callable[[], object]:
    """Capture a token as a graph; the work is a whole sequence, replayed."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            loop.step()
    torch.cuda.current_stream().wait_stream(side)
    loop.restart()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loop.step()
    return partial(loop.run, graph.replay)


@torch.no_grad()
def exact(device: str) -> bool:
    """Compare the loop's logits with those of the one pass, on a small model in float32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    net = small_llama(layers=3, width=96, heads=4, kv_heads=2, inner=256).to(device)
    ids = torch.randperm(512, generator=torch.Generator().manual_seed(0))[None, :160].to(device)
    met = []
    for method in ("h2o", "tova", "streaming_llm"):
        loop = Loop(net, ids, method, 40)
        if device == "cuda":
            graphed(loop)()
            found = loop.logits
        else:
            found = loop.run()
        ours = one_pass(net, ids, [Lane(attention.parse(method), Budget(slots=40))])
        apart = float((found[:, 0] - ours[0]).abs().max())
        met.append(
            verdict(f"{method}: largest logit difference to the one pass {apart:.1e}", goal="1e-4", met=apart < 1e-4)
        )
    return all(met)


@torch.no_grad()
def measure() -> bool:
    """Time both on 4 layers of Llama-7B's shape, bf16."""
    from perplexity_cuda import llama

    net = llama()
    ids = torch.randint(32000, (1, TOKENS), device="cuda")
    lanes = [Lane(attention.parse(word), Budget(sparsity=level)) for word in METHODS for level in LEVELS]
    one_pass(net, ids, lanes)
    ours = spent(lambda: one_pass(net, ids, lanes)).per(len(lanes) * TOKENS)
    print(f"one pass, {len(lanes)} lanes of {TOKENS} tokens: {ours} per (lane, token)", flush=True)
    met = [judged(over_methods(net, ids, rows), ours, rows) for rows in (1, len(lanes))]
    return all(met)


def over_methods(net: Any, ids: Tensor, rows: int) -> Spent:
    """Time the loop for each method, so many lanes at a time; the mean."""
    loops = {method: looped(net, ids, method, rows) for method in METHODS}
    for method, took in loops.items():
        print(f"  loop, {method}, {rows} lane(s) at a time: {took} per (lane, token)", flush=True)
    return mean(list(loops.values()))


def looped(net: Any, ids: Tensor, method: str, rows: int) -> Spent:
    work = graphed(Loop(net, ids[:, :LOOPED].repeat(rows, 1), method, LOOPED // 2))
    work()
    return spent(work).per(rows * LOOPED)


def judged(loop: Spent, ours: Spent, rows: int) -> bool:
    elapsed, busy = loop.over(ours)
    said = f"{rows} lane(s) at a time: {elapsed:.1f}x elapsed"
    if busy is None:
        return verdict(f"{said}; busy time not measured: {loop.reason or ours.reason}", goal=f"{GOAL:g}x", met=False)
    if rows > 1:
        print(f"{said}, {busy:.1f}x by the time the GPU was busy (no goal)", flush=True)
        return True
    return verdict(f"{said}, {busy:.1f}x by the time the GPU was busy", goal=f"{GOAL:g}x busy", met=busy >= GOAL)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--toy", action="store_true", help="a tiny model on a CPU: exactness alone")
    if parser.parse_args(words).toy:
        return 0 if exact("cpu") else 1
    if not torch.cuda.is_available():
        print("no CUDA device: nothing is measured")
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    same = exact("cuda")
    return 0 if measure() and same else 1


if __name__ == "__main__":
    sys.exit(main())
