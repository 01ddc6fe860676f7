"""Measures what sparse attention saves on a GPU, against the fastest attention in torch, with random weights.

    python benchmarks/perplexity_cuda.py                  every measurement (about five minutes on an H200)
    python benchmarks/perplexity_cuda.py attention        one of them

exact       the CUDA path against the CPU path and the token loop, on a small model
attention   16K tokens, 32 heads of 128, bf16, 95 % of the pairs left out, block lists given: against the fastest
            backend of scaled_dot_product_attention; choosing the blocks in its own column
model       the same inside 4 layers of Llama-7B's shape, with the ceiling that everything but attention sets
eviction    exact online eviction, 4 methods x 6 levels, 4K tokens, 4 layers: against the loop over tokens

`attention` times every contender in two ways, by the replay of a CUDA graph and as called from Python (device_time.py);
the goal is one of device time. The others are whole programs, called from Python and timed by CUDA events, the best of
several rounds; `eviction` has beside it, for both sides, the time in which the GPU was busy. The exit code is 1 if a
goal is missed; without CUDA nothing is run.
"""

import sys
from functools import partial
from typing import Any

import torch
from device_time import (
    HEAD,
    WARM_UP,
    Spent,
    Times,
    Work,
    cache_note,
    fastest,
    mean,
    milliseconds,
    ratio,
    repeated,
    spent,
    timed,
)
from measuring import asked, parser_of, verdict
from perplexity import LEVELS, METHODS, one_pass, token_loop
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM

from assay.attention import attention as methods
from assay.attention import flex
from assay.attention.base import BlockSelect, Budget, Evict
from assay.attention.lanes import Lane, Usage
from assay.attention.layer import Layer
from assay.attention.lifetimes import lifetimes
from assay.models.causal_lm import sparse_lanes

TIME, HEADS, DIM, BLOCK, DEVICE = 16384, 32, 128, 128, "cuda"


def best_of(work: Work, *, rounds: int = 5, repeats: int = 10) -> float:
    """Measure milliseconds per call by CUDA events: the best round after a warm-up."""
    repeated(work, WARM_UP)
    return min(milliseconds(lambda: repeated(work, repeats), rounds)) / repeats


def random_layer(time: int) -> Layer:
    rng = torch.Generator(DEVICE).manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, time, DIM, generator=rng, device=DEVICE, dtype=torch.bfloat16) for _ in range(3))
    return Layer(q, k, v)


def random_blocks(time: int, density: float, device: str = DEVICE) -> Tensor:
    """Choose for each block of queries its own keys and random earlier blocks, up to the density."""
    blocks = time // BLOCK
    rng = torch.Generator(device).manual_seed(0)
    wanted = (density * time * (time + 1) / 2 - blocks * BLOCK * (BLOCK + 1) / 2) / BLOCK**2
    # Block i has i earlier ones; of the rest each takes the same number, the last ones one more.
    whole = max(n for n in range(blocks) if sum(min(i, n) for i in range(blocks)) <= wanted)
    more = round(wanted - sum(min(i, whole) for i in range(blocks)))
    count = torch.full((blocks, 1), whole, device=device)
    count[blocks - more :] += 1
    score = torch.rand(1, HEADS, blocks, blocks, generator=rng, device=device)
    score = score.masked_fill(~torch.ones(blocks, blocks, dtype=torch.bool, device=device).tril(-1), -1.0)
    place = score.argsort(-1, descending=True).argsort(-1)
    return ((place < count) & (score >= 0)) | torch.eye(blocks, dtype=torch.bool, device=device)


BACKENDS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)


def sdpa_times(layer: Layer) -> list[Times]:
    """Time dense attention by each backend that this machine has."""
    found = []
    for backend in BACKENDS:
        try:
            with sdpa_kernel(backend):
                work = lambda: scaled_dot_product_attention(layer.q, layer.k, layer.v, is_causal=True)  # noqa: E731
                found.append(timed(backend.name, work))
        except RuntimeError as error:
            print(f"{backend.name}: not available ({str(error).splitlines()[0]})")
    assert found, "no backend of scaled_dot_product_attention takes this"
    return found


