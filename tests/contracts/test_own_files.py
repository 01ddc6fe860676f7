"""A layer of one's own: what is honest passes, what reads a later token is found, and `forward` alone is enough."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn.functional import pad

from assay.contracts import mixers as contract
from assay.core.run import Numerics
from assay.mixers import mixers
from assay.mixers.base import Mixer, MixerModule, replays
from assay.train.device import activate
from promised import broken


@dataclass(frozen=True, kw_only=True)
class Mine(Mixer):
    ordered: ClassVar[bool] = True
    layer: ClassVar[type[nn.Module]]

    def core(self, d_model: int, max_len: int) -> MixerModule:
        return Layer(self.layer(d_model))


class Layer(MixerModule):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "SECONDS", 0.4)


def mixer_of(layer: type[nn.Module]) -> Mixer:
    return mixers.register("mine")(type(layer.__name__, (Mine,), {"layer": layer}))()


class Depthwise(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(d_model, d_model, 4, padding=3, groups=d_model)

    def forward(self, x):
        return self.conv(x.mT)[..., : x.shape[1]].mT


class Dense(Depthwise):
    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.conv = nn.Conv1d(d_model, d_model, 4, padding=3)


class LeftPadded(Depthwise):
    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.conv = nn.Conv1d(d_model, d_model, 7, dilation=2)

    def forward(self, x):
        return self.conv(pad(x.mT, (12, 0))).mT


class ByFFT(nn.Module):
    """A filter as long as the sequence, in float32 whatever the input is, as published layers have it."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(2048, d_model) / 8)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        time = x.shape[1]
        spectrum = torch.fft.rfft(x.float(), n=2 * time, dim=1)
        spectrum = spectrum * torch.fft.rfft(self.filter[:time].float(), n=2 * time, dim=0)
        return self.out(torch.fft.irfft(spectrum, n=2 * time, dim=1)[:, :time].to(x.dtype))


class NormedSum(nn.Module):
    """A sum of all tokens by FFT, and a norm: the first sums are small beside what has to cancel."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.project, self.norm = nn.Linear(d_model, d_model), nn.RMSNorm(d_model)

    def forward(self, x):
        time = x.shape[1]
        ones = torch.fft.rfft(torch.ones(time, 1).to(x), n=2 * time, dim=0)
        spectrum = torch.fft.rfft(self.project(x), n=2 * time, dim=1) * ones
        return self.norm(torch.fft.irfft(spectrum, n=2 * time, dim=1)[:, :time])


class Stabilised(nn.Module):
    """Linear attention; the largest key of the whole sequence cancels."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        k = (k - k.amax(1, keepdim=True)).exp()
        return torch.sigmoid(q) * (k * v).cumsum(1) / k.cumsum(1)


def after(x):
    return pad(x[:, 1:], (0, 0, 0, 1))


class Mean(nn.Module):
    """The mean of the past, and a leak."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.zeros, self.zero = nn.Parameter(torch.zeros(d_model)), nn.Parameter(torch.zeros(()))
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        past = x.cumsum(1) / torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]
        return past + self.leak(x)

    def leak(self, x):
        return 0


class Unstable(nn.Module):
    """A linear recurrence whose outputs grow without bound once its weights have moved."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(d_model))

    def forward(self, x):
        h, out = torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            h = h @ self.weight + token
            out.append(h)
        return torch.stack(out, 1)


