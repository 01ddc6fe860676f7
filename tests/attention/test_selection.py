"""Selections against loops over single queries."""

import dataclasses
import itertools

import pytest
import torch

from assay.attention import attention
from assay.attention.base import Budget, BudgetTooSmall
from assay.attention.lanes import Lane, attended
from assay.attention.layer import Layer
from assay.core.errors import UserError
from assay.nn.random import stream


def layer_of(time, *, heads=4, kv_heads=2, dim=6, index=8):
    rng = stream(0, "selection")
    q, k, v = (torch.randn(2, h, time, dim, generator=rng, dtype=torch.float64) for h in (heads, kv_heads, kv_heads))
    return Layer(q, k, v, index=index)


def kept(word, budget, layer):
    return attended([Lane(attention.parse(word), budget)], layer)


def every_query(layer):
    """Row, head, query, its vector, and the keys it may see."""
    group = layer.q.shape[1] // layer.k.shape[1]
    for row, head, t in itertools.product(range(layer.rows), range(layer.q.shape[1]), range(layer.time)):
        yield (row, head, t), layer.q[row, head, t], layer.k[row, head // group, : t + 1]


def test_oracle_topk_keeps_the_highest_scores_and_the_query_s_own_key():
    layer = layer_of(40)
    mask = kept("oracle_topk", Budget(slots=5), layer)
    for (row, head, t), query, keys in every_query(layer):
        others = (keys[:-1] @ query).argsort(descending=True)[:5].tolist()
        assert mask[row, head, t].nonzero().flatten().tolist() == sorted([*others, t])


def test_quest_keeps_its_own_page_and_those_with_the_highest_bounds():
    layer = layer_of(50)
    mask = kept("quest:page_size=4:min_pages=2", Budget(slots=11), layer)
    for (row, head, t), query, keys in every_query(layer):
        bounds = {}
        for page in range(t // 4):
            low, high = keys[4 * page : 4 * page + 4].aminmax(dim=0)
            bounds[page] = torch.maximum(query * low, query * high).sum().item()
        pages = [t // 4, *sorted(bounds, key=bounds.get, reverse=True)[:2]]  # 12 keys are three pages
        expected = sorted(j for page in pages for j in range(4 * page, 4 * page + 4) if j <= t)
        assert mask[row, head, t].nonzero().flatten().tolist() == expected


def test_a_page_s_bound_is_never_below_the_score_of_a_key_in_it():
    layer = layer_of(48)
    bounds = attention["quest"]().bounds(layer).repeat_interleave(16, dim=-1) * layer.q.shape[-1] ** -0.5
    assert (bounds >= layer.scores - 1e-12).all()


def test_quest_leaves_the_first_layers_dense_unless_told_otherwise():
    budget = Budget(slots=8)
    for word, dense in (("quest", (True, True, False)), ("quest:dense_layers=0", (False, False, False))):
        layers = [layer_of(100, index=index) for index in range(3)]
        assert tuple(kept(word, budget, x).all(dim=1).sum() == 2 * 5050 for x in layers) == dense


def test_random_draws_each_head_and_layer_anew_and_does_not_look_at_the_keys():
    budget, layer = Budget(sparsity=0.5), layer_of(60)
    mask = kept("random", budget, layer)
    assert not torch.equal(mask[:, 0], mask[:, 1]) and torch.equal(mask[0], mask[1])
    assert torch.equal(mask, kept("random", budget, dataclasses.replace(layer, k=-layer.k)))
    assert not torch.equal(mask, kept("random", budget, dataclasses.replace(layer, index=9)))


@pytest.mark.parametrize("name", ["random", "oracle_topk"])
def test_a_choice_does_not_depend_on_how_many_queries_choose_at_once(name, monkeypatch):
    layer, budget = layer_of(60), Budget(slots=7)
    mask = kept(name, budget, layer)
    monkeypatch.setattr("assay.attention.budget.SCORES_AT_ONCE", 1000)
    assert torch.equal(mask, kept(name, budget, layer))


def test_random_draws_the_same_for_a_longer_sequence_and_behind_padding():
    budget, padding = Budget(slots=7), 9
    mask = kept("random", budget, layer_of(60))
    assert torch.equal(mask[:, :, :40, :40], kept("random", budget, layer_of(40)))
    padded = layer_of(60 + padding)
    there = torch.arange(60 + padding) >= padding
    padded = dataclasses.replace(padded, mask=(padded.causal & there & there[:, None]).expand(2, -1, -1))
    assert torch.equal(mask, kept("random", budget, padded)[:, :, padding:, padding:])


def test_what_random_draws_for_two_queries_is_as_far_apart_as_chance():
    """Of 32 keys out of 1023, two queries share one in the mean, whatever the distance of their places."""
    mask = kept("random", Budget(slots=32), layer_of(1056, heads=2, kv_heads=1))[0, :, 1024:, :1023].double()
    mine, shared = mask.sum(-1), torch.einsum("hqk,hpk->hqp", mask, mask)
    expected = mine[:, :, None] * mine[:, None] / 1023
    apart = ~torch.eye(32, dtype=torch.bool)
    assert shared[:, apart].mean().item() == pytest.approx(expected[:, apart].mean().item(), rel=0.1)


def test_random_keeps_every_visible_key_equally_often():
    share = kept("random", Budget(slots=10), layer_of(51, heads=400, kv_heads=1))[0, :, 50, :50].double().mean(0)
    assert share.mean().item() == pytest.approx(0.2) and (share - 0.2).abs().max() < 5 * (0.16 / 400) ** 0.5


def cab(layer, *, blocks, size, ratio, weight):
    """CAB in loops: for each block of queries the blocks of keys it attends to, from what came before it."""
    group, scale = layer.q.shape[1] // layer.k.shape[1], layer.q.shape[-1] ** -0.5
    count = -(-layer.time // size)
    chosen = {}
    for row, head in itertools.product(range(layer.rows), range(layer.q.shape[1])):
        q, k = layer.q[row, head], layer.k[row, head // group]
        longest = {}
        for name, x in (("q", q), ("k", k)):
            for b in range(count):
                longest[name, b] = max(x[b * size : (b + 1) * size], key=lambda vector: vector.norm().item())
        affinity, seen = {}, []
        for i in range(1, count):
            scores = {j: (longest["q", i - 1] @ longest["k", j]).item() for j in range(i)}
            seen += scores.values()
            width = max(seen) - min(seen) or 1.0
            affinity |= {(i, j): (score - min(seen)) / width for j, score in scores.items()}
        weights = (q @ k.T * scale).masked_fill(~layer.causal, float("-inf")).softmax(-1)
        for i in range(count):
            detours = {j: sum(affinity[i, b] * affinity[b, j] for b in range(j + 1, i)) for j in range(i)}
            curvature = {j: affinity[i, j] - weight * detours[j] / (i + 1) for j in range(i)}
            tile = {j: weights[(i - 1) * size : i * size, j * size : (j + 1) * size].max().item() for j in range(i)}
            free = min(blocks - 1, i)
            heavy = sorted(tile, key=tile.get, reverse=True)[: round(ratio * free)]
            rest = sorted(set(curvature) - set(heavy), key=curvature.get, reverse=True)[: free - len(heavy)]
            chosen[row, head, i] = sorted([*heavy, *rest, i])
    return chosen


@pytest.mark.parametrize(
    ("word", "ratio", "weight"),
    [
        ("cab_v3:block_size=4", 0.0, 0.3),
        ("cab_v3:block_size=4:lambda_redundancy=5.0", 0.0, 5.0),
        ("cab_v4:block_size=4", 0.5, 0.3),
        ("cab_v4:block_size=4:magnitude_ratio=0.8:lambda_redundancy=1.0", 0.8, 1.0),
    ],
)
def test_causal_cab_is_its_definition_in_loops(word, ratio, weight):
    layer = layer_of(62)
    mask = kept(word, Budget(slots=16), layer)
    for (row, head, i), blocks in cab(layer, blocks=5, size=4, ratio=ratio, weight=weight).items():
        for t in range(4 * i, min(4 * i + 4, layer.time)):
            expected = [j for block in blocks for j in range(4 * block, 4 * block + 4) if j <= t]
            assert mask[row, head, t].nonzero().flatten().tolist() == expected


@pytest.mark.parametrize(
    ("word", "option"),
    [
        ("cab_v3", "lambda_redundancy=3.0"),
        ("cab_v3", "block_size=8"),
        ("cab_v4", "lambda_redundancy=3.0"),
        ("cab_v4", "block_size=8"),
        ("cab_v4", "magnitude_ratio=0.0"),
        ("cab_v4", "magnitude_ratio=1.0"),
    ],
)
def test_every_term_of_cab_changes_the_mask(word, option):
    layer, budget = layer_of(128), Budget(sparsity=0.7)
    size = "" if "block_size" in option else ":block_size=4"
    one, two = kept(f"{word}:block_size=4", budget, layer), kept(f"{word}{size}:{option}", budget, layer)
    assert not torch.equal(one, two)


def test_cab_v4_without_magnitude_is_cab_v3():
    layer, budget = layer_of(128), Budget(sparsity=0.7)
    assert torch.equal(
        kept("cab_v4:block_size=4:magnitude_ratio=0.0", budget, layer), kept("cab_v3:block_size=4", budget, layer)
    )


def test_cab_says_so_below_four_blocks_and_is_labelled_causal():
    method = attention.parse("cab")
    assert method.title == "cab_v4 (causal)" and attention.parse("cab_v3").title == "cab_v3 (causal)"
    with pytest.raises(BudgetTooSmall, match=r"^budget below 4 blocks: cab_v4 with .* has 2 of the 16 blocks"):
        method.check(1024, Budget(sparsity=0.9))
    method.check(1024, Budget(sparsity=0.75))
    method.check(128, Budget(sparsity=0.0))


def test_cab_v4_by_the_last_queries_weighs_those_alone():
    rng = torch.Generator().manual_seed(0)
    layer = Layer(*(torch.randn(1, 2, 40, 8, generator=rng) for _ in range(3)))
    found = attention.parse("cab_v4:block_size=8:queries=3").magnitude(layer)
    causal = torch.ones(40, 40, dtype=torch.bool).tril()
    weights = (layer.q @ layer.k.mT * 8**-0.5).masked_fill(~causal, float("-inf")).softmax(-1)
    for block in range(5):
        rows = weights[:, :, 8 * block + 5 : 8 * block + 8]
        expected = torch.stack([rows[..., 8 * j : 8 * j + 8].amax((-2, -1)) for j in range(5)], dim=-1)
        torch.testing.assert_close(found[:, :, block], expected)
    with pytest.raises(UserError, match="queries=9 of a block of 8"):
        attention.parse("cab_v4:block_size=8:queries=9")
    assert attention.parse("cab_v4:block_size=8:queries=0").spec() == attention.parse("cab_v4:block_size=8").spec()
    assert "queries" not in attention.parse("cab_v4").spec(), "runs of before keep their ids"
