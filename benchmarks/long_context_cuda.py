"""Measures what a long context costs: 32,768 tokens of a model of Llama-3.2-1B's shape, random weights, bf16.

    python benchmarks/long_context_cuda.py                  on a GPU, about three minutes on an H200
    python benchmarks/long_context_cuda.py --toy            256 tokens of a small model on a CPU, some seconds

Every method rides with the dense lane, as in `assay perplexity`, and the loss of every token is computed: seconds per
pass after one that compiles (the first is printed beside it), peak memory over what the weights take, keys read. The
goal is that each fits into 40 GB, of which a mask of all queries and keys for 32 heads alone would take 34. The exit
code is 1 if one does not.
"""

import argparse
import resource
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from measuring import verdict

from assay.attention import attention
from assay.attention.base import Budget, Prefix
from assay.attention.lanes import Lane
from assay.models.causal_lm import sparse_lanes
from assay.nn.random import initialised_from, stream
from assay.studies.perplexity.scoring import DENSE, Scorer
from assay.studies.perplexity.windows import Window

METHODS = ("h2o", "streaming_llm", "snapkv")
SHAPE = {
    "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072,
}  # fmt: skip
TOY = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024,
}  # fmt: skip
MOST_BYTES = 40e9


@dataclass(frozen=True)
class Setting:
    """What is measured, and on what."""

    shape: dict[str, Any]
    tokens: int
    slots: int
    device: torch.device
    dtype: torch.dtype


@dataclass(frozen=True)
class Measured:
    """The cost of a method beside the dense lane."""

    first: float
    seconds: float
    peak_bytes: int
    kept: float
    """Keys read over keys in sight."""


def built(setting: Setting) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**setting.shape, rope_theta=500000.0, tie_word_embeddings=True)
    with initialised_from(0, "long context"), torch.device(setting.device):
        return LlamaForCausalLM(config).to(setting.dtype).eval().requires_grad_(False)


def measured(scorer: Scorer, setting: Setting, word: str) -> Measured:
    method = attention.parse(word)
    prefix = setting.tokens // 2 if isinstance(method, Prefix) else 0
    lanes = [DENSE, Lane(method, Budget(slots=setting.slots), prefix=prefix)]
    ids = torch.randint(setting.shape["vocab_size"], (setting.tokens + 1,), generator=stream(0, "tokens"))
    every = torch.ones(setting.tokens, dtype=torch.bool)
    window = Window(0, ids[:-1], ids[1:], every, ~every)
    on_gpu, seconds, held = setting.device.type == "cuda", [], 0
    for _ in range(2):
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        start = time.perf_counter()
        with sparse_lanes(scorer.model, lanes) as usages:
            scorer(lanes, [window])
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() - held if on_gpu else resident()
    return Measured(seconds[0], seconds[1], peak, usages[1].attended / usages[1].visible)


def resident() -> int:
    """Peak memory of this process; on a CPU the weights are in it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--toy", action="store_true", help="a small model, on a CPU too")
    toy = parser.parse_args(words).toy
    if not toy and not torch.cuda.is_available():
        print("no CUDA here: nothing is measured. Try --toy.")
        return 0
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    setting = Setting(TOY, 256, 80, device, dtype) if toy else Setting(SHAPE, 32768, 2048, device, dtype)
    scorer = Scorer(built(setting))
    weights = sum(weight.numel() * weight.itemsize for weight in scorer.model.parameters())
    print(f"{setting.tokens} tokens, {setting.slots} slots, {device.type}, weights {weights / 1e9:.2f} GB")
    met = []
    for word in METHODS:
        found = measured(scorer, setting, word)
        text = f"{word}: {found.seconds:.2f} s per pass of two lanes (the first {found.first:.2f} s), "
        text += f"peak {found.peak_bytes / 1e9:.2f} GB, {found.kept:.3f} of the keys in sight read"
        fits = found.peak_bytes <= MOST_BYTES
        met.append(verdict(text, goal=f"{MOST_BYTES / 1e9:.0f} GB", met=fits))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
