"""Every attention method keeps these promises: see assay.attention.base."""

import dataclasses
import warnings
from contextlib import suppress
from copy import copy
from functools import cache
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from assay.attention import attention
from assay.attention.base import Budget, BudgetTooSmall, Evict, Method, Prefix, Select, Step, head_budgets
from assay.attention.checks import expect, numbers
from assay.attention.lanes import Lane, attended, realised_density
from assay.attention.layer import Layer
from assay.attention.replay import initial_score_of
from assay.contracts.shared import shared
from assay.nn.random import stream

BRIEF, TIME, LONG = 128, 192, 320
"""Long enough for eviction, which goes token by token and knows no blocks; three blocks of 64, where most methods have
room with one of the budgets below; five, for those that need four."""
BUDGETS = (Budget(sparsity=0.2), Budget(sparsity=0.9), Budget(slots=48))
LATER_LAYER, LAYERS = 8, 12
"""A layer index past those that some methods leave dense, and the number of layers."""


def scores_with_finite_numbers(method: Method) -> None:
    """Scores are finite numbers and masks are booleans, of the shape that the signature states, where the keys are."""
    for layer in (_layer(_time(method)), _layer(_time(method), masked=True)):
        with numbers() as seen:
            if isinstance(method, Evict):
                _assert_finite("initial_score", initial_score_of(method, layer), layer.exists[:, None])
            _each(_watched(method), layer)
            seen.raise_for_none()


def keeps_everything_when_it_may(method: Method) -> None:
    """With room for every key the mask is the dense one."""
    layer = _layer(_time(method))
    for budget in (Budget(sparsity=0.0), Budget(slots=layer.time)):
        missing = int((~_kept(method, budget, layer) & layer.visible[:, None]).sum())
        assert missing == 0, f"with {budget} {missing} keys are left out"


