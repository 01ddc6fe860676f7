"""The replay of an eviction history is what a real cache, token by token, would have held."""

import dataclasses

import pytest
import token_by_token
import torch

from assay.attention import attention
from assay.attention.base import Budget, BudgetTooSmall, Evict
from assay.attention.lanes import Lane, attended
from assay.attention.layer import Layer
from assay.attention.lifetimes import alive, lifetimes
from assay.core.errors import UserError
from assay.nn.random import stream

TIME, HEADS, KV_HEADS, DIM = 90, 6, 2, 5


def numbers():
    rng = stream(0, "attention", "random_evict", 0)
    return torch.rand(TIME, KV_HEADS, generator=rng).T.tolist()


RULES = {
    "h2o": {"score": "received", "granularity": "kv_head", "latest": 0.5},
    "h2o:recent=0.2": {"score": "received", "granularity": "kv_head", "latest": 0.2},
    "h2o:granularity=layer": {"score": "received", "granularity": "layer", "latest": 0.5},
    "tova": {"score": "present_query", "granularity": "layer"},
    "tova:granularity=kv_head": {"score": "present_query", "granularity": "kv_head"},
    "keydiff": {"score": "unlike_the_mean", "granularity": "kv_head"},
    "knorm:skip_layers=": {"score": "short", "granularity": "kv_head"},
    "knorm:skip_layers=3": {"score": "short", "granularity": "kv_head"},
    "knorm:granularity=layer:skip_layers=": {"score": "short", "granularity": "layer"},
    "per_layer:method=h2o": {"score": "received", "granularity": "kv_head", "latest": 0.5},  # one layer has the mean
    "random_evict": {"score": "drawn", "granularity": "kv_head", "first": 4, "latest": 0.5, "numbers": numbers()},
}


def layer_of(rows=1, mask=None, *, time=TIME, seed=0):
    rng = stream(seed, "eviction")
    q, k, v = (torch.randn(rows, h, time, DIM, generator=rng, dtype=torch.float64) for h in (HEADS, KV_HEADS, KV_HEADS))
    # Sharper than random: some keys get most of the weight.
    return Layer(2 * q, k, v, mask, heads=torch.tensor([[1.0, 2.0]]))


def kept(word, slots, layer):
    return attended([Lane(attention.parse(word), Budget(slots=slots))], layer)


def test_every_evict_method_has_an_oracle():
    evicting = {name for name in attention.names() if issubclass(attention[name], Evict)}
    assert evicting == {word.partition(":")[0] for word in RULES} | {"duo"}  # test_duo.py


@pytest.mark.parametrize("slots", [2, 8, 31])
@pytest.mark.parametrize("word", RULES)
def test_the_replay_is_token_by_token_eviction(word, slots):
    if word == "random_evict" and slots == 2:
        slots = 12  # four sinks do not fit into two
    layer = layer_of(rows=2)
    expected = [
        token_by_token.attended(RULES[word], slots, q, k, layer.causal) for q, k in zip(layer.q, layer.k, strict=True)
    ]
    assert torch.equal(kept(word, slots, layer), torch.stack(expected))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("chunk", [63, 127])
