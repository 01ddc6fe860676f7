"""The Triton kernels of the recurrences against the plain loops in float64, gradients included. They need a GPU, or
Triton's interpreter."""

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize, pad, softplus

from assay.core.errors import UserError
from assay.nn import scan
from triton_device import DEVICE, INTERPRETED, needs_triton, worst
from triton_device import precision as precision

pytestmark = needs_triton
KINDS = ["decay per head", "decay per channel", "delta", "delta, decay per head", "delta, decay per channel", "general"]
SIZES = [
    *((2, 2, 16, 16, 16), (2, 2, 100, 24, 40), (3, 4, 256, 64, 64), (1, 2, 500, 128, 128)),
    *((64, 2, 100, 16, 64), (64, 2, 100, 32, 32), (64, 2, 128, 32, 64), (64, 2, 100, 64, 32), (64, 2, 128, 128, 64)),
    *((1, 1, 70, 96, 40), (1, 1, 70, 128, 80)),
]
"""Sequences, heads, tokens, channels of a key and of a value: tiles of every width, few sequences and many."""
EXACT, TF32, BF16 = 2e-5, 5e-3, 1e-2
"""Norm of the error over the norm of what is wanted."""


@pytest.fixture(params=[False, True], ids=["chunk by chunk", "through all chunks"])
def ways_of_programs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of the outer recurrence has one chunk, or all of a head, as where there are many sequences. The other
    way's kernel is gone meanwhile."""
    from assay.nn import outer, outer_kernels

    monkeypatch.setattr(outer, "MANY", 1 if request.param else 1 << 30)
    monkeypatch.setattr(outer_kernels, "passed" if request.param else "carried", None)


def drawn(kind: str, size: tuple[int, ...], *, strength: float = 0.3, heads_of_keys: int | None = None) -> list[Tensor]:
    """Return q, k, v, then b and log a as the recurrence has them, then the state before the first token."""
    sequences, heads, time, d_key, d_value = size
    rng = torch.Generator(DEVICE).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, device=DEVICE)

    shared = heads_of_keys or heads
    per_head, per_channel = (sequences, heads, time), (sequences, heads, time, d_key)
    tensors = [normal(sequences, shared, time, d_key), normalize(normal(sequences, shared, time, d_key), dim=-1)]
    tensors.append(normal(sequences, heads, time, d_value))
    if "delta" in kind:
        tensors.append(2 * torch.sigmoid(normal(*per_head)))
    if kind == "general":  # it erases part of what it reads, in another direction
        b = normalize(normal(*per_channel), dim=-1)
        tensors += [-b * torch.sigmoid(normal(*per_channel)), b]
        tensors.append(-strength * softplus(normal(*per_channel)))
    if "decay" in kind:
        tensors.append(-strength * softplus(normal(*(per_channel if "channel" in kind else per_head))))
    return [*tensors, normal(sequences, heads, d_key, d_value)]


def rule(kind: str) -> str:
    return "general" if kind == "general" else "delta" if "delta" in kind else "outer"


def answers(kind: str, tensors: list[Tensor], module: object, form: str) -> list[Tensor]:
    """Return outputs, the last state, and the gradients of a weighted sum of both."""
    tensors = [x.detach().clone().requires_grad_() for x in tensors]
    *inputs, state = tensors
    run = getattr(module, f"{rule(kind)}_{form}")
    o, last = run(*inputs, state=state, scale=0.5)
    rng = torch.Generator(DEVICE).manual_seed(1)
    weights = [torch.randn(x.shape, generator=rng, device=DEVICE) for x in (o, last)]
    gradients = torch.autograd.grad((o * weights[0]).sum() + (last * weights[1]).sum(), tensors)
    return [o, last, *gradients]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_the_loop(kind: str, size: tuple[int, ...]) -> None:
    from assay.nn import triton

    tensors = drawn(kind, size)
    wanted = answers(kind, [x.double() for x in tensors], scan, "loop")
    assert worst(answers(kind, tensors, triton, "scan"), wanted) < EXACT
    torch.set_float32_matmul_precision("high")
    assert worst(answers(kind, tensors, triton, "scan"), wanted) < TF32
    narrow = [x.bfloat16() for x in tensors[:3]]
    wanted = answers(kind, [x.double() for x in (*narrow, *tensors[3:])], scan, "loop")
    assert worst(answers(kind, [*narrow, *tensors[3:]], triton, "scan"), wanted) < BF16


