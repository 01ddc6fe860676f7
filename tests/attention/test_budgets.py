"""Budgets per layer and per head: what the methods give, what is kept with them, and what is counted."""

from dataclasses import dataclass, replace

import pytest
import token_by_token
import torch

from assay.attention import attention
from assay.attention.base import Budget, BudgetTooSmall, Evict
from assay.attention.budget import shared_out
from assay.attention.lanes import Lane, Usage, attend, attended
from assay.attention.layer import Layer
from assay.attention.lifetimes import lifetimes
from assay.core.errors import UserError
from assay.nn.random import stream

TIME, PREFIX, WINDOW, LAYERS = 60, 40, 6, 5
SNAPKV = f"(snapkv:window_size={WINDOW}:kernel_size=3)"


def layer_of(index=0, layers=LAYERS, rows=2):
    rng = stream(0, "budgets")
    q, k, v = (torch.randn(rows, h, TIME, 6, generator=rng, dtype=torch.float64) for h in (4, 2, 2))
    return Layer(3 * q, k, v, index=index, layers=layers)


def of_layers(word, slots, length, layers):
    method = attention.parse(word)
    return [method.budgets(layer_of(n, layers), length, slots)[0].tolist() for n in range(layers)]


def left_of_prefix(word, slots, layer):
    """The keys of the prefix that each row and KV head keeps."""
    lane = Lane(attention.parse(word), Budget(slots=slots), prefix=PREFIX)
    mask = attended([lane], layer)[:, ::2, -1, :PREFIX]
    return [[head.nonzero().flatten().tolist() for head in row] for row in mask]


def votes(layer, row, head):
    """SnapKV's scores of the keys before the window, summed up one at a time."""
    first, found = PREFIX - WINDOW, [0.0] * (PREFIX - WINDOW)
    for query_head in (2 * head, 2 * head + 1):
        for t in range(first, PREFIX):
            weights = (layer.k[row, head, : t + 1] @ layer.q[row, query_head, t] / 6**0.5).softmax(0).tolist()
            found = [vote + weight for vote, weight in zip(found, weights[:first], strict=True)]
    padded = [0.0, *found, 0.0]
    return [sum(padded[j : j + 3]) for j in range(first)]


def test_the_tables_are_those_of_the_docstrings():
    assert [row[0] for row in of_layers("pyramid:beta=4:method=(snapkv:window_size=4)", 20, 100, 3)] == [32, 20, 8]
    assert [row[0] for row in of_layers("per_layer", 10, 100, 3)] == [15, 10, 5]
    assert [row[0] for row in of_layers("per_layer:first=0.5:last=1.5", 10, 100, 3)] == [5, 10, 15]


def test_a_layer_that_cannot_use_its_slots_leaves_them_to_the_others():
    assert [row[0] for row in of_layers("pyramid:beta=4:method=(snapkv:window_size=4)", 20, 30, 3)] == [30, 20, 10]
    assert [row[0] for row in of_layers("per_layer", 10, 12, 3)] == [12, 12, 6]
    assert shared_out(12, [4.0, 1.0, 1.0], most=6) == [6, 3, 3] and shared_out(40, [4.0, 1.0, 1.0], most=6) == [6, 6, 6]
    assert shared_out(10, [1.0, 1.0, 1.0], most=6) == [3, 3, 3] and shared_out(3, [0.1, 0.1, 0.1], most=9) == [1, 1, 1]


@pytest.mark.parametrize("index", [0, 2, 4])
def test_pyramid_keeps_what_a_loop_over_keys_keeps(index):
    slots, layer = 14, layer_of(index)
    most = min(2 * (slots - WINDOW) * (1 - 1 / 40), PREFIX - WINDOW)  # beta=20: least = 8 / 20, most = 16 - least
    least = 2 * (slots - WINDOW) - most
    count = int(most - index * (most - least) / (LAYERS - 1) + 1e-9)
    for row, heads in enumerate(left_of_prefix(f"pyramid:method={SNAPKV}", slots, layer)):
        for head, left in enumerate(heads):
            score = votes(layer, row, head)
            best = sorted(range(len(score)), key=score.__getitem__, reverse=True)[:count]
            assert left == sorted(best) + list(range(PREFIX - WINDOW, PREFIX))


@pytest.mark.parametrize("rule", ["mixed", "floor"])
def test_ada_keeps_what_a_loop_over_heads_keeps(rule):
    slots, layer = 14, layer_of()
    layer.q[:, :2] *= 3  # the first KV head attends to few keys, each with much weight
    found = left_of_prefix(f"ada:rule={rule}:safeguard=0.3:method={SNAPKV}", slots, layer)
    for row, heads in enumerate(found):
        scores = [votes(layer, row, head) for head in range(2)]
        ranked = [sorted(range(len(s)), key=s.__getitem__, reverse=True) for s in scores]
        every = sorted(((scores[h][j], h) for h in range(2) for j in range(len(scores[h]))), reverse=True)
        if rule == "mixed":
            pool = [h for _, h in every[: 2 * (slots - WINDOW)]]
            counts = [int(0.7 * pool.count(h) + 0.3 * (slots - WINDOW) + 1e-6) for h in range(2)]
        else:  # the window counts among what is safe: int(0.3 x 14) = 4 keys, and the window has 6
            pool = [h for _, h in every[: 2 * (slots - WINDOW)]]
            counts = [pool.count(h) for h in range(2)]
        for head, left in enumerate(heads):
            assert left == sorted(ranked[head][: counts[head]]) + list(range(PREFIX - WINDOW, PREFIX))
        assert len(heads[0]) != len(heads[1]) and sum(map(len, heads)) <= 2 * slots


