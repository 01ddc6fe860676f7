"""The chunked scans against their plain loops: values, states and gradients."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from assay.nn.random import stream
from assay.nn.scan import decayed_sums, delta_loop, delta_scan, general_loop, general_scan, outer_loop, outer_scan, unit

BATCH, HEADS, D_KEY, D_VALUE = 2, 3, 8, 5
RULES = {
    "decay per channel": (outer_loop, outer_scan),
    "decay per head": (outer_loop, outer_scan),
    "shared keys": (outer_loop, outer_scan),
    "delta": (delta_loop, delta_scan),
    "gated delta": (delta_loop, delta_scan),
    "general": (general_loop, general_scan),
}
LENGTHS = (1, 2, 15, 16, 17, 33, 64, 100)


def inputs(rule: str, time: int, *, strength: float = 1.0) -> list[Tensor]:
    """Random arguments in float64; log decays of about -strength."""
    draw = partial(torch.randn, generator=stream(0, "scan", rule, time), dtype=torch.float64)
    heads = 1 if rule == "shared keys" else HEADS
    q, k, v = draw(BATCH, heads, time, D_KEY), draw(BATCH, heads, time, D_KEY), draw(BATCH, HEADS, time, D_VALUE)
    per_head = draw(BATCH, HEADS, time)
    if "delta" in rule:
        beta = 2 * torch.sigmoid(draw(BATCH, HEADS, time))
        return [q, normalize(k, dim=-1), v, beta, *([strength * logsigmoid(per_head)] if rule != "delta" else [])]
    raw = draw(BATCH, HEADS, time, D_KEY) if rule in ("decay per channel", "general") else per_head
    extra = []
    if rule == "general":  # it erases part of what it reads, in another direction: neither symmetric nor small
        b = normalize(draw(BATCH, HEADS, time, D_KEY), dim=-1)
        extra = [-b * torch.sigmoid(draw(BATCH, HEADS, time, D_KEY)), b]
    return [q, k, v, *extra, strength * logsigmoid(raw)]


def close(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...], *, tolerance: float = 1e-9) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("time", LENGTHS)
@pytest.mark.parametrize("rule", RULES)
def test_chunks_give_what_the_loop_gives(rule: str, time: int) -> None:
    loop, scan = RULES[rule]
    tensors = inputs(rule, time)
    close(scan(*tensors, scale=0.3, chunk=16), loop(*tensors, scale=0.3))


@pytest.mark.parametrize("rule", RULES)
def test_the_default_chunk_gives_what_the_loop_gives_over_many_chunks(rule: str) -> None:
    loop, scan = RULES[rule]
    tensors = inputs(rule, 200, strength=0.05)
    close(scan(*tensors), loop(*tensors))


@pytest.mark.parametrize("rule", RULES)
def test_gradients_are_the_loops(rule: str) -> None:
    def gradients(run: Callable) -> tuple[Tensor, ...]:
        leaves = [x.clone().requires_grad_() for x in tensors]
        start = state.clone().requires_grad_()
        o, end = run(*leaves, state=start)
        return torch.autograd.grad((o * weights).sum() + end.square().sum(), [*leaves, start])

    loop, scan = RULES[rule]
    tensors = inputs(rule, 37)
    draw = partial(torch.randn, generator=stream(0, "scan", "gradients"), dtype=torch.float64)
    state, weights = draw(BATCH, HEADS, D_KEY, D_VALUE), draw(BATCH, HEADS, 37, D_VALUE)
    close(gradients(partial(scan, chunk=16)), gradients(loop))


@pytest.mark.parametrize("run", [0, 1], ids=["loop", "scan"])
@pytest.mark.parametrize("rule", RULES)
def test_a_sequence_in_two_parts_with_the_state_passed_on_is_the_whole(rule: str, run: int) -> None:
    tensors = inputs(rule, 50)
    whole, end = RULES[rule][run](*tensors)
    first, state = RULES[rule][run](*(x[:, :, :21] for x in tensors))
    second, state = RULES[rule][run](*(x[:, :, 21:] for x in tensors), state=state)
    close((torch.cat([first, second], dim=2), state), (whole, end))


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "delta"])
def test_strong_decay_stays_finite_and_exact(rule: str) -> None:
    """exp(-1000) at every 16th token: factored decays would overflow, differences of one sum lose the digits."""
    loop, scan = RULES[rule]
    tensors = [x.float() for x in inputs(rule, 128)]
    strong = torch.arange(128) % 16 == 3
    tensors[-1] = torch.where(strong if tensors[-1].ndim == 3 else strong[:, None], -1000.0, 0.01 * tensors[-1])
    leaves = [x.requires_grad_() for x in tensors]
    o, end = scan(*leaves)
    exact, _ = loop(*(x.double() for x in tensors))
    torch.testing.assert_close(o, exact.float(), rtol=1e-5, atol=1e-4)
    for gradient in torch.autograd.grad(o.sum() + end.sum(), leaves):
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("rule", RULES)
def test_half_precision_inputs_are_computed_in_float32(rule: str) -> None:
    tensors = [x.bfloat16() for x in inputs(rule, 40)]
    with torch.autocast("cpu", torch.bfloat16):
        o, _ = RULES[rule][1](*tensors)
    assert o.dtype == torch.float32
    close((o,), RULES[rule][1](*(x.float() for x in tensors))[:1], tolerance=0)


@pytest.mark.parametrize("rule", RULES)
def test_a_stack_of_models_can_be_vmapped(rule: str) -> None:
    tensors = [torch.stack([x, 0.5 * x]) for x in inputs(rule, 80)]
    stacked = torch.vmap(RULES[rule][1])(*tensors)
    for i in range(2):
        close(tuple(x[i] for x in stacked), RULES[rule][1](*(x[i] for x in tensors)))


@pytest.mark.parametrize("run", [0, 1], ids=["loop", "scan"])
def test_the_general_recurrence_has_the_others_as_cases(run: int) -> None:
    q, k, v, decay = inputs("decay per channel", 80)
    nothing = torch.zeros_like(k)
    general = RULES["general"][run]
    close(general(q, k, v, nothing, k, decay), outer_loop(q, k, v, decay))
    q, k, v, beta, decay = inputs("gated delta", 80)
    a, written = -beta[..., None] * decay[..., None].exp() * k, beta[..., None] * k
    close(general(q, written, v, a, k, decay[..., None].expand(k.shape)), delta_loop(q, k, v, beta, decay))


@pytest.mark.parametrize("time", [1, 15, 16, 40])
def test_decayed_sums_are_added_up_one_by_one(time: int) -> None:
    _, _, x, log_decay = inputs("decay per head", time)
    wanted, s = [], torch.zeros_like(x[:, :, 0])
    for t in range(time):
        s = log_decay[:, :, t, None].exp() * s + x[:, :, t]
        wanted.append(s)
    close((decayed_sums(x, log_decay, chunk=16),), (torch.stack(wanted, dim=2),))


def test_unit_vectors_have_length_one_and_a_finite_gradient_at_zero() -> None:
    x = torch.randn(4, 8, generator=stream(0, "scan", "unit"))
    torch.testing.assert_close(unit(x).norm(dim=-1), torch.ones(4))
    zero = torch.zeros(8, requires_grad=True)
    unit(zero).sum().backward()
    assert torch.isfinite(zero.grad).all()
