"""Measures CPU time of exact online eviction for many methods at once, against a loop over tokens with a KV cache.

    python benchmarks/perplexity.py           both models
    python benchmarks/perplexity.py small     one of them

4 methods x 6 levels, one thread, one process; seconds of CPU per (lane, token). The exit code is 1 if a goal is missed.
"""

import sys
import time
from typing import Any

import torch
from measuring import main, verdict
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from assay.attention import attention
from assay.attention.base import Budget
from assay.attention.lanes import Lane
from assay.models.causal_lm import sparse_lanes
from assay.nn.random import initialised_from, stream

METHODS = ("h2o", "tova", "streaming_llm", "random_evict")
LEVELS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
LOOPED = (0.5, 0.9)
"""Levels for which the loop is timed: a token costs nearly the same at all of them."""


def llama(*, layers: int, width: int, heads: int, kv_heads: int, inner: int, vocab: int = 512) -> Any:
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=8192,
    )  # fmt: skip
    with initialised_from(0, "model"):
        return LlamaForCausalLM(config).eval().requires_grad_(False)


class Residents:
    """One layer's cache in the loop, written for speed: all heads at once."""

    def __init__(self, method: str, slots: int, kv_heads: int, device: torch.device) -> None:
        self.method, self.slots = method, slots
        self.score = torch.zeros(kv_heads, 0, device=device)

    def step(self, layer: Any, weights: Tensor | None) -> None:
        """Update the scores of keys after a token, and evict one per head if the cache is over its slots."""
        kv_heads, count = layer.keys.shape[1:3]
        new = torch.rand(kv_heads, 1, device=layer.keys.device) if self.method == "random_evict" else 0.0
        self.score = torch.cat([self.score, torch.zeros(kv_heads, 1, device=layer.keys.device) + new], dim=1)
        if weights is not None:
            received = weights[0, :, 0].unflatten(0, (kv_heads, -1)).sum(1)
            self.score = self.score + received if self.method == "h2o" else received.mean(0).expand(kv_heads, -1)
        if count <= self.slots:
            return
        if self.method == "streaming_llm":
            victim = torch.full((kv_heads,), 4, device=layer.keys.device)
        else:
            first, last = {"h2o": (0, self.slots // 2), "random_evict": (4, self.slots // 2)}.get(self.method, (0, 0))
            victim = first + self.score[:, first : count - last].argmin(1)
        kept = torch.arange(count - 1, device=victim.device).expand(kv_heads, -1)
        kept = kept + (kept >= victim[:, None])
        self.score = self.score.gather(1, kept)
        places = kept[None, :, :, None].expand(-1, -1, -1, layer.keys.shape[-1])
        layer.keys, layer.values = layer.keys.gather(2, places), layer.values.gather(2, places)


@torch.no_grad()
def token_loop(model: Any, ids: Tensor, method: str, slots: int) -> Tensor:
    """Score one lane the obvious way: a forward pass per token, a cache, and its eviction."""
    weighs = method in ("h2o", "tova")
    model.set_attn_implementation("eager" if weighs else "sdpa")
    cache = DynamicCache(config=model.config)
    layers = [Residents(method, slots, model.config.num_key_value_heads, ids.device) for _ in model.model.layers]
    logits = []
    for t in range(ids.shape[1]):
        place = torch.full((1, 1), t, device=ids.device)
        out = model(
            ids[:, t : t + 1], past_key_values=cache, position_ids=place, use_cache=True, output_attentions=weighs
        )
        logits.append(out.logits)
        for number, residents in enumerate(layers):
            residents.step(cache.layers[number], out.attentions[number] if weighs else None)
    return torch.cat(logits, dim=1)


@torch.no_grad()
def one_pass(model: Any, ids: Tensor, lanes: list[Lane]) -> Tensor:
    """Score every lane in one forward pass."""
    with sparse_lanes(model, lanes, count=False):
        return model(ids.repeat(len(lanes), 1), use_cache=False).logits


def compare(name: str, model: Any, *, tokens: int, goal: float) -> bool:
    ids = torch.randint(model.config.vocab_size, (1, tokens), generator=stream(0, "tokens"))
    lanes = [Lane(attention.parse(method), Budget(sparsity=level)) for method in METHODS for level in LEVELS]
    one_pass(model, ids[:, :160], lanes)
    ours = cpu_seconds(lambda: one_pass(model, ids, lanes)) / len(lanes) / tokens
    token_loop(model, ids[:, :32], "h2o", 16)
    spent = {
        method: sum(cpu_seconds(lambda m=method, s=level: token_loop(model, ids, m, round((1 - s) * tokens)))
                    for level in LOOPED) / len(LOOPED) / tokens
        for method in METHODS
    }  # fmt: skip
    loop = sum(spent.values()) / len(spent)
    each = ", ".join(f"{method} {seconds * 1e3:.2f}" for method, seconds in spent.items())
    print(
        f"{name}: token loop {loop * 1e3:.2f} ms per token ({each}); one pass, {len(lanes)} lanes: {ours * 1e3:.3f} ms"
    )
    ratio = loop / ours
    said = f"{name}: {ratio:.1f}x less CPU per (lane, token) than the token loop"
    return verdict(said, goal=f"{goal:g}x", met=ratio >= goal)


def cpu_seconds(work: Any) -> float:
    """Measure one call; both sides have warmed up."""
    start = time.process_time()
    work()
    return time.process_time() - start


def small() -> bool:
    model = llama(layers=3, width=96, heads=4, kv_heads=2, inner=256)
    return compare("3 layers of 96", model, tokens=384, goal=18)


def medium() -> bool:
    model = llama(layers=6, width=512, heads=8, kv_heads=4, inner=1408)
    return compare("6 layers of 512", model, tokens=256, goal=6)


MEASUREMENTS = {function.__name__: function for function in (small, medium)}


if __name__ == "__main__":
    sys.exit(main(__doc__, MEASUREMENTS))
