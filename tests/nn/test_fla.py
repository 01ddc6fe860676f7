"""The scans by flash-linear-attention: what goes in and comes out, on a CPU by a fake of it, on CUDA by itself."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from assay.core.errors import UserError
from assay.mixers import mixers
from assay.nn import fla, scan
from assay.nn.random import initialised_from, stream
from assay.nn.scan import delta_loop, delta_scan, outer_loop, outer_scan
from portable import MIXERS

BATCH, HEADS, TIME, D_KEY, D_VALUE = 2, 3, 37, 16, 18
RULES: dict[str, tuple[Callable, Callable, str]] = {
    "decay per channel": (outer_loop, outer_scan, "gla"),
    "decay per head": (outer_loop, outer_scan, "simple_gla"),
    "shared keys": (outer_loop, outer_scan, "simple_gla"),
    "delta": (delta_loop, delta_scan, "delta_rule"),
    "gated delta": (delta_loop, delta_scan, "gated_delta_rule"),
}
SERVED = {
    "gated_linear_attn": "gla",
    "retention": "simple_gla",
    "mamba2": "simple_gla",
    "mlstm": "simple_gla",
    "mesa": "simple_gla",
    "delta_net": "delta_rule",
    "gated_delta_net": "gated_delta_rule",
    "delta_product": "gated_delta_rule",
}
CUDA = torch.cuda.is_available() and find_spec("fla") is not None
on_cuda = pytest.mark.skipif(not CUDA, reason="needs CUDA and fla")


def inputs(rule: str, *, dtype: torch.dtype = torch.float32, device: str = "cpu", sizes: Any = None) -> list[Tensor]:
    """q, k, v in the dtype, gates in float32."""
    time, d_key, d_value = sizes or (TIME, D_KEY, D_VALUE)
    rng = stream(0, "fla", rule)

    def draw(*shape: int) -> Tensor:
        return torch.randn(BATCH, *shape, generator=rng).to(device)

    heads = 1 if rule == "shared keys" else HEADS
    k, gate = normalize(draw(heads, time, d_key), dim=-1), draw(HEADS, time)
    tokens = [x.to(dtype) for x in (draw(heads, time, d_key), k, draw(HEADS, time, d_value))]
    if "delta" in rule:
        return [*tokens, 2 * torch.sigmoid(draw(HEADS, time)), *([logsigmoid(gate)] if "gated" in rule else [])]
    return [*tokens, logsigmoid(draw(HEADS, time, d_key) if "channel" in rule else gate)]


def naive(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None, s: Tensor, scale: float) -> Any:
    """One token after another; time is axis 1, heads are axis 2."""
    outputs = []
    for t in range(q.shape[1]):
        if g is not None:
            s = s * (g[:, t].exp()[..., None] if g.ndim == 4 else g[:, t].exp()[..., None, None])
        new = v[:, t].float()
        if beta is not None:
            new = beta[:, t, :, None] * (new - torch.einsum("bhkv,bhk->bhv", s, k[:, t].float()))
        s = s + torch.einsum("bhk,bhv->bhkv", k[:, t].float(), new)
        outputs.append(scale * torch.einsum("bhkv,bhk->bhv", s, q[:, t].float()))
    return torch.stack(outputs, dim=1).to(q.dtype), s


def chunk(op: str, called: list[str], q: Tensor, k: Tensor, v: Tensor, *args: Tensor, **options: Any) -> Any:
    """The signature and the assertions of fla 0.6; unless given, scale is d_key ** -0.5 and no state comes out."""
    names = {"gla": "g", "simple_gla": "g", "delta_rule": "beta", "gated_delta_rule": "g beta"}[op].split()
    given = dict(zip(names, args, strict=False)) | {name: options.pop(name) for name in names if name in options}
    assert set(given) == set(names)
    assert q.dtype == k.dtype == v.dtype
    assert op != "delta_rule" or q.dtype != torch.float32
    assert q.shape == k.shape and v.shape[:3] == q.shape[:3]
    assert all(gate.dtype == torch.float32 for gate in given.values())
    assert all(gate.shape == (q.shape if op == "gla" else q.shape[:3]) for gate in given.values())
    state, scale = options.pop("initial_state", None), options.pop("scale", None)
    assert state is None or state.dtype == torch.float32
    final = options.pop("output_final_state", False)
    assert not options
    start = torch.zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3]) if state is None else state
    called.append(op)
    o, end = naive(q, k, v, given.get("g"), given.get("beta"), start, q.shape[-1] ** -0.5 if scale is None else scale)
    return o, end if final else None


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A package fla whose kernels are the naive recurrences; the kernels called, in order."""
    called: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("fla", "fla.ops", *(f"fla.ops.{op}" for op in sorted(set(SERVED.values())))):
        module, op = ModuleType(name), name.rpartition(".")[2]
        module.__spec__, module.__path__ = ModuleSpec(name, None, is_package=True), []
        setattr(module, f"chunk_{op}", partial(chunk, op, called))
        monkeypatch.setitem(sys.modules, name, module)
    return called