@pytest.mark.usefixtures("ways_of_programs")
@pytest.mark.parametrize("size", [(2, 2, 16, 16, 16), (2, 2, 100, 24, 40), (1, 2, 130, 64, 80), (1, 1, 200, 48, 128)])
@pytest.mark.parametrize("kind", ["decay per head", "decay per channel"])
def test_both_ways_to_carry_a_state_agree_with_the_loop(kind: str, size: tuple[int, ...]) -> None:
    test_agrees_with_the_loop(kind, size)


@pytest.mark.parametrize("kind", ["decay per head", "delta", "general"])
def test_hopper_s_asynchronous_products_stay_off_in_an_environment_that_was_restored(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `environment_kept` restores it after every plan: in one process the kernels of the next plan were wrong."""
    from assay.nn import triton

    monkeypatch.delenv("DISABLE_MMA_V3", raising=False)
    answers(kind, drawn(kind, (1, 1, 16, 16, 16)), triton, "scan")
    assert os.environ["DISABLE_MMA_V3"] == "1"


@pytest.mark.parametrize("kind", ["decay per head", "decay per channel", "delta, decay per channel", "general"])
def test_strong_decays_keep_their_digits(kind: str) -> None:
    from assay.nn import triton

    tensors = drawn(kind, (2, 2, 130, 32, 80), strength=10.0)
    found = answers(kind, tensors, triton, "scan")
    assert all(x.isfinite().all() for x in found)
    wanted = answers(kind, [x.double() for x in tensors], scan, "loop")
    assert worst(found[:2], wanted[:2]) < EXACT
    assert worst(found, wanted) < 1e-3


PER_CHANNEL = ["decay per channel", "delta, decay per channel", "general"]


def near_and_far(kind: str) -> list[Tensor]:
    """Return what `drawn` does, with the chunks of the first head just within reach, and those of the second beyond."""
    from assay.nn.chunk_blocks import REACH
    from assay.nn.chunk_sizes import chunk_of

    tensors = drawn(kind, (1, 2, 64, 16, 16))
    shares = torch.tensor([0.99, 1.01], device=DEVICE)
    # One channel decays as far as that, the others hardly: a decay of all would leave nothing to compare.
    tensors[-2][..., 0] = (-REACH.value / chunk_of(64) * shares)[None, :, None]
    return tensors


@pytest.mark.parametrize("kind", PER_CHANNEL)
def test_chunks_whose_rows_meet_at_one_point_and_chunks_whose_blocks_are_merged_are_both_right(kind: str) -> None:
    from assay.nn import triton

    tensors = near_and_far(kind)
    found = answers(kind, tensors, triton, "scan")
    wanted = answers(kind, [x.double() for x in tensors], scan, "loop")
    for head in range(2):
        assert worst([x[:, head] for x in found], [x[:, head] for x in wanted]) < EXACT


@pytest.mark.parametrize("launch", [0, 1], ids=["near", "far"])
@pytest.mark.parametrize("kind", PER_CHANNEL)
def test_each_chunk_has_a_launch_of_its_own(kind: str, launch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the other launch its chunks stay as memory was: no numbers. Forward, then in gradients of a whole forward
    pass."""
    from assay.nn import general, outer, triton

    *inputs, state = [x.requires_grad_() for x in near_and_far(kind)]
    whole, _ = getattr(triton, f"{rule(kind)}_scan")(*inputs, state=state)
    for chunks, name in ((outer.Chunks, "levels"), (triton._Chunks, "launches"), (general._Chunks, "launches")):
        monkeypatch.setattr(chunks, "__init__", with_one(chunks.__init__, name, launch))
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, unset(getattr(owner, name)))
    alone, _ = getattr(triton, f"{rule(kind)}_scan")(*inputs, state=state)
    gradient, *_ = torch.autograd.grad(whole.sum(), inputs)
    for found in (alone, gradient):
        assert found[:, launch].isfinite().all() and found[:, 1 - launch].isnan().all()