def test_a_chunk_that_begins_just_before_a_block_of_scores_reads_no_later_key(chunk, seed):
    """Its first query is alone in its block, with keys of the whole chunk in the slots."""
    word, layer = "h2o:recent=0.2", layer_of(time=2 * chunk + 4, seed=seed)
    # That query gives its own key nearly all its weight; shared out among keys to come, the key would be let go.
    layer.q[:, :, chunk] = 9 * layer.k[:, :, chunk].repeat_interleave(HEADS // KV_HEADS, 1)
    expected = token_by_token.attended(RULES[word], 40, layer.q[0], layer.k[0], layer.causal, chunk)
    lane = Lane(attention.parse(word), Budget(slots=40), chunk=chunk)
    assert torch.equal(attended([lane], layer)[0], expected)


@pytest.mark.parametrize("word", [word for word in RULES if "random" not in word])
def test_a_key_that_the_model_s_window_has_left_behind_is_the_first_to_go(word):
    place = torch.arange(TIME)
    mask = (place <= place[:, None]) & (place[:, None] - place < 20)
    layer = layer_of(mask=mask[None])
    expected = token_by_token.attended(RULES[word], 12, layer.q[0], layer.k[0], mask)
    assert torch.equal(kept(word, 12, layer)[0], expected)
    assert expected.sum(-1).max() == 13 and torch.equal(kept(word, 30, layer)[0], mask.expand(HEADS, -1, -1))


@pytest.mark.parametrize(
    "word", [*RULES, "window", "streaming_llm", "local_strided:stride=7:local_window=5", "oracle_topk"]
)
def test_padding_in_front_changes_nothing(word):
    padded, alone = padded_and_alone(17)
    assert torch.equal(kept(word, 20, padded)[:, :, 17:, 17:], kept(word, 20, alone))


@pytest.mark.parametrize(
    "word", ["quest:dense_layers=0:page_size=8:min_pages=1", "cab_v3:block_size=8", "cab_v4:block_size=8"]
)
def test_padding_by_whole_blocks_changes_no_choice_of_blocks(word):
    """Pages and blocks lie where the row begins, so that padding by a part of one would move their edges."""
    padded, alone = padded_and_alone(16)
    chosen = kept(word, 32, alone)
    assert torch.equal(kept(word, 32, padded)[:, :, 16:, 16:], chosen) and not chosen[:, :, -1].all()


@pytest.mark.parametrize("word", ["random", "snapkv:prefix=60:window_size=8"])
def test_padding_takes_no_slot(word):
    """What is drawn hangs on the place, and a prefix on the row; how many keys are kept does not."""
    padded, alone = padded_and_alone(16)
    seen = kept(word, 20, padded)
    assert not seen[..., :16].any() and not kept(word, 20, alone)[:, :, -1].all()
    reach = {"random": 21}.get(word, 20 + TIME + 16 - 60)
    assert (seen[:, :, -1].sum(-1) == reach).all()


def padded_and_alone(width):
    alone, rng = layer_of(), stream(0, "padding")
    front = [torch.randn(1, h, width, DIM, generator=rng, dtype=torch.float64) for h in (HEADS, KV_HEADS, KV_HEADS)]
    q, k, v = (torch.cat([pad, x], 2) for pad, x in zip(front, (alone.q, alone.k, alone.v), strict=True))
    mask = torch.ones(1, TIME + width, TIME + width, dtype=torch.bool).tril()
    mask[:, :, :width] = False
    return Layer(q, k, v, mask), alone


def test_lanes_computed_together_are_the_lanes_alone():
    words = [*RULES, "window", "oracle_topk", "dense"]
    lanes = [Lane(attention.parse(word), Budget(slots=slots)) for slots in (40, 12, 200) for word in words]
    layer = layer_of(rows=len(lanes))
    together = attended(lanes, layer)
    for number, lane in enumerate(lanes):
        assert torch.equal(together[number : number + 1], attended([lane], layer[number : number + 1])), lane


def test_a_cache_as_long_as_the_sequence_evicts_nothing_and_one_slot_less_only_at_the_end():
    layer, method = layer_of(), attention["h2o"]()
    assert torch.equal(alive(lifetimes([(method, TIME)], layer))[0, 0], layer.causal)
    assert (lifetimes([(method, TIME - 2)], layer) < TIME - 1).sum() == KV_HEADS


def test_what_is_evicted_never_comes_back():
    for name in (name for name in attention.names() if issubclass(attention[name], Evict)):
        mask = kept(name, 20, layer_of())
        came_back = (mask[:, :, 1:] & ~mask[:, :, :-1]) & layer_of().causal[:-1]
        assert not came_back.any(), name


def test_each_query_reads_the_slots_and_its_own_key():
    mask = kept("h2o", 10, layer_of())
    assert mask.sum(-1).unique(dim=0).tolist() == [[[min(t, 10) + 1 for t in range(TIME)]] * HEADS]


def test_granularity_layer_gives_all_heads_one_cache():
    shared, own = kept("tova", 10, layer_of()), kept("tova:granularity=kv_head", 10, layer_of())
    assert torch.equal(shared[:, 0], shared[:, -1]) and not torch.equal(own[:, 0], own[:, -1])


def test_h2o_worked_example():
    """The example of h2o.py: weights 1 | .9 .1 | .2 .5 .3 in two slots, one of them for the latest key."""
    weights = torch.tensor([[1.0, 0, 0, 0], [0.9, 0.1, 0, 0], [0.2, 0.5, 0.3, 0], [0.25, 0.25, 0.25, 0.25]])
    layer = Layer(
        weights.log().clamp(min=-50)[None, None], torch.eye(4)[None, None], torch.eye(4)[None, None], scale=1.0
    )
    assert kept("h2o", 2, layer)[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 1, 1]]
    assert kept("tova", 2, layer)[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]]


def test_equal_worths_let_the_oldest_go():
    layer = layer_of()
    equal = dataclasses.replace(layer, k=torch.ones_like(layer.k))
    assert torch.equal(kept("knorm:skip_layers=", 10, equal), kept("window", 10, equal))


def test_knorm_lets_the_oldest_go_among_keys_that_rounding_alone_tells_apart():
    """In a first layer a key is its token's, turned by its position: equal norms, but for the rounding of float32."""
    rng = stream(0, "ties")
    tokens = torch.randint(4, (TIME,), generator=rng)
    plain = torch.randn(4, 2, 3, generator=rng)[tokens].permute(1, 0, 2)[None]  # one of 4 keys per head
    angle = torch.arange(TIME, dtype=torch.float32) * 0.37
    one, other, rest = plain.unbind(-1)
    turned = [one * angle.cos() - other * angle.sin(), one * angle.sin() + other * angle.cos(), rest]
    layer = Layer(torch.zeros(1, 2, TIME, 3), torch.stack(turned, -1), torch.zeros(1, 2, TIME, 3))
    assert layer.k[0, 0, tokens == 0].norm(dim=-1).unique().numel() > 1, "nothing was rounded"
    exact = dataclasses.replace(layer, q=layer.q.double(), k=plain.double(), v=layer.v.double())
    assert torch.equal(kept("knorm:skip_layers=", 12, layer), kept("knorm:skip_layers=", 12, exact))


def test_knorm_leaves_the_first_two_layers_as_they_are():
    layers = [dataclasses.replace(layer_of(), index=index) for index in range(4)]
    whole = [bool((kept("knorm", 10, layer) == layer.causal).all()) for layer in layers]
    assert whole == [True, True, False, False]
    assert not any((kept("knorm:skip_layers=", 10, layer) == layer.causal).all() for layer in layers)
    assert (kept("knorm:skip_layers=2", 10, layers[2]) == layers[2].causal).all()
    with pytest.raises(UserError, match="layers are counted from 0"):
        attention.parse("knorm:skip_layers=-1")


def test_a_budget_below_what_is_always_kept_is_refused():
    with pytest.raises(BudgetTooSmall, match="gives 7 slots at 90 tokens, fewer than the 5 first and 3 latest keys"):
        kept("random_evict:num_sink_tokens=5", 7, layer_of())
