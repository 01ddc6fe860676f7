"""The prefix protocol: dense up to n, then what was kept and everything since."""

import pytest
import torch

from assay.attention import attention
from assay.attention.base import Budget, BudgetTooSmall
from assay.attention.lanes import Lane, Usage, attend, attended
from assay.attention.layer import Layer
from assay.attention.lifetimes import alive, lifetimes
from assay.core.errors import UserError
from assay.nn.random import stream

TIME, PREFIX, WINDOW, SLOTS = 60, 40, 6, 15
WORD = f"snapkv:prefix={PREFIX}:window_size={WINDOW}:kernel_size=3"


def layer_of(mask=None):
    rng = stream(0, "prefix")
    q, k, v = (torch.randn(2, h, TIME, 6, generator=rng, dtype=torch.float64) for h in (4, 2, 2))
    return Layer(q, k, v, mask)


def kept(word, slots, layer):
    return attended([Lane(attention.parse(word), Budget(slots=slots))], layer)


def test_snapkv_keeps_what_the_last_queries_of_the_prefix_attend_to():
    layer = layer_of()
    mask = kept(WORD, SLOTS, layer)
    for row in range(2):
        for head in range(2):
            votes = [0.0] * (PREFIX - WINDOW)
            for query_head in (2 * head, 2 * head + 1):
                for t in range(PREFIX - WINDOW, PREFIX):
                    weights = (layer.k[row, head, : t + 1] @ layer.q[row, query_head, t] / 6**0.5).softmax(0).tolist()
                    votes = [vote + weight for vote, weight in zip(votes, weights[: PREFIX - WINDOW], strict=True)]
            padded = [0.0, *votes, 0.0]
            shared = [sum(padded[j : j + 3]) for j in range(len(votes))]
            best = sorted(range(len(votes)), key=shared.__getitem__, reverse=True)[: SLOTS - WINDOW]
            left = sorted([*best, *range(PREFIX - WINDOW, PREFIX)])
            for t in range(PREFIX, TIME):
                assert mask[row, 2 * head, t].nonzero().flatten().tolist() == [*left, *range(PREFIX, t + 1)]
                assert torch.equal(mask[row, 2 * head, t], mask[row, 2 * head + 1, t])


def test_the_prefix_itself_is_dense():
    assert torch.equal(kept(WORD, SLOTS, layer_of())[:, :, :PREFIX], kept("dense", 1, layer_of())[:, :, :PREFIX])


def test_the_prefix_is_half_of_the_tokens_unless_told_otherwise_and_may_be_all():
    method = attention["snapkv"]
    assert [method(prefix=n).length(60) for n in (0, 40, 100)] == [30, 40, 60]
    assert kept("snapkv:prefix=100", 64, layer_of()).all(dim=1).sum() == 2 * TIME * (TIME + 1) // 2


def test_padding_takes_none_of_the_slots():
    mask = torch.ones(2, TIME, TIME, dtype=torch.bool).tril()
    mask[:, :, :20] = False
    assert (kept(WORD, SLOTS, layer_of(mask))[:, :, -1, :PREFIX].sum(-1) == SLOTS).all()


@pytest.mark.parametrize("word", ["window", "h2o", "snapkv:window_size=6:kernel_size=3", "dense"])
def test_what_is_read_is_counted_from_the_end_of_the_prefix_on(word):
    lane, layer, usage = Lane(attention.parse(word), Budget(slots=SLOTS), prefix=PREFIX), layer_of(), Usage()
    attend([lane], layer, usage=[usage])
    left = PREFIX if word == "dense" else SLOTS
    assert usage.attended == 2 * 4 * sum(left + n for n in range(1, TIME - PREFIX + 1))
    assert usage.visible == 2 * 4 * sum(t + 1 for t in range(PREFIX, TIME))
    assert usage.queries == 2 * 2 * (TIME - PREFIX) and usage.vectors_read == usage.attended
    assert usage.vectors_stored == 2 * 2 * 2 * (left + TIME - PREFIX)


def test_lifetimes_are_counted_as_their_mask():
    layer, method, found = layer_of(), attention["h2o"](), (Usage(), Usage())
    last = lifetimes([(method, SLOTS)], layer, prefix=PREFIX)
    found[0].count_lifetimes(method, layer, last, PREFIX)
    found[1].count_mask(method, layer, alive(last).repeat_interleave(2, 1), PREFIX)
    assert found[0] == found[1]


def test_a_pattern_with_slots_enough_for_the_prefix_may_still_leave_keys_out():
    word = "local_strided:local_window=4:stride=5"
    lane = Lane(attention.parse(word), Budget(slots=PREFIX), prefix=PREFIX)
    assert not lane.is_dense(TIME) and not attended([lane], layer_of())[:, :, -1, :PREFIX].all()
    assert Lane(attention.parse("window"), Budget(slots=PREFIX), prefix=PREFIX).is_dense(TIME)


def test_a_window_that_does_not_fit_and_an_even_kernel_are_refused():
    with pytest.raises(BudgetTooSmall, match="gives 5 slots for a prefix of 40 tokens, fewer than its window of 6"):
        kept(WORD, 5, layer_of())
    with pytest.raises(UserError, match="make it odd"):
        attention.parse("snapkv:kernel_size=4")