@pytest.fixture
def by_fla(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(scan, "backend", "fla")
    yield


def with_gradients(run: Callable, tensors: list[Tensor], state: Tensor, **options: Any) -> list[Tensor]:
    """Outputs, the last state, and the gradients of a function of both."""
    leaves = [x.clone().requires_grad_() for x in (*tensors, state)]
    o, end = run(*leaves[:-1], state=leaves[-1], **options)
    weights = torch.randn(o.shape, generator=stream(0, "fla", "weights")).to(o)
    return [o, end, *torch.autograd.grad((o * weights).sum() + end.square().sum(), leaves)]


def near(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    """Each to a share of its largest number."""
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape and torch.isfinite(a).all()
        assert (a.float() - b.float()).abs().max() <= tolerance * b.float().abs().max()


def start(**place: Any) -> Tensor:
    return torch.randn(BATCH, HEADS, D_KEY, D_VALUE, generator=stream(0, "fla", "state")).to(**place)


@pytest.mark.parametrize("rule", RULES)
def test_outputs_states_and_gradients_are_the_loops(rule: str, fake: list[str], by_fla: None) -> None:
    loop, through, op = RULES[rule]
    half = op == "delta_rule"
    tensors = inputs(rule, dtype=torch.bfloat16 if half else torch.float32)
    found = with_gradients(through, tensors, start(), scale=0.3)
    near(found, with_gradients(loop, tensors, start(), scale=0.3), 2e-2 if half else 1e-5)
    assert fake == [op]
    assert found[0].dtype == found[1].dtype == torch.float32, "as our own scans give them"


@pytest.mark.parametrize("rule", RULES)
def test_without_a_state_it_begins_at_zero_with_scale_one(rule: str, fake: list[str], by_fla: None) -> None:
    loop, through, _ = RULES[rule]
    tensors = inputs(rule, dtype=torch.bfloat16)
    near(list(through(*tensors)), list(loop(*tensors)), 1e-2)


@pytest.mark.parametrize("name", MIXERS)
def test_the_mixers_named_in_the_table_use_the_kernels_and_no_other_does(
    name: str, fake: list[str], by_fla: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with initialised_from(0, "fla", name):
        module = mixers.parse(name).build(128, TIME)
    x = torch.randn(BATCH, TIME, 128, generator=stream(0, "fla", "x"))
    half = SERVED.get(name) == "delta_rule"
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half):
        y = module(x)
        assert fake == ([SERVED[name]] if name in SERVED else [])
        monkeypatch.setattr(scan, "backend", "torch")
        near([y], [module(x)], 2e-2 if half else 1e-5)
    assert name not in SERVED or name in str(fla.__doc__)


def test_every_mixer_served_exists() -> None:
    assert set(SERVED) <= set(mixers.names())


def test_values_with_an_odd_number_of_channels_get_one_of_zeros(fake: list[str], by_fla: None) -> None:
    loop, through, _ = RULES["decay per head"]
    tensors = inputs("decay per head", sizes=(TIME, D_KEY, D_VALUE + 1))
    state = torch.randn(BATCH, HEADS, D_KEY, D_VALUE + 1, generator=stream(0, "fla", "odd"))
    near(with_gradients(through, tensors, state, scale=0.3), with_gradients(loop, tensors, state, scale=0.3), 1e-5)


@pytest.mark.parametrize("sizes", [(8, 8, 32), (8, 32, 8), (8, 17, 32)])
@pytest.mark.parametrize("rule", RULES)
def test_heads_too_small_or_odd_are_refused_by_name(
    rule: str, sizes: tuple[int, ...], fake: list[str], by_fla: None
) -> None:
    with pytest.raises(UserError, match=f"chunk_{RULES[rule][2]} takes heads of 16 channels or more"):
        RULES[rule][1](*inputs(rule, dtype=torch.bfloat16, sizes=sizes))
    assert not fake


@pytest.mark.parametrize("rule", ["delta", "gated delta"])
def test_long_keys_of_the_delta_rule_are_refused(rule: str, fake: list[str], by_fla: None) -> None:
    with pytest.raises(UserError, match="at most 256 channels, here 258"):
        delta_scan(*inputs(rule, sizes=(4, 258, 16)))


def test_the_delta_rule_in_float32_is_refused_and_every_rule_in_float64(fake: list[str], by_fla: None) -> None:
    with pytest.raises(UserError, match="chunk_delta_rule takes no float32"):
        delta_scan(*inputs("delta"))
    for rule, (_, through, op) in RULES.items():
        with pytest.raises(UserError, match=f"chunk_{op} takes no torch.float64"):
            through(*inputs(rule, dtype=torch.float64))


@pytest.mark.parametrize("rule", ["decay per head", "gated delta"])
@pytest.mark.parametrize(("version", "refused"), [("3.3.1", False), ("3.6.0", True), ("3.7.0", True), ("3.7.1", False)])
def test_wrong_gradients_of_triton_on_hopper_are_refused(
    rule: str, version: str, refused: bool, fake: list[str], by_fla: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = ModuleType("triton")
    triton.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    tensors = inputs(rule)
    RULES[rule][1](*tensors)  # forward alone is right
    tensors[0].requires_grad_()
    if not refused:
        RULES[rule][1](*tensors)
        return
    with pytest.raises(UserError, match=rf"Triton {version} computes wrong gradients.*3\.7\.1"):
        RULES[rule][1](*tensors)


@on_cuda
@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 2e-2)], ids=["tf32", "bf16"])
@pytest.mark.parametrize("rule", RULES)
def test_the_kernels_give_what_our_loops_give(
    rule: str, dtype: torch.dtype, tolerance: float, gradients: bool, by_fla: None
) -> None:
    loop, through, op = RULES[rule]
    if op == "delta_rule" and dtype == torch.float32:
        pytest.skip("refused, and tested above")
    tensors, state = inputs(rule, dtype=dtype, device="cuda"), start(device="cuda")
    if not gradients:
        near(list(through(*tensors, state=state)), list(loop(*tensors, state=state)), tolerance)
        return
    try:
        found = with_gradients(through, tensors, state)
    except UserError as error:
        if "computes wrong gradients" not in str(error):  # the one refusal that the machine's Triton decides
            raise
        pytest.skip(str(error))
    near(found, with_gradients(loop, tensors, state), tolerance)
