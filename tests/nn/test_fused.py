"""What stands around a recurrence, in one kernel each, against torch in float64, gradients included. These tests need a
GPU, or Triton's interpreter."""

import importlib
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from assay.mixers import mixers
from assay.nn import fused, scan
from assay.nn.attention import HeadProjections
from assay.nn.norm import Norm
from assay.state_mixers import state_mixers
from triton_device import DEVICE, draw, needs_triton, worst

pytestmark = needs_triton
EXACT, BF16 = 2e-5, 1.5e-2
"""Norm of the error over the norm of what is wanted."""


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "backend", "triton")


def gradients(y: list[Tensor], wrt: list[Tensor]) -> list[Tensor]:
    """Return the gradients of a weighted sum."""
    total = sum((part.double() * draw(*part.shape, seed=7 + i)).sum() for i, part in enumerate(y))
    return list(torch.autograd.grad(total, wrt))  # type: ignore[arg-type]


def both_ways(module: torch.nn.Module, run, inputs: list[Tensor], monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Return outputs and gradients by the kernels, and by torch in float64, of a function of some inputs."""

    def answers(dtype: torch.dtype | None) -> list[Tensor]:
        given = [x.detach().to(dtype or x.dtype).requires_grad_() for x in inputs]
        own = {name: p.detach().to(dtype or p.dtype).requires_grad_() for name, p in module.named_parameters()}
        with torch.nn.utils.stateless._reparametrize_module(module, own):
            found = run(*given)
        # A weight that this run does not use (an output projection, say) has no gradient.
        wrt = [*given, *(p for name, p in own.items() if not name.startswith("out."))]
        return [*found, *gradients(found, wrt)]

    wanted = answers(torch.float64)
    monkeypatch.setattr(scan, "backend", "triton")
    return answers(None), wanted


@pytest.mark.parametrize("finish", ["none", "scaled", "unit", "rotary"])
@pytest.mark.parametrize(
    ("sequences", "time", "heads", "kv_heads", "key", "value", "conv"),
    [(1, 70, 2, 2, 16, 32, 4), (1, 33, 1, 2, 48, 64, 3), (2, 5, 2, 2, 64, 128, 1), (2, 65, 1, 1, 128, 16, 0),
     (1, 1, 1, 1, 10, 6, 4), (3, 8, 1, 1, 16, 16, 16)],
)  # fmt: skip
def test_heads_of_a_projection(
    finish: str, sequences: int, time: int, heads: int, kv_heads: int, key: int, value: int, conv: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    torch.manual_seed(0)
    module = HeadProjections(
        24, heads=heads, kv_heads=kv_heads, key_dim=key, value_dim=value, conv=conv, swish=True, finish=finish  # type: ignore[arg-type]
    ).to(DEVICE)  # fmt: skip
    found, wanted = both_ways(module, lambda x: list(module.split(x)), [draw(sequences, time, 24)], monkeypatch)
    assert found[1].is_contiguous()
    assert worst(found, wanted) < EXACT


@pytest.mark.parametrize(("steps", "finish"), [(2, "unit"), (3, "rotary")])
def test_steps_of_a_token_are_rows_of_its_heads(steps: int, finish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one program has several blocks of stretches."""
    from assay.nn import head_kernels

    monkeypatch.setattr(head_kernels, "PROGRAMS", dict.fromkeys(head_kernels.PROGRAMS, 1))
    torch.manual_seed(0)
    module = HeadProjections(
        24, heads=2, kv_heads=2 * steps, key_dim=16, value_dim=128, conv=4, swish=True, finish=finish, steps=steps  # type: ignore[arg-type]
    ).to(DEVICE)  # fmt: skip
    found, wanted = both_ways(module, lambda x: list(module.split(x)), [draw(3, 70, 24)], monkeypatch)
    assert [x.shape[1:3] for x in found[:3]] == [(2, 70 * steps)] * 3
    assert worst(found, wanted) < EXACT


def test_a_convolution_with_a_bias_and_no_swish(monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.nn.convolution import ShortConvolution

    torch.manual_seed(0)
    module = HeadProjections(24, heads=2, kv_heads=2, key_dim=16, value_dim=32, conv=4, finish="scaled").to(DEVICE)
    module.convolution = ShortConvolution(128, 4, bias=True).to(DEVICE)
    found, wanted = both_ways(module, lambda x: list(module.split(x)), [draw(2, 70, 24)], monkeypatch)
    assert worst(found, wanted) < EXACT


def test_small_layers_beside_are_one_product_with_the_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = HeadProjections(24, heads=2, kv_heads=2, key_dim=16, value_dim=32, conv=4, swish=True, finish="unit")
    module.extend = torch.nn.ModuleList(torch.nn.Linear(24, width, bias=False) for width in (2, 5))
    module = module.to(DEVICE)

    def run(x: Tensor) -> list[Tensor]:
        heads, beside = module.split_beside(x, tuple(module.extend))  # type: ignore[arg-type]
        return [*heads, *beside]

    found, wanted = both_ways(module, run, [draw(2, 40, 24)], monkeypatch)
    assert [x.shape for x in found[:5]] == [x.shape for x in wanted[:5]]
    assert worst(found, wanted) < EXACT


@pytest.mark.parametrize("act", [None, "silu", "sigmoid"])
@pytest.mark.parametrize("shape", [(2, 2, 70, 16), (1, 3, 33, 48), (2, 1, 5, 64), (1, 2, 40, 128), (3, 2, 1, 10)])
def test_reading(act: str | None, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    batch, heads, time, d = shape
    module = Norm(d, eps=1e-5).to(DEVICE)
    torch.nn.init.uniform_(module.weight, 0.5, 1.5)
    inputs = [draw(*shape)] if act is None else [draw(*shape), draw(batch, time, heads * d, seed=1)]
    run = (lambda o: [module.of_heads(o)]) if act is None else (lambda o, gate: [module.of_heads(o, gate, act=act)])  # type: ignore[arg-type]
    found, wanted = both_ways(module, run, inputs, monkeypatch)
    assert worst(found, wanted) < EXACT


@pytest.mark.parametrize("kind", ["sigmoid", "logsigmoid", "softplus"])
@pytest.mark.parametrize(("shape", "heads"), [((2, 70, 6), 6), ((1, 33, 48), 3), ((2, 5, 256), 2)])
def test_gates(kind: str, shape: tuple[int, ...], heads: int) -> None:
    """With large arguments, and with small results, whose digits count: a decay near 1 is all of what is remembered."""
    from assay.nn import gate_kernels

    bias = draw(shape[-1], seed=1) * 8
    inputs = [(draw(*shape) * 4).requires_grad_(), bias.requires_grad_()]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    found = gate_kernels.per_channel(*inputs, kind, heads=heads, scale=0.5)  # type: ignore[arg-type]
    plain = getattr(torch.nn.functional, kind)(exact[0] + exact[1])
    wanted = 0.5 * plain.unflatten(-1, (heads, -1)).transpose(1, 2)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=0)
    (by_x, by_bias), (wanted_x, wanted_bias) = gradients([found], inputs), gradients([wanted], exact)
    torch.testing.assert_close(by_x.double(), wanted_x, rtol=1e-5, atol=1e-12)  # 1 - y of float64 has no more digits
    assert worst([by_bias], [wanted_bias]) < EXACT


@pytest.mark.parametrize("time", [9, 300])
def test_exponential_gates(time: int) -> None:
    """With more than one block of tokens, and with channels that nothing reads."""
    from assay.mixers.mlstm import shrinking
    from assay.nn import mlstm_kernels

    inputs = [(2 * draw(2, time, 7, seed=i)).requires_grad_() for i in (0, 1)] + [draw(6, seed=2).requires_grad_()]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    found = mlstm_kernels.gated(*inputs)
    forget, log_i = (exact[0] + exact[1])[..., :6].add(exact[2]).unflatten(-1, (2, 3)).permute(2, 0, 3, 1)
    m, decay = shrinking(torch.nn.functional.logsigmoid(forget), log_i)
    wanted = (m, decay, torch.exp(log_i - m))
    assert not found[0].requires_grad
    assert worst(list(found), list(wanted)) < EXACT
    assert worst(gradients(list(found[1:]), inputs), gradients(list(wanted[1:]), exact)) < EXACT


@pytest.mark.parametrize("sliced", [True, False])
def test_reading_every_second_row_of_what_was_written(sliced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Norm(16, eps=1e-5).to(DEVICE)
    given = [draw(2, 3, 40, 16), draw(2, 20, 48, seed=1)]

    def run(o: Tensor, gate: Tensor) -> list[Tensor]:
        return [module.of_heads(o[:, :, 1::2], gate) if sliced else module.of_heads(o, gate, every=2)]

    found, wanted = both_ways(module, run, given, monkeypatch)
    assert worst(found, wanted) < EXACT


LAYERS = [
    "gated_linear_attn:num_heads=2", "gated_linear_attn:num_heads=1:conv=4", "retention:num_heads=2",
    "retention:num_heads=2:conv=4", "delta_net:num_heads=2", "delta_net:num_heads=2:conv=0",
    "gated_delta_net:num_heads=2", "gated_delta_net:num_heads=1:use_gate=False", "delta_product:num_heads=1",
    "delta_product:num_heads=2:num_householder=3:forget=False",
    "mamba2:num_heads=2:d_state=16", "mamba2:num_heads=3:d_state=24:conv=0", "mlstm:num_heads=2",
    "mlstm:num_heads=1:conv=0", "kda:num_heads=2", "rwkv7:num_heads=2", "based:num_heads=2:feature_dim=8",
    "linear_attention:num_heads=2", "linear_attention:num_heads=1:feature_map=elu:normalize=True",
    "linear_attention:num_heads=3:tie_qk=True:expand_k=0.5:expand_v=2", "mesa:num_heads=2", "mesa:num_heads=1:conv=0",
    "sliding_window:num_heads=2:window=5", "sliding_window:num_heads=2:window=70:positions=rotary",
]  # fmt: skip


@pytest.mark.parametrize("label", LAYERS)
def test_whole_layers(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer and its gradients are those of torch in float64, and in bf16 near them."""
    torch.manual_seed(0)
    width, time = 32, 70 if label.startswith(("linear_attention", "sliding_window")) else 19  # more than one block
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    layer = mixers.parse(label).build(width, time).to(DEVICE)
    found, wanted = both_ways(layer, lambda x: [layer(x)], [draw(2, time, width)], monkeypatch)
    torch.set_float32_matmul_precision(before)
    assert worst(found, wanted) < 1e-4
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert worst([layer(draw(2, time, width))], wanted[:1]) < 3e-2


@pytest.mark.parametrize(
    "label",
    ["delta_net:num_heads=2", "gated_linear_attn:num_heads=2:conv=4", "retention:num_heads=2", "mamba2:d_state=16",
     "kda:num_heads=2", "rwkv7:num_heads=2", "based:num_heads=2", "mlstm:num_heads=2", "linear_attention:num_heads=2",
     "sliding_window:num_heads=2:window=5", "delta_product:num_heads=2", "mesa:num_heads=2"],
)  # fmt: skip
def test_models_of_a_bank_are_apart(label: str, kernels: None) -> None:
    torch.manual_seed(0)
    layers = [mixers.parse(label).build(32, 20).to(DEVICE) for _ in range(3)]
    names = [name for name, _ in layers[0].named_parameters()]
    stacked = [torch.stack([layer.get_parameter(name).detach() for layer in layers]).requires_grad_() for name in names]
    x = draw(3, 2, 20, 32).requires_grad_()

    def run(x: Tensor, *weights: Tensor) -> Tensor:
        return torch.func.functional_call(layers[0], dict(zip(names, weights, strict=True)), x)

    together = torch.vmap(run)(x, *stacked)
    apart = torch.stack([run(*each) for each in zip(x, *(w.unbind() for w in stacked), strict=True)])
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-5)
    found, wanted = (gradients([o], [x, *stacked]) for o in (together, apart))
    assert worst(found, [w.double() for w in wanted]) < EXACT


PARTS = {
    "based": ("based:num_heads=2", "based_kernels.taylor_attention"),
    "features": ("linear_attention:num_heads=2", "feature_kernels.features"),
    "gated_norm": ("gated_delta_net:num_heads=2", "gated_norm_kernels.gated_norm"),
    "gates": ("gated_delta_net:num_heads=2", "gate_kernels.per_head"),
    "heads": ("gated_delta_net:num_heads=2", "head_kernels.heads"),
    "mamba2": ("mamba2:d_state=16", "mamba2_kernels.gate_then_norm"),
    "mlstm": ("mlstm:num_heads=2", "mlstm_kernels.held"),
    "projection": ("gated_delta_net:num_heads=2", "attention.joint"),
    "rwkv7": ("rwkv7:num_heads=2", "rwkv7_kernels.replaced"),
    "sum": ("linear_attention:num_heads=2", "outer.outer_scan"),
    "window": ("sliding_window:num_heads=2:window=5", "window_kernels.attention_in_window"),
}
"""A layer that has the part, and what it calls for it."""


@pytest.mark.parametrize("part", sorted(fused.FUSED))
def test_each_part_is_used_and_can_be_switched_off(part: str, kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    label, place = PARTS[part]
    module, _, name = f"assay.nn.{place}".rpartition(".")
    called = Mock(wraps=getattr(importlib.import_module(module), name))
    monkeypatch.setattr(f"{module}.{name}", called)
    layer, x = mixers.parse(label).build(32, 20).to(DEVICE), draw(2, 20, 32)
    wanted = layer(x)
    assert called.call_count
    called.reset_mock()
    monkeypatch.setattr(fused, "FUSED", fused.FUSED - {part})
    torch.testing.assert_close(layer(x), wanted, rtol=1e-3, atol=1e-4)
    assert not called.call_count


@pytest.mark.parametrize(("name", "inner"), [("swiglu", 24), ("glu", 1100), ("bilinear", 7)])
def test_gated_linear_units(name: str, inner: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = state_mixers.parse(f"{name}:inner={inner}").build(12).to(DEVICE)
    found, wanted = both_ways(module, lambda x: [module(x)], [draw(2, 5, 12)], monkeypatch)
    assert worst(found, wanted) < EXACT


@pytest.mark.parametrize("heads", [1, 3])
def test_attention_turns_its_heads_by_the_kernel(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = HeadProjections(24, heads=heads, kv_heads=heads, key_dim=8, value_dim=8).to(DEVICE)
    found, wanted = both_ways(module, lambda x: list(module.split_turned(x)), [draw(2, 70, 24)], monkeypatch)
    assert worst(found, wanted) < EXACT