def with_one(init: Callable[..., None], name: str, launch: int) -> Callable[..., None]:
    def run(self: object, *given: object) -> None:
        init(self, *given)
        setattr(self, name, [getattr(self, name)[launch]])

    return run


def unset(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *given, **options: make(*given, **options).fill_(torch.nan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "delta"])
def test_later_tokens_change_no_bit_of_what_comes_before_them(kind: str, dtype: torch.dtype) -> None:
    from assay.nn import triton

    *inputs, state = drawn(kind, (1, 2, 100, 16, 16))
    inputs[:3] = [x.to(dtype) for x in inputs[:3]]
    other = [x.clone() for x in inputs]
    for x in other:
        x[:, :, 40:] *= 1.5  # keys, values, strengths and decays
    run = getattr(triton, f"{rule(kind)}_scan")
    found, wanted = (run(*given, state=state)[0] for given in (inputs, other))
    assert torch.equal(found[:, :, :40], wanted[:, :, :40]) and not torch.equal(found, wanted)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "delta"])
def test_a_decay_that_is_no_number_is_not_hidden(kind: str) -> None:
    from assay.nn import triton

    *inputs, _ = drawn(kind, (1, 1, 20, 16, 16))
    inputs[-1][:, :, 7] = torch.nan
    found, _ = getattr(triton, f"{rule(kind)}_scan")(*inputs)
    assert found[:, :, 7:].isnan().all()