def attention() -> bool:
    """Time attention alone, block lists given; and the choice of blocks."""
    from assay.attention import block_kernels  # Triton, which machines without CUDA need not have

    layer, chosen = random_layer(TIME), random_blocks(TIME, 0.05)
    usage = Usage()
    usage.count_blocks(method_of("cab_v3"), layer, chosen)
    left_out = 1 - usage.attended / usage.visible
    held = sum(x.numel() * x.element_size() for x in (layer.q, layer.k, layer.v, layer.q))  # the last for the output
    print(f"attention alone: {TIME} tokens, {HEADS} heads of {DIM}, bf16, {left_out:.2%} left out")
    print(cache_note(held, torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size))
    dense = sdpa_times(layer)
    lists = flex.listed(chosen & ~torch.eye(chosen.shape[-1], dtype=torch.bool, device=chosen.device))
    ours = timed(f"blocks of {BLOCK}, this kernel", lambda: block_kernels.attention(layer, *lists, size=BLOCK))
    mask = flex.block_mask(chosen, size=BLOCK, time=TIME)
    other = timed(f"blocks of {BLOCK}, FlexAttention as it comes", lambda: flex.attention(layer, mask))
    listing = timed("lists from the chosen blocks", lambda: flex.listed(chosen))
    choosing = [
        timed(f"choosing the blocks, {word}", partial(method_of(word).chosen, layer, Budget(sparsity=0.95)), calls=3)
        for word in CHOOSING
    ]
    print(HEAD, *dense, ours, other, listing, *choosing, sep="\n")
    _check_blocks(layer, chosen, block_kernels.attention(layer, *lists, size=BLOCK))
    best = fastest(dense)
    named = {times.name + ", with lists and attention": [times, listing, ours] for times in choosing}
    for name, parts in {other.name: [other], **named}.items():
        gain, how = ratio([best], parts)
        print(f"{name}: {gain:.2f}x {best.name} ({how})")
    gain, how = ratio([best], [ours])
    return verdict(f"attention alone: {gain:.2f}x faster than {best.name} ({how})", goal="8x", met=gain >= 8)


CHOOSING = ("cab_v3", "cab_v4", "cab_v4:queries=16")
"""How blocks are chosen: by curvature; by the weights of all queries of the block before too; of its last 16."""


def method_of(word: str) -> BlockSelect:
    method = methods.parse(f"{word}:block_size={BLOCK}")
    assert isinstance(method, BlockSelect)
    return method


def _check_blocks(layer: Layer, chosen: Tensor, found: Tensor) -> None:
    """Compare the last two blocks of queries with attention under an explicit mask."""
    last = slice(TIME - 2 * BLOCK, TIME)
    every = chosen[:, :, -2:].repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3)
    place = torch.arange(TIME, device=found.device)
    kept = every & (place <= place[last, None])
    q, k, v = (x.float() for x in (layer.q[:, :, last], layer.k, layer.v))
    exact = scaled_dot_product_attention(q, k, v, attn_mask=kept)
    error = float((found[:, :, last].float() - exact).norm() / exact.norm())
    print(f"error against the mask written out in float32, relative: {error:.1e}")
    assert error < 1e-2, "the block lists give another attention"


def llama(*, layers: int = 4, vocab: int = 32000, dtype: torch.dtype = torch.bfloat16, **shape: int) -> Any:
    """Build a model with random weights, of Llama-7B's shape by default."""
    sizes = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 32}
    config = LlamaConfig(vocab_size=vocab, num_hidden_layers=layers, max_position_embeddings=TIME, **(sizes | shape))
    torch.manual_seed(0)
    with torch.device("cuda"):
        return LlamaForCausalLM(config).to(dtype).eval().requires_grad_(False)


@torch.no_grad()
def model() -> bool:
    """Time a whole forward pass of 16K tokens: what attention saves, and the most it could."""
    net = llama()
    ids = torch.randint(32000, (1, TIME), device="cuda")
    net.set_attn_implementation("sdpa")
    fast = fastest(sdpa_times(random_layer(TIME)))
    # The dense model uses the backend that is fastest alone, and the others only where that refuses.
    order = sorted((*BACKENDS, SDPBackend.MATH), key=lambda backend: backend.name != fast.name)
    with sdpa_kernel(order, set_priority=True):
        dense = best_of(lambda: net.model(ids, use_cache=False), rounds=3, repeats=2)
    alone = fast.best
    print(
        f"4 layers of Llama-7B's shape, {TIME} tokens: dense by {fast.name} {dense:.1f} ms, "
        f"of it attention {4 * alone:.1f} ms"
    )
    for word in CHOOSING:
        lane = Lane(method_of(word), Budget(sparsity=0.95))
        with sparse_lanes(net, [lane], count=False):
            took = best_of(lambda: net.model(ids, use_cache=False), rounds=3, repeats=2)
        ceiling = dense / (dense - 4 * alone)
        print(f"  {word} at 0.95: {took:.1f} ms, end to end {dense / took:.2f}x; the ceiling is {ceiling:.2f}x")
    return True