class ZeroAtFirst(Depthwise):
    """A residual branch behind a zero, with dropout."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.scale, self.dropout = nn.Parameter(torch.zeros(d_model)), nn.Dropout(0.1)

    def forward(self, x):
        return x + self.scale * self.dropout(super().forward(x))


@pytest.mark.parametrize("layer", [Depthwise, Dense, LeftPadded, ByFFT])
def test_own_1_a_convolution_keeps_every_promise(layer: type[nn.Module]) -> None:
    assert not broken("mixers", mixer_of(layer))


@pytest.mark.parametrize("layer", [Mean, NormedSum, Stabilised, Unstable, ZeroAtFirst])
def test_own_1_rounding_is_no_leak(layer: type[nn.Module]) -> None:
    with activate(Numerics()):
        contract.does_not_read_the_future(mixer_of(layer))
        contract.reads_the_past(mixer_of(layer))


def test_own_1_what_starts_at_zero_is_no_fault() -> None:
    contract.trains_every_parameter(mixer_of(ZeroAtFirst))


LEAKS = {
    "a ten-thousandth": lambda self, x: 1e-4 * after(x),
    "a ten-thousandth beside a long sum": lambda self, x: self.out(x).cumsum(1) + 1e-4 * after(x),
    "a ten-thousandth of the last token": lambda self, x: 1e-4 * x[:, -1:],
    "at one place of a thousand": lambda self, x: (torch.arange(x.shape[1]) == 777)[:, None] * after(x),
    "of one token of a thousand": lambda self, x: x[:, 600:601].sum(1, keepdim=True),
    "where one number of a thousand is": lambda self, x: (x[..., :1] > 3.1) * after(x),
    "behind a zero": lambda self, x: self.zeros * after(x),
    "behind two zeros": lambda self, x: self.zeros * self.zero * after(x),
    "detached behind a zero": lambda self, x: self.zero * after(x).detach(),
    "detached": lambda self, x: 1e-2 * after(x).detach(),
    "detached in training": lambda self, x: 1e-2 * after(x).detach() * self.training,
    "of the gradient alone": lambda self, x: 1e-2 * (after(x) - after(x).detach()),
    "argmax": lambda self, x: 1e-2 * x.argmax(1, keepdim=True),
    "argmax of the next": lambda self, x: 1e-2 * after(x).argmax(2, keepdim=True),
    "in float32 alone": lambda self, x: after(x) if x.dtype == torch.float32 else 0 * x,
    "of a batch": lambda self, x: x.mean((0, 1)) * self.training,
    "of a batch, detached": lambda self, x: x.mean((0, 1)).detach() * self.training,
}


@pytest.mark.parametrize("leak", LEAKS)
def test_own_1_a_leak_is_found(leak: str) -> None:
    layer = type("Leaking", (Mean,), {"leak": LEAKS[leak]})
    with activate(Numerics()), pytest.raises(AssertionError, match="tokens from"):
        contract.does_not_read_the_future(mixer_of(layer))


def test_own_1_batch_statistics_are_named() -> None:
    class Normed(Depthwise):
        def __init__(self, d_model: int) -> None:
            super().__init__(d_model)
            self.norm = nn.BatchNorm1d(d_model)

        def forward(self, x):
            return self.norm(super().forward(x).mT).mT

    with activate(Numerics()), pytest.raises(AssertionError, match=r"in training.*BatchNorm \(inner\.norm\)"):
        contract.does_not_read_the_future(mixer_of(Normed))


def test_own_1_what_depends_on_the_length_is_found_by_its_prefixes() -> None:
    layer = type("Scaled", (Mean,), {"leak": lambda self, x: x.cumsum(1) / x.shape[1]})
    with activate(Numerics()), pytest.raises(AssertionError, match="the two forms"):
        contract.steps_as_it_runs_in_parallel(mixer_of(layer))


def test_own_2_without_a_step_the_prefix_is_replayed_and_counted_as_state() -> None:
    module, x = mixer_of(Dense).build(8, 16), torch.randn(2, 5, 8)
    state, whole = module.init_state(2), module(x)
    for count, token in enumerate(x.unbind(1)):
        y, state = module.step(token, state)
        torch.testing.assert_close(y, whole[:, count])
    assert mixer_of(Dense).state_size(8, 5) == 5 * 8 and replays(module)
    with_convolution = type("Convolved", (Mine,), {"layer": Dense})(conv=4)
    assert with_convolution.state_size(8, 5) == 5 * 8 + 3 * 8 and replays(with_convolution.build(8, 16))


def test_own_2_a_module_with_neither_and_a_step_without_its_state_say_so() -> None:
    class Neither(MixerModule):
        pass

    class Stepping(MixerModule):
        def step(self, x, state):
            return x, state

    class Counted(Mixer):
        def core(self, d_model, max_len):
            return Stepping()

    with pytest.raises(NotImplementedError, match="neither forward"):
        Neither()(torch.zeros(1, 1, 1))
    with pytest.raises(NotImplementedError, match="init_state"):
        Stepping()(torch.zeros(1, 1, 1))
    with pytest.raises(NotImplementedError, match="core_state"):
        Counted().state_size(8, 5)
