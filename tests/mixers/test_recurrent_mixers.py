"""Retention, Mamba-2 and the GRU against other ways of writing them; every scanned mixer over several chunks."""

import pytest
import torch
from torch import nn
from torch.nn.functional import rms_norm, silu, softplus

from assay.core.errors import UserError
from assay.mixers import mixers
from assay.mixers.base import MixerModule
from assay.nn.random import initialised_from, stream
from assay.nn.rotary import rotate

SCANNED = (
    "gated_linear_attn", "retention", "delta_net", "gated_delta_net", "mamba2", "kda", "rwkv7", "delta_product", "mesa",
    "mlstm",
)  # fmt: skip


def built(word: str, d_model: int = 16) -> MixerModule:
    with initialised_from(0, word):
        return mixers.parse(word).build(d_model, 200).double().eval()


def tokens(batch: int, time: int, d_model: int = 16, *, name: str = "one") -> torch.Tensor:
    return torch.randn(batch, time, d_model, generator=stream(0, "tokens", name), dtype=torch.float64)


@pytest.mark.parametrize("name", SCANNED)
@torch.no_grad()
def test_several_chunks_are_the_steps_one_by_one(name: str) -> None:
    module, x = built(name), tokens(2, 150)
    state, outputs = module.init_state(2), []
    for token in x.unbind(1):
        y, state = module.step(token, state)
        outputs.append(y)
    torch.testing.assert_close(module(x), torch.stack(outputs, dim=1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("t", [3, 64, 100, 130])
@pytest.mark.parametrize("name", SCANNED)
@torch.no_grad()
def test_no_chunk_reads_the_future(name: str, t: int) -> None:
    module, x = built(name).float(), tokens(2, 150).float()
    changed = torch.cat([x[:, :t], 10 * tokens(2, 150, name="other").float()[:, t:]], dim=1)
    assert torch.equal(module(x)[:, :t], module(changed)[:, :t])


@pytest.mark.parametrize(
    ("name", "scalars"),
    [
        ("gated_linear_attn", 2 * 32 * 64),
        ("retention", 4 * 32 * 64),
        ("delta_net", 4 * 32 * 32 + 9 * 128),
        ("gated_delta_net", 4 * 32 * 64 + 12 * 128),
        ("mamba2", 256 * 128 + 3 * (256 + 2 * 128)),
        ("gru", 128),
        ("kda", 4 * 32 * 32 + 9 * 128),
        ("rwkv7", 4 * 32 * 32 + 128),
        ("delta_product", 4 * 32 * 64 + 3 * (1 + 2 + 2 * 2) * 128),
        ("mesa", 4 * 32 * (32 + 32) + 3 * 2 * 128),
        ("mlstm", 4 * (64 * 65 + 1) + 3 * 256),
        ("base_conv", 2 * 128),
        ("hyena", 1000 * 128 + 2 * 3 * 128),
    ],
)
def test_default_states_at_width_128(name: str, scalars: int) -> None:
    assert mixers[name]().state_size(128, 1000) == scalars


def test_retention_is_decayed_rotary_attention_without_softmax() -> None:
    module, x = built("retention:conv=0"), tokens(1, 20)
    projected = module.heads.qkv(x).split(module.heads.sizes, dim=-1)
    q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in projected)
    distance = torch.arange(20)[:, None] - torch.arange(20)
    gamma = 1 - 2.0 ** (-5 - torch.arange(4, dtype=torch.float64))[:, None, None]
    decay = torch.where(distance >= 0, gamma**distance, 0.0)
    o = (rotate(q) @ rotate(k).mT / q.shape[-1] ** 0.5 * decay) @ v
    o = rms_norm(o[0], o.shape[-1:], eps=1e-5).transpose(0, 1).reshape(20, -1)
    torch.testing.assert_close(module(x)[0], module.heads.out(o * silu(module.gate(x[0]))), rtol=1e-9, atol=1e-9)


def test_mamba2_is_its_state_space_model_channel_by_channel() -> None:
    module, x = built("mamba2:conv=0:num_heads=4:d_state=16"), tokens(1, 12)[0]
    z, u, b, c = module.project(x).split([32, 32, 16, 16], dim=-1)
    u, b, c = silu(u), silu(b), silu(c)
    dt = softplus(module.decay.project(x) + module.decay.bias)
    o = torch.empty(12, 32, dtype=torch.float64)
    for channel in range(32):
        head, s = channel // 8, torch.zeros(16, dtype=torch.float64)
        for t in range(12):
            s = torch.exp(-module.decay.log_rate[head].exp() * dt[t, head]) * s + dt[t, head] * u[t, channel] * b[t]
            o[t, channel] = s @ c[t] + module.skip[head] * u[t, channel]
    torch.testing.assert_close(module(x[None])[0], module.out(module.norm(o * silu(z))), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("word", "d_model", "heads"),
    [
        ("mamba2", 16, (1, 32)),
        ("mamba2", 128, (4, 64)),
        ("mamba2", 48, (1, 96)),
        ("mamba2", 100, (2, 100)),
        ("mamba2:head_dim=16", 32, (4, 16)),
        ("mamba2:num_heads=4", 128, (4, 64)),
        ("mamba2:num_heads=8", 128, (8, 32)),
    ],
)
def test_mamba2_has_heads_of_64_channels_where_they_fit(word: str, d_model: int, heads: tuple[int, int]) -> None:
    mixer = mixers.parse(word)
    assert mixer.heads(d_model) == heads
    mixer.check_width(d_model)
    assert mixer.build(d_model, 8).state_shape == (heads[0], mixer.d_state, heads[1])


def test_mamba2_refuses_a_number_of_heads_that_does_not_divide_the_width() -> None:
    with pytest.raises(UserError, match="5 heads do not divide model_dim=32"):
        mixers.parse("mamba2:num_heads=5").check_width(32)


@torch.no_grad()
def test_gated_delta_net_starts_with_rates_from_0_to_16() -> None:
    rates = built("gated_delta_net:num_heads=64", 128).decay.log_rate.exp()
    assert 0 < rates.min() < 1 and 12 < rates.max() <= 16


def test_mamba2_starts_with_the_published_step_sizes_and_rates() -> None:
    decay = built("mamba2", 128).decay
    assert (softplus(decay.bias) > 0.99e-3).all() and (softplus(decay.bias) < 0.101).all()
    assert (decay.log_rate.exp() >= 1).all() and (decay.log_rate.exp() <= 16).all()


def test_gru_is_torchs() -> None:
    module, x = built("gru"), tokens(3, 11)
    reference = nn.GRU(16, 16, batch_first=True).double()
    with torch.no_grad():
        reference.weight_ih_l0.copy_(module.input.weight)
        reference.bias_ih_l0.copy_(module.input.bias)
        reference.weight_hh_l0.copy_(module.recurrent.weight)
        reference.bias_hh_l0.copy_(module.recurrent.bias)
    torch.testing.assert_close(module(x), reference(x)[0], rtol=1e-9, atol=1e-9)