@torch.no_grad()
def exact() -> bool:
    """Check that the CUDA path equals the CPU path, and both the token loop."""
    small = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.backends.cuda.matmul.allow_tf32 = False
    net = llama(layers=3, vocab=512, dtype=torch.float32, **small)
    # No token twice: its first-layer keys would have equal norms, and rounding would decide which is evicted.
    ids = torch.randperm(512, device="cuda", generator=torch.Generator("cuda").manual_seed(0))[None, :320]
    met = []
    for method in ("h2o", "tova", "knorm", "keydiff"):
        lane = Lane(methods.parse(method), Budget(slots=64))
        here = one_pass(net, ids, [lane]).cpu()
        net.to("cpu")
        there = one_pass(net, ids.cpu(), [lane])
        net.to("cuda")
        apart = [float((here - there).abs().max())]
        text = f"{method}: largest logit difference, CUDA to CPU, {apart[0]:.1e}"
        if method in ("h2o", "tova"):
            apart.append(float((here - token_loop(net, ids, method, 64).cpu()).abs().max()))
            text += f"; to the token loop {apart[1]:.1e}"
        met.append(verdict(text, goal="1e-4", met=max(apart) < 1e-4))
    return all(met)


@torch.no_grad()
def eviction() -> bool:
    """Compare exact online eviction of 24 lanes in one pass with one lane of the loop over tokens."""
    net, tokens = llama(), 4096
    ids = torch.randint(32000, (1, tokens), device="cuda")
    lanes = [Lane(methods.parse(word), Budget(sparsity=level)) for word in METHODS for level in LEVELS]
    one_pass(net, ids, lanes)
    ours = spent(lambda: one_pass(net, ids, lanes), rounds=2).per(len(lanes) * tokens)
    print(f"one pass, {len(lanes)} lanes of {tokens} tokens: {ours} per (lane, token)")
    print(f"  peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    _where_time_goes(lanes, tokens)
    looped = 256
    # The warm-up has the same lengths, so that cuDNN's planning for each does not count against the loop.
    loops = {
        method: spent(partial(token_loop, net, ids[:, :looped], method, looped // 2)).per(looped) for method in METHODS
    }
    for method, took in loops.items():
        print(f"token loop, {method}: {took} per token, over {looped} tokens with {looped // 2} slots")
    return judged(mean(list(loops.values())), ours)


def judged(loop: Spent, ours: Spent) -> bool:
    """Compare elapsed times with the goal, the loop as people run it; busy times are printed beside."""
    elapsed, busy = loop.over(ours)
    reason = loop.reason or ours.reason
    beside = f"{busy:.0f}x by the time the GPU was busy" if busy is not None else f"busy time not measured: {reason}"
    said = f"exact eviction: {elapsed:.0f}x fewer CUDA seconds per (lane, token), elapsed by CUDA events"
    print(f"token loop: {loop} per token")
    return verdict(f"{said}; {beside}", goal="50x elapsed", met=elapsed >= 50)


def _where_time_goes(lanes: list[Lane], tokens: int) -> None:
    """Time the replay of one layer, and attention by its result."""
    evicting = [(lane.method, lane.slots(tokens)) for lane in lanes if isinstance(lane.method, Evict)]
    one = random_layer(tokens)
    layer = one[torch.zeros(len(evicting), dtype=torch.long, device="cuda")]
    replay = best_of(lambda: lifetimes(evicting, layer), rounds=1, repeats=1)
    last = lifetimes(evicting, layer)
    lane_layer = layer[:1]
    mask = flex.lifetime_mask(last[:1], group=1)
    apply = best_of(lambda: flex.attention(lane_layer, mask))
    print(f"  of a layer: replay of {len(evicting)} lanes {replay:.0f} ms, attention of a lane {apply:.2f} ms")


MEASUREMENTS = {function.__name__: function for function in (exact, attention, model, eviction)}


def main() -> int:
    parser = parser_of(__doc__, MEASUREMENTS)
    names = parser.parse_args().names or list(MEASUREMENTS)
    asked(parser, names, MEASUREMENTS)
    if not torch.cuda.is_available():
        print("no CUDA device: nothing is measured")
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    met = [MEASUREMENTS[name]() for name in names]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