def forgetful(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return tensors with queries, keys and values of that dtype, and with log decays, the last tensor but one, that
    leave nothing of the state at a tenth of the tokens."""
    *others, log_decay, last = tensors
    rng = torch.Generator(DEVICE).manual_seed(1)
    forgets = torch.rand(log_decay.shape, generator=rng, device=DEVICE) < 0.1
    return [*(x.to(dtype) for x in others[:3]), *others[3:], torch.where(forgets, -1e4, log_decay), last]


def worst_gradient_of_a_rate(found: list[Tensor], wanted: list[Tensor], tensors: list[Tensor]) -> float:
    """Return the error of the gradient of a rate r, of log decays r x: a difference's rounding must not be multiplied
    by x. It is a sum over tokens, in which much cancels."""
    log_decay = tensors[-2].double()
    of_rate = ([(gradients[-2].double() * log_decay).sum(dim=2)] for gradients in (found, wanted))
    return worst(*of_rate)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "delta"])
def test_where_all_is_forgotten_a_decay_has_no_gradient(kind: str, dtype: torch.dtype) -> None:
    from assay.nn import triton

    tensors = forgetful(drawn(kind, (2, 2, 100, 32, 32)), dtype)
    found = answers(kind, tensors, triton, "scan")
    wanted = answers(kind, [x.double() for x in tensors], scan, "loop")
    assert worst_gradient_of_a_rate(found, wanted, tensors) < (10 * EXACT if dtype == torch.float32 else 10 * BF16)


@pytest.mark.parametrize("which", [0, 1], ids=["outputs", "last state"])
@pytest.mark.parametrize("kind", ["delta, decay per channel", "general"])
def test_a_gradient_of_outputs_or_of_the_last_state_alone(kind: str, which: int) -> None:
    from assay.nn import triton

    tensors = drawn(kind, (1, 1, 12, 16, 16))
    found = gradients_of(which, getattr(triton, f"{rule(kind)}_scan"), tensors)
    wanted = gradients_of(which, getattr(scan, f"{rule(kind)}_loop"), [x.double() for x in tensors])
    for a, b in zip(found, wanted, strict=True):  # what does not matter has a gradient of 0, which has no share of it
        torch.testing.assert_close(a[b == 0], b[b == 0].float(), rtol=0, atol=0)
    there = [place for place, gradient in enumerate(wanted) if gradient.any()]
    assert worst([found[place] for place in there], [wanted[place] for place in there]) < EXACT


def gradients_of(which: int, run: Callable[..., tuple[Tensor, Tensor]], tensors: list[Tensor]) -> list[Tensor]:
    """Return the gradients of the squares of the outputs (0) or of the last state (1)."""
    *inputs, state = tensors = [x.clone().requires_grad_() for x in tensors]
    total = run(*inputs, state=state)[which].square().sum()
    return list(torch.autograd.grad(total, tensors, allow_unused=True, materialize_grads=True))


@pytest.mark.usefixtures("ways_of_programs")
def test_keys_shared_by_the_heads() -> None:
    from assay.nn import triton

    tensors = drawn("decay per head", (2, 4, 70, 16, 16), heads_of_keys=1)
    wanted = answers("decay per head", [x.double() for x in tensors], scan, "loop")
    assert worst(answers("decay per head", tensors, triton, "scan"), wanted) < EXACT


@pytest.mark.usefixtures("ways_of_programs")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strengths_of_writing_and_a_share_of_values(dtype: torch.dtype) -> None:
    """As Mamba-2 has them: keys shared by the heads, a strength per head and token, and D v added to the outputs."""
    from assay.nn.outer import outer_scan

    q, k, v, log_decay, _ = drawn("decay per head", (2, 4, 70, 16, 32), heads_of_keys=1)
    rng = torch.Generator(DEVICE).manual_seed(2)
    strength, skip = (softplus(torch.randn(shape, generator=rng, device=DEVICE)) for shape in (v.shape[:3], (4,)))
    given = [*(x.to(dtype) for x in (q, k, v)), log_decay, strength, skip]
    pull = torch.randn(v.shape, generator=rng, device=DEVICE)

    def kernels(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, strength: Tensor, skip: Tensor) -> Tensor:
        return outer_scan(q, k, v, log_decay, strength=strength, skip=skip)[0]

    def plain(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, strength: Tensor, skip: Tensor) -> Tensor:
        return scan.outer_loop(q, strength[..., None] * k, v, log_decay)[0] + skip[:, None, None] * v

    def found(run: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
        tensors = [x.detach().requires_grad_() for x in tensors]
        o = run(*tensors)
        return [o, *torch.autograd.grad((o * pull).sum(), tensors)]

    wanted = found(plain, [x.double() for x in given])
    assert worst(found(kernels, given), wanted) < (EXACT if dtype == torch.float32 else BF16)


def drawn_with_strengths(size: tuple[int, ...]) -> list[Tensor]:
    """Return q, k, v and log a as the mLSTM has them, then the strengths of writing."""
    *inputs, _ = drawn("decay per head", size)
    rng = torch.Generator(DEVICE).manual_seed(2)
    return [*inputs, softplus(torch.randn(size[:3], generator=rng, device=DEVICE))]


def normed_loop(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, *, strength: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs and normalisers: a normaliser is what a value of ones gives."""
    o, _ = scan.outer_loop(q, strength[..., None] * k, pad(v, (0, 1), value=1.0), log_decay)
    return o[..., :-1], o[..., -1]


def normed_answers(run: Callable[..., tuple[Tensor, Tensor]], tensors: list[Tensor]) -> list[Tensor]:
    """Return outputs and normalisers, the gradients of normalisers alone, then those of both."""
    *others, strength = tensors = [x.detach().requires_grad_() for x in tensors]
    o, n = run(*others, strength=strength)
    rng = torch.Generator(DEVICE).manual_seed(3)
    pulls = [torch.randn(x.shape, generator=rng, device=DEVICE) for x in (o, n)]
    alone = torch.autograd.grad((n * pulls[1]).sum(), [tensors[i] for i in (0, 1, 3, 4)], retain_graph=True)
    return [o, n, *alone, *torch.autograd.grad((o * pulls[0]).sum() + (n * pulls[1]).sum(), tensors)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [(2, 2, 130, 24, 40), (1, 1, 70, 72, 80), (1, 1, 70, 256, 80)])
def test_a_normaliser_is_what_a_value_of_ones_gives(size: tuple[int, ...], dtype: torch.dtype) -> None:
    """As the mLSTM has it: over several chunks and blocks of channels, with strengths of writing."""
    from assay.nn.outer import normed_scan

    q, k, v, *others = drawn_with_strengths(size)
    given = [*(x.to(dtype) for x in (q, k, v)), *others]
    wanted = normed_answers(normed_loop, [x.double() for x in given])
    assert worst(normed_answers(normed_scan, given), wanted) < (EXACT if dtype == torch.float32 else BF16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_all_is_forgotten_a_decay_beside_a_normaliser_has_no_gradient(dtype: torch.dtype) -> None:
    from assay.nn.outer import normed_scan

    tensors = forgetful(drawn_with_strengths((2, 2, 100, 32, 32)), dtype)
    found = normed_answers(normed_scan, tensors)
    wanted = normed_answers(normed_loop, [x.double() for x in tensors])
    assert worst_gradient_of_a_rate(found, wanted, tensors) < (10 * EXACT if dtype == torch.float32 else 10 * BF16)


@pytest.mark.parametrize("kind", ["decay per channel", "delta, decay per head", "general"])
def test_models_of_a_bank_are_apart(kind: str) -> None:
    from assay.nn import triton

    run = getattr(triton, f"{rule(kind)}_scan")
    *inputs, _ = drawn(kind, (6, 2, 70, 16, 32))
    models = [x.unflatten(0, (3, 2)).requires_grad_() for x in inputs]
    together = torch.vmap(lambda *x: run(*x)[0])(*models)
    apart = torch.stack([run(*x)[0] for x in zip(*models, strict=True)])
    assert torch.equal(together, apart)
    gradients = (torch.autograd.grad(o.square().sum(), models, retain_graph=True) for o in (together, apart))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(INTERPRETED, reason="70,000 programs take the interpreter an hour")
def test_more_heads_than_other_axes_of_a_grid_may_have() -> None:
    from assay.nn import triton

    *inputs, _ = drawn("decay per head", (70_000, 1, 16, 16, 16))
    found, _ = triton.outer_scan(*inputs)
    last, _ = triton.outer_scan(*(x[-2:] for x in inputs))
    assert torch.equal(found[-2:], last)


@pytest.mark.parametrize("channels", [192, 200, 256])
def test_with_a_decay_per_head_keys_may_be_wider_than_a_program_holds(channels: int) -> None:
    from assay.nn import triton

    tensors = drawn("decay per head", (1, 1, 70, channels, 24))
    wanted = answers("decay per head", [x.double() for x in tensors], scan, "loop")
    assert worst(answers("decay per head", tensors, triton, "scan"), wanted) < EXACT


def test_keys_that_a_program_cannot_hold_are_an_error() -> None:
    from assay.nn import triton

    for kind, wide, most in (("decay per channel", 192, 128), ("delta, decay per head", 192, 128),
                             ("decay per head", 320, 256)):  # fmt: skip
        *inputs, _ = drawn(kind, (1, 1, 40, wide, 16))
        with pytest.raises(UserError, match=f"at most {most} channels, and these have {wide}: choose more heads"):
            getattr(triton, f"{rule(kind)}_scan")(*inputs)
