"""What CUDA does differently, followed on the CPU: the clock in a tensor, and masks that are never written out."""

import pytest
import torch

from assay.attention import attention, flex, lanes
from assay.attention.base import Budget, Prefix
from assay.attention.curvature import tiles
from assay.attention.lanes import Lane, Usage, attend, attended
from assay.attention.layer import Layer, masked_attention
from assay.attention.lifetimes import alive, lasting, lifetimes
from assay.nn.random import stream

TIME, HEADS, KV_HEADS, DIM = 300, 4, 2, 16
WORDS = ("h2o", "tova", "keydiff", "knorm", "random_evict")


def layer_of(rows=1, time=TIME):
    rng = stream(0, "cuda")
    q, k, v = (torch.randn(rows, h, time, DIM, generator=rng) for h in (HEADS, KV_HEADS, KV_HEADS))
    return Layer(2 * q, k, v, index=8, layers=12)  # past the layers that knorm skips


def test_a_clock_in_a_tensor_gives_the_history_of_a_counter():
    lanes = [(attention.parse(word), slots) for word in WORDS for slots in (12, 70)]
    layer = layer_of(rows=len(lanes), time=150)
    assert torch.equal(lifetimes(lanes, layer, graph=True), lifetimes(lanes, layer, graph=False))


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("slots", [20, 200])
def test_lifetimes_inside_the_kernel_are_the_mask_written_out(word, slots):
    layer, lane = layer_of(), Lane(attention.parse(word), Budget(slots=slots))
    last = lifetimes([(lane.method, slots)], layer)
    found = flex.attention(layer, flex.lifetime_mask(last, group=layer.group))
    kept = attended([lane], layer)
    torch.testing.assert_close(found, masked_attention(layer, kept), rtol=0, atol=1e-5)
    counted, expected = Usage(), Usage()
    counted.count_lifetimes(lane.method, layer, last)
    expected.count_mask(lane.method, layer, kept)
    assert counted == expected


LASTING = ["window", "streaming_llm", "snapkv", "observed", "ada", "leverage", "simlayerkv", "chunkkv:method=observed"]


@pytest.mark.parametrize("word", LASTING)
@pytest.mark.parametrize("slots", [75, 140])
def test_patterns_and_prefixes_as_lifetimes_are_the_mask_written_out(word, slots):
    layer, method = layer_of(rows=2), attention.parse(word)
    lane = Lane(method, Budget(slots=slots), prefix=150 if isinstance(method, Prefix) else 0)
    last, kept = lasting(lane.placed, layer, lane.budget), attended([lane], layer)
    assert torch.equal(alive(last).repeat_interleave(layer.group, dim=1), kept)
    since = lane.first_sparse(TIME)
    counted, expected = Usage(), Usage()
    counted.count_lifetimes(lane.method, layer, last, since)
    expected.count_mask(lane.method, layer, kept, since)
    assert counted == expected
    assert lasting(attention.parse("quest"), layer, lane.budget) is None
    assert lasting(attention.parse("local_strided"), layer, lane.budget) is None


@pytest.mark.parametrize(("word", "prefix"), [("snapkv", 150), ("window", 0), ("streaming_llm", 150), ("dense", 0)])
def test_what_is_attended_to_by_lifetimes_is_what_masks_give(word, prefix, monkeypatch):
    layer, lane = layer_of(rows=2), Lane(attention.parse(word), Budget(slots=80), prefix=prefix)
    outputs, usages = [], list[Usage]()
    monkeypatch.setattr(lanes, "MASKED_UP_TO", 64)
    for usable in (False, True):
        monkeypatch.setattr(flex, "usable", lambda layer, usable=usable: usable)
        usages.append(Usage())
        outputs.append(attend([lane], layer, usage=[usages[-1]]))
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-5)
    assert usages[0] == usages[1]


@pytest.mark.parametrize("word", ["cab_v3", "cab_v4"])
def test_block_lists_are_the_mask_written_out(word):
    """Not compiled, FlexAttention reads every block; so the lists themselves are compared."""
    method, budget = attention.parse(f"{word}:block_size=32"), Budget(sparsity=0.5)
    layer = layer_of()
    chosen = method.chosen(layer, budget)
    lists = flex.block_mask(chosen, size=32, time=TIME)
    kept = attended([Lane(method, budget)], layer)
    assert not kept.all() and 0.3 < kept.sum() / layer.causal.sum() / HEADS < 0.7
    assert torch.equal(lists.to_dense().bool(), tiles(kept.byte(), 32).bool())
    assert torch.equal(lists.kv_num_blocks, torch.ones_like(lists.kv_num_blocks)), "only the diagonal is masked inside"
    counted, expected = Usage(), Usage()
    counted.count_blocks(method, layer, chosen)
    expected.count_mask(method, layer, kept)
    assert counted == expected


@pytest.mark.parametrize("word", WORDS)
def test_every_block_with_a_key_that_is_kept_is_listed(word):
    layer, lane = layer_of(), Lane(attention.parse(word), Budget(slots=40))
    listed = flex.lifetime_mask(lifetimes([(lane.method, 40)], layer), group=layer.group).to_dense().bool()
    assert torch.equal(listed, tiles(attended([lane], layer).byte(), flex.BLOCK).bool())


def test_dead_blocks_are_not_read():
    oldest = torch.arange(900).expand(1, KV_HEADS, -1) + 20  # as a window of 20 would have it
    counts = flex.lifetime_mask(oldest.clamp(max=899), group=2).kv_num_blocks
    assert counts.unique().tolist() == [1, 2]
