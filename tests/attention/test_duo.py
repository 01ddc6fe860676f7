"""Retrieval heads keep everything and streaming heads little, as many of each as the budget allows."""

from dataclasses import replace

import pytest
import token_by_token
import torch

from assay.attention import attention
from assay.attention.base import Budget, BudgetTooSmall
from assay.attention.lanes import Lane, attended
from assay.attention.layer import Layer
from assay.core.errors import UserError
from assay.nn.random import stream

TIME, LAYERS, WORD = 60, 3, "duo:num_sink_tokens=2:recent=8"
SCORES = torch.tensor([[0.1, 0.9], [0.5, 0.2], [0.8, 0.3]])


def layer_of(index=0):
    rng = stream(0, "duo")
    q, k, v = (torch.randn(2, heads, TIME, 6, generator=rng, dtype=torch.float64) for heads in (4, 2, 2))
    return Layer(q, k, v, index=index, layers=LAYERS, heads=SCORES)


def budgets(slots, length=TIME):
    return [attention.parse(WORD).budgets(layer_of(index), length, slots)[0].tolist() for index in range(LAYERS)]


def test_the_heads_of_highest_score_keep_everything_within_the_total():
    assert budgets(10) == budgets(18) == [[10, 10]] * 3
    assert budgets(19) == [[10, 60], [10, 10], [10, 10]], "6 x 9 / 50 is 1 head"
    assert budgets(27) == [[10, 60], [10, 10], [60, 10]]
    assert budgets(40) == [[10, 60], [60, 10], [60, 10]]
    for slots in range(10, TIME):
        assert sum(map(sum, budgets(slots))) <= 6 * slots


@pytest.mark.parametrize("chunk", [1, 7])
@pytest.mark.parametrize("index", range(LAYERS))
def test_it_evicts_as_a_loop_over_tokens_does(index, chunk):
    layer = layer_of(index)
    found = attended([Lane(attention.parse(WORD), Budget(slots=27), chunk=chunk)], layer)
    rule = {"score": "age", "granularity": "kv_head", "first": 2}
    for row in range(2):
        expected = token_by_token.attended(rule, budgets(27)[index], layer.q[row], layer.k[row], layer.causal, chunk)
        assert torch.equal(found[row], expected)


def test_what_it_cannot_do_is_said():
    with pytest.raises(BudgetTooSmall, match="fewer than the 2 sinks and 8 latest keys of a streaming head"):
        attended([Lane(attention.parse(WORD), Budget(slots=9))], layer_of())
    with pytest.raises(UserError, match="calibration of the model, which is not here"):
        attended([Lane(attention.parse(WORD), Budget(slots=20))], replace(layer_of(), heads=None))
    with pytest.raises(UserError, match="leave granularity out"):
        attention.parse("duo:granularity=layer")
    with pytest.raises(UserError, match="a mixer is one layer"):
        attention.parse("duo").as_mixer()
