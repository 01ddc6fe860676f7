"""Each method of a prefix against a loop over keys, in plain Python, that computes the same scores slowly."""

import math
from statistics import stdev

import pytest
import torch

from assay.attention import attention
from assay.attention.base import Budget, BudgetTooSmall, Prefix
from assay.attention.lanes import Lane, attended
from assay.attention.layer import Layer
from assay.core.errors import UserError
from assay.nn.random import stream
from portable import METHODS

TIME, PREFIX, SLOTS, HEADS, KV_HEADS, DIM = 50, 40, 17, 4, 2, 6
FUTURE = 20


def angles(position):
    return [position * 10000.0 ** (-2 * pair / DIM) for pair in range(DIM // 2)]


def turned(vector, position):
    """A vector, with its channels i and i + DIM/2 rotated by the angle of the position."""
    one, other, half = vector[: DIM // 2], vector[DIM // 2 :], angles(position)
    first = [a * math.cos(w) - b * math.sin(w) for a, b, w in zip(one, other, half, strict=True)]
    return first + [a * math.sin(w) + b * math.cos(w) for a, b, w in zip(one, other, half, strict=True)]


def turn(x, positions):
    rows = [
        [[turned(v, p) for v, p in zip(head, places, strict=True)] for head in row]
        for row, places in zip(x.tolist(), positions.tolist(), strict=True)
    ]
    return torch.tensor(rows, dtype=x.dtype)


def layer_of(*, rotary=True):
    """Queries that are all to one side of the origin, as those of real heads are."""
    rng = stream(0, "prefix methods")
    q, k, v = (torch.randn(2, h, TIME, DIM, generator=rng, dtype=torch.float64) for h in (HEADS, KV_HEADS, KV_HEADS))
    return Layer(2 * q + 1, k, v, turn=turn if rotary else None)


def kept(word, slots=SLOTS, layer=None):
    lane = Lane(attention.parse(word), Budget(slots=slots), prefix=PREFIX)
    mask = attended([lane], layer_of() if layer is None else layer)[:, :: HEADS // KV_HEADS, -1, :PREFIX]
    return [[head.nonzero().flatten().tolist() for head in row] for row in mask]


def highest(scores, count=SLOTS):
    return sorted(sorted(range(len(scores)), key=lambda j: (-scores[j], j))[:count])


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def mean(vectors):
    return [sum(column) / len(vectors) for column in zip(*vectors, strict=True)]


def softmax(scores):
    exps = [math.exp(score - max(scores)) for score in scores]
    total = sum(exps)
    return [e / total for e in exps]


def observed(queries, keys, values):
    total = [0.0] * PREFIX
    for head in queries:
        for t in range(PREFIX):
            for j, weight in enumerate(softmax([dot(head[t], keys[j]) / DIM**0.5 for j in range(t + 1)])):
                total[j] += weight
    return [sum_ / (PREFIX - j) for j, sum_ in enumerate(total)]


def lagkv(queries, keys, values):
    """2 sinks, partitions of 9: 2-10, 11-19 and 20-28 compete, 29-37 and 38-39 stay."""
    scores = [math.inf] * PREFIX
    for first in (2, 11, 20):
        total = [0.0] * 9
        for x in (keys, values):
            after = list(zip(*x[first + 9 : first + 18], strict=True))
            spread = [
                stdev((c - min(a)) / (max(a) - min(a)) for c, a in zip(x[first + i], after, strict=True))
                for i in range(9)
            ]
            total = [a + b for a, b in zip(total, softmax(spread), strict=True)]
        for rank, i in enumerate(sorted(range(9), key=total.__getitem__)):
            scores[first + i] = rank
    return scores


def leverage(queries, keys, values):
    plain = torch.tensor([turned(key, -j) for j, key in enumerate(keys)], dtype=torch.float64)
    x = plain - plain.mean(0)
    inverse = torch.linalg.inv(x.T @ x + 0.01 * torch.eye(DIM, dtype=torch.float64)).tolist()
    return [dot([dot(row, line) for line in inverse], row) for row in x.tolist()]


def expected_attention(queries, keys, values):
    """3 sinks; the means over the group of what Gaussian queries would give each key."""
    scores = [0.0] * PREFIX
    for head in queries:
        plain = [turned(q, -t) for t, q in enumerate(head) if 3 <= t < PREFIX]
        centre = mean(plain)
        coming = mean([turned(centre, p) for p in range(PREFIX, PREFIX + FUTURE)])
        logits = []
        for key in keys[3:PREFIX]:
            # k . R x for the mean rotation R is the mean of k . (x turned by p).
            back = mean([turned(key, -p) for p in range(PREFIX, PREFIX + FUTURE)])
            variance = sum(dot(back, [a - b for a, b in zip(q, centre, strict=True)]) ** 2 for q in plain) / len(plain)
            logits.append(dot(key, coming) / DIM**0.5 + variance / DIM / 2)
        for j, weight in enumerate(softmax(logits), start=3):
            scores[j] += weight * dot(values[j], values[j]) ** 0.5
    return [math.inf] * 3 + scores[3:]


def qfilter(queries, keys, values):
    main = [0.0] * DIM
    for head in queries:
        u = mean(head[:PREFIX])
        for _ in range(100):  # the power method
            u = [sum(dot(q, u) * q[c] for q in head[:PREFIX]) for c in range(DIM)]
            u = [x / dot(u, u) ** 0.5 for x in u]
        side = 1 if dot(mean(head[:PREFIX]), u) > 0 else -1
        main = [a + side * b for a, b in zip(main, u, strict=True)]
    return [dot(key, main) for key in keys]


def finch(queries, keys, values):
    """A question of 6 tokens."""
    scores = [0.0] * (PREFIX - 6) + [math.inf] * 6
    for head in queries:
        for t in range(PREFIX - 6, PREFIX):
            for j, weight in enumerate(softmax([dot(head[t], keys[j]) / DIM**0.5 for j in range(t + 1)])):
                scores[j] += weight * (t + 1)
    return scores


ORACLES = {
    "finch:question_size=6": finch,
    "observed": observed,
    "lagkv:num_sink_tokens=2:lag_size=9": lagkv,
    "leverage": leverage,
    f"expected_attention:num_sink_tokens=3:future={FUTURE}": expected_attention,
    "qfilter": qfilter,
}


@pytest.mark.parametrize("word", ORACLES)
def test_the_keys_kept_are_those_of_a_loop(word):
    layer, group = layer_of(), HEADS // KV_HEADS
    for row, heads in enumerate(kept(word)):
        for head, left in enumerate(heads):
            queries = layer.q[row, head * group : (head + 1) * group].tolist()
            scores = ORACLES[word](queries, layer.k[row, head, :PREFIX].tolist(), layer.v[row, head, :PREFIX].tolist())
            assert left == highest(scores)


def test_chunks_are_kept_whole_by_the_mean_of_all_heads():
    layer = layer_of()
    for row, heads in enumerate(kept("chunkkv:method=observed:chunk_size=7")):
        total = [0.0] * PREFIX
        for head in range(KV_HEADS):
            scores = observed(layer.q[row, 2 * head : 2 * head + 2].tolist(), layer.k[row, head].tolist(), None)
            total = [a + b for a, b in zip(total, scores, strict=True)]
        chunks = [range(first, min(first + 7, PREFIX)) for first in range(0, PREFIX, 7)]
        best = sorted(chunks, key=lambda chunk: -sum(total[j] for j in chunk) / len(chunk))
        left = sorted([j for chunk in best for j in chunk][:SLOTS])
        assert heads == [left] * KV_HEADS


def laziness(layer, row, queries, keys):
    """The attention of the last queries to these keys, in the mean over all heads."""
    shares = [
        sum(
            w
            for j, w in enumerate(softmax([dot(layer.q[row, h, t].tolist(), k) / DIM**0.5 for k in past]))
            if j in keys
        )
        for h in range(HEADS)
        for t in range(PREFIX - queries, PREFIX)
        for past in [layer.k[row, h // 2, : t + 1].tolist()]
    ]
    return sum(shares) / len(shares)


def test_lazy_layers_keep_sinks_and_the_latest_and_others_everything():
    layer, ends = layer_of(), [0, 1, 2, *range(PREFIX - 9, PREFIX)]
    # The last queries of the second sequence look at keys far from both ends.
    layer.q[1, :, PREFIX - 5 : PREFIX] = 20 * layer.k[1, :, 20].repeat_interleave(2, 0)[:, None]
    low, high = sorted(laziness(layer, row, 5, ends) for row in range(2))
    assert high > low + 0.1
    word = "simlayerkv:num_sink_tokens=3:last_queries=5:threshold={}"
    first, second = kept(word.format((low + high) / 2), 12, layer)
    assert first == [ends] * KV_HEADS and second == [list(range(PREFIX))] * KV_HEADS
    assert kept(word.format(low - 1e-6), 12, layer) == [[ends] * KV_HEADS] * 2
    assert kept(word.format(high + 1e-6), 12, layer) == [[list(range(PREFIX))] * KV_HEADS] * 2
    assert attention.parse("simlayerkv").title == "simlayerkv (k in lazy layers)"


def test_the_window_of_snapkv_stays_beside_chunks():
    for row in kept("chunkkv:method=(snapkv:window_size=5):chunk_size=6"):
        assert row[0] == row[1] and row[0][-5:] == list(range(35, 40))
        assert row[0][:12] == [
            j for first in sorted({j // 6 for j in row[0][:12]}) for j in range(6 * first, 6 * first + 6)
        ]


def test_queries_are_shown_as_they_were_before_their_positions():
    layer = layer_of()
    plain = layer.unturned(layer.q[:, :, :PREFIX])
    expected = [[turned(q, -t) for t, q in enumerate(head[:PREFIX])] for head in layer.q[0].tolist()]
    torch.testing.assert_close(plain[0], torch.tensor(expected, dtype=plain.dtype), rtol=0, atol=1e-12)
    assert torch.equal(layer_of(rotary=False).unturned(layer.q), layer.q)
    assert kept("expected_attention") != kept("expected_attention", layer=layer_of(rotary=False))


def test_the_model_s_own_rotation_is_undone():
    """Queries that a Llama has turned come back, to the rounding of float32; a rotation of another kind is refused."""
    transformers = pytest.importorskip("transformers")
    from assay.models import causal_lm

    sizes = {"vocab_size": 20, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2)
    model, ids, seen = transformers.LlamaForCausalLM(config).eval(), torch.arange(20)[None], []
    block = model.model.layers[0]

    def look(lanes, layer, **options):
        seen.append(layer.unturned(layer.q))
        return attend(lanes, layer, **options)

    attend = causal_lm.attend
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(causal_lm, "attend", look)
        with causal_lm.sparse(model, "dense"):
            model(ids, use_cache=False)
        plain = block.self_attn.q_proj(block.input_layernorm(model.model.embed_tokens(ids)))
    torch.testing.assert_close(seen[0], plain.unflatten(-1, (2, 16)).transpose(1, 2), rtol=0, atol=1e-6)
    scaled = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    other = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**sizes, num_attention_heads=2, rope_parameters=scaled)
    )
    lane = causal_lm.sparse(other, "expected_attention", slots=8, prefix=16)
    with pytest.raises(UserError, match="of the kinds default, linear, llama3, yarn alone"), lane:
        other(ids, use_cache=False)


def test_every_prefix_method_has_an_oracle():
    elsewhere = {"snapkv", "pyramid", "ada", "chunkkv", "simlayerkv"}  # test_prefix.py, test_budgets.py, here
    found = {name for name in METHODS if issubclass(attention[name], Prefix)}
    assert found == {word.partition(":")[0] for word in ORACLES} | elsewhere


@pytest.mark.parametrize(
    ("word", "slots", "said"),
    [
        ("lagkv", 20, "has no two partitions of 32 after 4 sinks"),
        ("lagkv:num_sink_tokens=2:lag_size=9", 12, "fewer than the 13 keys it always keeps"),
        ("expected_attention", 4, "no more than its 4 sinks"),
        ("simlayerkv", 4, "no more than its 4 sinks"),
        ("finch", 15, "fewer than its question of 16"),
    ],
)
def test_a_budget_below_what_always_stays_is_refused(word, slots, said):
    with pytest.raises(BudgetTooSmall, match=said):
        kept(word, slots)


WHOLE = ["lagkv", "expected_attention", "leverage", "chunkkv", "observed", "qfilter", "finch", "simlayerkv"]


@pytest.mark.parametrize("word", WHOLE)
def test_with_room_for_the_prefix_everything_stays_however_short_it_is(word):
    assert kept(word, PREFIX) == [[list(range(PREFIX))] * KV_HEADS] * 2


def test_a_ridge_that_inverts_nothing_is_refused():
    with pytest.raises(UserError, match="must be above 0"):
        attention.parse("leverage:ridge=0.0")