def does_not_read_the_future(method: Method) -> None:
    """Changing queries, keys and values from t on leaves the mask of every query before t the same bits."""
    time = _time(method)
    layer, other, times = _layer(time), _layer(time, name="other"), (1, 70, 3 * time // 4, time - 1)
    pairs = ((layer.q, other.q), (layer.k, other.k), (layer.v, other.v))
    q, k, v = (torch.cat([one, *(_changed_from(t, one, two) for t in times)]) for one, two in pairs)
    for budget, masks in _each(method, dataclasses.replace(layer, q=q, k=k, v=v)):
        kept, *changed = masks.chunk(1 + len(times))
        for t, moved in zip(times, changed, strict=True):
            same = torch.equal(kept[:, :, :t], moved[:, :, :t])
            assert same, f"{budget}: masks before {t} moved when the tokens from {t} on changed"


def recalls_queries_only_if_it_says_so(method: Method) -> None:
    """Changing queries before t moves no mask from t on, unless a method that selects declares `recalls_queries`."""
    if not isinstance(method, Select) or method.recalls_queries:
        return
    layer, other = _layer(_time(method)), _layer(_time(method), name="other")
    for t in (70, layer.time - 1):
        moved = dataclasses.replace(layer, q=_changed_from(t, other.q, layer.q))
        for (budget, kept), (_, again) in zip(_each(method, layer), _each(method, moved), strict=True):
            same = torch.equal(kept[:, :, t:], again[:, :, t:])
            assert same, f"{budget}: masks from {t} on moved when earlier queries changed; declare recalls_queries"


def attends_to_itself(method: Method) -> None:
    """Every query attends to its own key, where the model lets it."""
    for masked in (False, True):
        layer, masks = _masks(method, masked)
        for budget, kept in masks:
            own = kept.diagonal(dim1=2, dim2=3)
            lost = int((~own & layer.visible.diagonal(dim1=1, dim2=2)[:, None]).sum())
            assert lost == 0, f"{budget}: {lost} queries do not see their own key"


def stays_inside_the_model_s_mask(method: Method) -> None:
    """No query attends to a key that the model hides: padding, a sliding window, the future."""
    layer, masks = _masks(method, True)
    for budget, kept in masks:
        beyond = int((kept & ~layer.visible[:, None]).sum())
        assert beyond == 0, f"{budget}: {beyond} keys are attended to that the model hides"


def has_the_density_it_declares(method: Method) -> None:
    """The part of the keys really attended to is within 2 % of `expected_density`, where that is defined."""
    layer, masks = _masks(method, False)
    for budget, kept in masks:
        expected = method.expected_density(layer.time, budget)
        real = realised_density(kept, layer).mean().item()
        close = expected is None or abs(real - expected) <= 0.02 * expected
        assert close, f"{budget}: density {real:.4f}, expected_density says {expected:.4f}"


def stays_within_its_budgets(method: Method) -> None:
    """No head of a cache holds more keys than its budget, and all layers and heads together no more than the total. A
    method that is not `bounded` says in its row's name what the budget means."""
    if not isinstance(method, Evict | Prefix):
        return
    if not method.bounded:
        assert method.departure, "it is not bounded by its budget, and its row does not say so (`departure`)"
        return
    layer, masks = _masks(method, False)
    length = method.length(layer.time) if isinstance(method, Prefix) else layer.time
    for budget, kept in masks:
        slots = budget.cache(length)
        layers = (dataclasses.replace(layer, index=index) for index in range(LAYERS))
        every = [head_budgets(method, one, length, slots) for one in layers]
        given = torch.stack([torch.full((2, 2), slots) if one is None else one for one in every])
        most, total = int(given.sum((0, 2)).max()), slots * given[:, 0].numel()
        assert int(given.min()) >= 0, f"{budget}: a budget of {int(given.min())} slots"
        assert most <= total, f"{budget}: {most} slots in {LAYERS} layers, {total} in all were given"
        heads = kept[:, :: layer.group, length:, :length] if isinstance(method, Prefix) else kept[:, :: layer.group]
        own = 0 if isinstance(method, Prefix) else 1  # the new key is read before anything leaves
        over = (heads.sum(-1) - given[LATER_LAYER][..., None] - own).amax().item()
        assert over <= 0, f"{budget}: a head holds {over} keys more than its budget"


def draws_from_its_own_seed_alone(method: Method) -> None:
    """The mask does not depend on the global generator, which is left alone; another `seed` gives another mask."""
    layer, budget = _layer(_time(method)), BUDGETS[0]
    before, kept = torch.random.get_rng_state(), _kept(method, budget, layer)
    assert torch.equal(before, torch.random.get_rng_state()), "the method drew from the global generator"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        assert torch.equal(kept, _kept(method, budget, layer)), "two calls gave two masks"
    if "seed" in {option.name for option in dataclasses.fields(method)}:
        other = dataclasses.replace(method, seed=method.seed + 1)  # type: ignore[attr-defined, call-arg]
        assert not torch.equal(kept, _kept(other, budget, layer)), "the seed changes nothing"


def treats_each_sequence_and_lane_alone(method: Method) -> None:
    """A mask does not depend on the other sequences of the batch, nor on the methods and budgets computed with it."""
    layer = _layer(_time(method))
    budgets = _budgets(method, layer.time)
    lanes = [Lane(attention["h2o"](), Budget(slots=40)), *(Lane(method, budget) for budget in budgets)]
    everything = attended(lanes, layer[torch.arange(layer.rows).repeat(len(lanes))])
    for lane, together in zip(lanes[1:], everything.chunk(len(lanes))[1:], strict=True):
        assert torch.equal(together[1:], attended([lane], layer[1:])), (
            f"{lane.budget}: another mask alone than with other lanes and sequences"
        )


def decides_in_float32_at_least(method: Method) -> None:
    """Queries and keys in bf16 give the mask that the same numbers in float32 give."""
    layer = _layer(_time(method))
    q, k, v = layer.q.bfloat16(), layer.k.bfloat16(), layer.v.bfloat16()
    half = dataclasses.replace(layer, q=q, k=k, v=v)
    single = dataclasses.replace(layer, q=q.float(), k=k.float(), v=v.float())
    for (budget, one), (_, two) in zip(_each(method, half), _each(method, single), strict=True):
        assert torch.equal(one, two), f"{budget}: bf16 and float32 give different masks for the same numbers"


def is_not_another_method_by_name(method: Method) -> None:
    """On the same layer no other name gives the same mask."""
    kept = _mask_of(method)
    for name in attention.names():
        if name == method.name or not attention[name].portable:
            continue
        try:
            other = _mask_of(attention[name]())
        except Exception as error:  # noqa: BLE001 - whatever is wrong with another method, this one has not broken a promise
            warnings.warn(f"not compared with {name}, which is broken: {error}", stacklevel=2)
            continue
        assert not torch.equal(kept, other), f"the mask is that of {name}"


@cache
def _mask_of(method: Method) -> Bool[Tensor, "rows heads query key"]:
    """The mask with which a method is told from the others, at the length where every one has room."""
    return _kept(method, BUDGETS[0], _layer(LONG))


def _kept(method: Method, budget: Budget, layer: Layer) -> Bool[Tensor, "rows heads query key"]:
    return attended([Lane(method, budget)], layer)


Masks = list[tuple[Budget, Bool[Tensor, "rows heads query key"]]]


@shared
def _masks(method: Method, masked: bool) -> tuple[Layer, Masks]:
    layer = _layer(_time(method), masked=masked)
    return layer, _each(method, layer)


def _each(method: Method, layer: Layer) -> Masks:
    """Return the masks for each budget, computed together."""
    budgets = _budgets(method, layer.time)
    rows = torch.arange(layer.rows).repeat(len(budgets))
    kept = attended([Lane(method, budget) for budget in budgets], layer[rows])
    return list(zip(budgets, kept.chunk(len(budgets)), strict=True))


def _time(method: Method) -> int:
    """Choose the shortest length with room for the method: evictions are replayed token by token, so length is time."""
    lengths = (BRIEF if isinstance(method, Evict) else TIME, LONG)
    fitting = next((time for time in lengths if BUDGETS[0] in _budgets(method, time)), None)
    assert fitting, f"{BUDGETS[0]}, the largest budget that is tried, is too small for it at {LONG} tokens"
    return fitting


def _budgets(method: Method, time: int) -> list[Budget]:
    """Return those that are not too small for the method."""
    fitting = []
    for budget in BUDGETS:
        with suppress(BudgetTooSmall):
            method.check(time, budget)
            fitting.append(budget)
    return fitting


def _layer(time: int = TIME, *, name: str = "one", masked: bool = False) -> Layer:
    """Return two sequences of a layer with 4 heads that share 2 KV heads; masked: a window, and padding in front."""
    rng = stream(0, "contract", name)
    q, k, v = (torch.randn(2, heads, time, 8, generator=rng, dtype=torch.float64) for heads in (4, 2, 2))
    heads = torch.rand(LAYERS, 2, generator=stream(0, "heads"))
    heads[LATER_LAYER, 0] = -1.0  # a head that a method may take for one that needs little
    shown: dict[str, Any] = {"index": LATER_LAYER, "layers": LAYERS, "heads": heads}
    if not masked:
        return Layer(q, k, v, **shown)
    place = torch.arange(time)
    mask = ((place <= place[:, None]) & (place[:, None] - place < 3 * time // 4)).repeat(2, 1, 1)
    mask[1, :, :70] = False
    return Layer(q, k, v, mask, **shown)


def _watched(method: Method) -> Method:
    """Return the same method with every score checked as it is returned."""
    if not isinstance(method, Evict):
        return method
    watched, score = copy(method), method.score

    def looked_at(before: Tensor, step: Step) -> Tensor:
        after = score(before, step)
        shape = dict(zip(("rows", "kv_heads", "slots"), before.shape, strict=True))
        _assert_finite("score", expect(after, method, "score", shape, before), step.present.any(dim=2))
        return after

    object.__setattr__(watched, "score", looked_at)
    return watched


def _assert_finite(what: str, found: Tensor, where: Tensor) -> None:
    bad = int((~found.isfinite() & where).sum())
    assert bad == 0, f"{what} must be finite: {bad} of {int(where.expand_as(found).sum())} are not"


def _changed_from(t: int, one: Tensor, two: Tensor) -> Tensor:
    return torch.cat([one[:, :, :t], two[:, :, t:]], dim=2)