def test_a_floor_above_the_window_is_kept_by_the_head_that_has_lost():
    layer = layer_of()
    layer.q[:, :2] *= 0.0  # its weights are all alike and small
    free, safe = (left_of_prefix(f"ada:rule=floor:safeguard={s}:method={SNAPKV}", 14, layer) for s in (0.0, 0.9))
    assert min(len(head) for row in free for head in row) < 12
    assert all(len(head) >= int(0.9 * 14) for row in safe for head in row)
    assert all(sum(map(len, row)) == 28 for row in (*free, *safe))


def test_ada_of_a_pyramid_shares_out_what_the_pyramid_gives_the_layer():
    for index in range(LAYERS):
        pyramid = f"pyramid:method={SNAPKV}"
        plain, pooled = (left_of_prefix(word, 14, layer_of(index)) for word in (pyramid, f"ada:method=({pyramid})"))
        for one, other in zip(plain, pooled, strict=True):
            assert sum(map(len, one)) - 2 < sum(map(len, other)) <= sum(map(len, one))


@dataclass(frozen=True, kw_only=True)
class Uneven(Evict):
    """H2O's scores; the first KV head has 7 slots more than the second, and sequences differ too."""

    def score(self, before, step):
        return before + step.weights.sum((2, 3))

    def protected(self, slots):
        return 0, slots // 2

    def budgets(self, layer, length, slots):
        return torch.tensor([[slots + 7, slots], [slots, slots + 7]])


RULE = {"score": "received", "granularity": "kv_head", "latest": 0.5}


@pytest.mark.parametrize("chunk", [1, 9])
def test_heads_with_slots_of_their_own_evict_as_they_would_token_by_token(chunk):
    layer = layer_of()
    found = attended([Lane(Uneven(), Budget(slots=8), chunk=chunk)], layer)
    for row, slots in enumerate(([15, 8], [8, 15])):
        expected = token_by_token.attended(RULE, slots, layer.q[row], layer.k[row], layer.causal, chunk)
        assert torch.equal(found[row], expected)


def test_a_clock_in_a_tensor_replays_budgets_of_heads_as_a_counter_does():
    layer = layer_of()
    lanes = [(Uneven(), Uneven().budgets(layer, TIME, 8)), (attention["tova"](), 20)]
    rows = layer[torch.tensor([0, 1, 0, 1])]
    assert torch.equal(lifetimes(lanes, rows, graph=True), lifetimes(lanes, rows, graph=False))


def test_lanes_with_budgets_are_computed_beside_others_as_alone():
    words = ["per_layer", "h2o", "per_layer:method=tova:first=0.5:last=1.5"]
    lanes = [Lane(attention.parse(word), Budget(slots=12)) for word in words]
    layer = layer_of(1)
    together = attended(lanes, layer[torch.tensor([0, 1] * 3)]).chunk(3)
    for lane, found in zip(lanes, together, strict=True):
        assert torch.equal(found, attended([lane], layer))


def test_what_is_held_and_read_is_that_of_the_budgets():
    lane, held = Lane(attention.parse("per_layer"), Budget(slots=10)), []
    for index in range(LAYERS):
        usage = Usage()
        attend([lane], layer_of(index), usage=[usage])
        slots = [15, 12, 10, 7, 5][index]
        assert usage.vectors_stored == 2 * 2 * 2 * (slots + 1)
        assert usage.vectors_read == 2 * 2 * 2 * sum(min(t, slots) + 1 for t in range(TIME))
        held.append(usage.vectors_stored / 8 - 1)
    assert sum(held) <= 10 * LAYERS


def test_the_model_s_number_of_layers_reaches_the_method():
    transformers = pytest.importorskip("transformers")
    from assay.models.causal_lm import sparse

    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    model, ids = transformers.LlamaForCausalLM(config).eval(), torch.arange(20)[None]
    with torch.no_grad(), sparse(model, "per_layer", slots=6) as usage:
        model(ids, use_cache=False)
    assert usage.vectors_stored == 2 * 2 * sum(slots + 1 for slots in (9, 6, 3))


def test_budgets_per_layer_need_the_number_of_layers():
    with pytest.raises(UserError, match="does not say how many layers it has"):
        attended([Lane(attention.parse("per_layer"), Budget(slots=10))], replace(layer_of(3), layers=1))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("per_layer:method=snapkv", "snapkv is no method that evicts"),
        ("per_layer:last=0.0", "shares above 0"),
        ("per_layer:granularity=layer", "give the granularity to its method"),
        ("ada:method=h2o", "h2o cuts down no prefix"),
        ("ada:safeguard=1.5", "is a share, from 0 to 1"),
        ("pyramid:beta=0.5", "beta=0.5 is at least 1"),
    ],
)
def test_what_means_nothing_is_refused(word, said):
    with pytest.raises(UserError, match=said):
        attention.parse(word)


def test_budgets_that_leave_a_layer_too_few_slots_are_refused():
    with pytest.raises(BudgetTooSmall, match="gives 0 slots to a layer"):
        Lane(attention.parse("per_layer:last=0.1"), Budget(slots=5)).check(TIME)
    with pytest.raises(BudgetTooSmall, match="fewer than the 4 first and 3 latest"):
        Lane(attention.parse("per_layer:method=random_evict"), Budget(slots=13)).check(TIME)
    with pytest.raises(UserError, match="a mixer is one layer"):
        attention.parse("per_layer").as_mixer()
