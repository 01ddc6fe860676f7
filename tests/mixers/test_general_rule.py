"""kda, rwkv7 and delta_product, each as a whole layer against its paper's equations, head by head."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import group_norm, silu, softplus

from assay.mixers import mixers
from assay.nn.random import initialised_from, stream

T, D, HEADS = 15, 8, 2


def built(word: str):
    with initialised_from(0, word):
        return mixers.parse(word).build(D, 200).double().eval()


def tokens(time: int = T) -> Tensor:
    return torch.randn(time, D, generator=stream(0, "general"), dtype=torch.float64)


def convolved(module, x: Tensor) -> Tensor:
    """swish(conv(W x)), the window slid by hand."""
    projected = x @ module.heads.qkv.weight.T
    padded = torch.cat([torch.zeros(3, projected.shape[1], dtype=torch.float64), projected])
    weight = module.heads.convolution.weight
    return silu(torch.stack([(padded[t : t + 4] * weight.T).sum(0) for t in range(len(x))]))


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def rms(o: Tensor, gains: Tensor) -> Tensor:
    return o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-5) * gains


@torch.no_grad()
def test_kda_decays_each_channel_and_then_takes_a_delta_step() -> None:
    module, x = built("kda:num_heads=2"), tokens()
    q, k, v = convolved(module, x).reshape(T, 3, HEADS, 4).unbind(1)
    q, k, beta = unit(q) / 2, unit(k), torch.sigmoid(module.beta(x))
    inner, outer = module.decay.project
    dt = softplus(x @ inner.weight.T @ outer.weight.T + module.decay.bias).reshape(T, HEADS, 4)
    o = torch.zeros(T, HEADS, 4, dtype=torch.float64)
    for h in range(HEADS):
        s = torch.zeros(4, 4, dtype=torch.float64)
        for t in range(T):
            s = torch.diag(torch.exp(-module.decay.log_rate[h].exp() * dt[t, h])) @ s
            s = s + beta[t, h] * torch.outer(k[t, h], v[t, h] - s.T @ k[t, h])
            o[t, h] = s.T @ q[t, h]
    gate = torch.sigmoid(module.gate(x)).reshape(T, HEADS, 4)
    wanted = (rms(o, module.norm.weight) * gate).flatten(1) @ module.heads.out.weight.T
    torch.testing.assert_close(module(x[None])[0], wanted, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_kda_starts_with_the_published_step_sizes_and_rates() -> None:
    decay = built("kda:num_heads=2").decay
    assert (softplus(decay.bias) > 0.99e-3).all() and (softplus(decay.bias) < 0.101).all()
    assert (decay.log_rate.exp() >= 1).all() and (decay.log_rate.exp() <= 16).all()


@torch.no_grad()
def test_rwkv7_erases_along_kappa_and_writes_along_its_key() -> None:
    module, x = built("rwkv7:num_heads=2"), tokens()
    before = torch.cat([torch.zeros(1, D, dtype=torch.float64), x[:-1]])
    x_r, x_w, x_k, x_v, x_a, x_g = (x + (before - x) * mu for mu in module.shift)
    w = torch.exp(-0.6065306597126334 * torch.sigmoid(module.decay.up(torch.tanh(module.decay.down(x_w)))))
    a, g = torch.sigmoid(module.rate.up(module.rate.down(x_a))), module.gate.up(torch.sigmoid(module.gate.down(x_g)))
    r, raw, v = module.r(x_r), module.k(x_k), module.v(x_v)
    k = raw * (1 + (a - 1) * module.replacement)
    r, k, v, w, a, kappa = (y.reshape(T, HEADS, 4) for y in (r, k, v, w, a, raw * module.removal))
    kappa = unit(kappa)
    o, bonus = torch.zeros(T, HEADS, 4, dtype=torch.float64), torch.zeros(T, HEADS, 4, dtype=torch.float64)
    for h in range(HEADS):
        s = torch.zeros(4, 4, dtype=torch.float64)
        for t in range(T):
            transition = torch.diag(w[t, h]) - torch.outer(a[t, h] * kappa[t, h], kappa[t, h])
            s = transition @ s + torch.outer(k[t, h], v[t, h])
            o[t, h], bonus[t, h] = s.T @ r[t, h], (r[t, h] @ (module.bonus[h, 0] * k[t, h])) * v[t, h]
    normed = group_norm(o.flatten(1), HEADS, module.norm.weight, module.norm.bias, eps=4e-5)
    wanted = ((normed + bonus.flatten(1)) * g) @ module.out.weight.T
    torch.testing.assert_close(module(x[None])[0], wanted, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_rwkv7_starts_as_its_authors_first_layer() -> None:
    with initialised_from(0, "rwkv7"):
        module = mixers.parse("rwkv7:num_heads=1").build(64, 8)
    last, line, zigzag = 63 / 64, 0.5, 1.0
    torch.testing.assert_close(module.shift[:, -1], torch.tensor([1 - last**p for p in (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)]))
    assert module.decay.up.bias[-1].item() == pytest.approx(-6 + 6 + 0.5 + 2.5 * zigzag)
    assert module.rate.up.bias[-1].item() == pytest.approx(-0.19 + 0.3 * zigzag + 0.4 * line)
    assert module.removal[-1].item() == pytest.approx(0.71 - 0.1 * line)
    assert module.k.weight.abs().max() <= 0.05 / 8 < module.r.weight.abs().max() <= 0.5 / 8
    decays = torch.exp(-math.exp(-0.5) * torch.sigmoid(module.decay.up.bias))
    assert decays.min() > 0.54 and decays.max() > 0.98, "a channel keeps at least .545 of itself"


@pytest.mark.parametrize("forget", [True, False])
@pytest.mark.parametrize("steps", [1, 3])
@torch.no_grad()
def test_delta_product_takes_its_steps_one_after_another(steps: int, forget: bool) -> None:
    module = built(f"delta_product:num_heads=2:num_householder={steps}:forget={forget}")
    x = tokens()
    q, k, v = convolved(module, x).split([8, 8 * steps, 16 * steps], dim=-1)
    q = unit(q.reshape(T, HEADS, 4)) / 2
    k, v = unit(k.reshape(T, steps, HEADS, 4)), v.reshape(T, steps, HEADS, 8)
    beta = 2 * torch.sigmoid(module.beta(x)).reshape(T, steps, HEADS)
    o = torch.zeros(T, HEADS, 8, dtype=torch.float64)
    for h in range(HEADS):
        s = torch.zeros(4, 8, dtype=torch.float64)
        for t in range(T):
            if forget:
                decay = module.decay
                s = s * torch.exp(-decay.log_rate[h].exp() * softplus(decay.project.weight[h] @ x[t] + decay.bias[h]))
            for j in range(steps):
                s = s + beta[t, j, h] * torch.outer(k[t, j, h], v[t, j, h] - s.T @ k[t, j, h])
            o[t, h] = s.T @ q[t, h]
    gate = silu(x @ module.gate.weight.T).reshape(T, HEADS, 8)
    wanted = (rms(o, module.norm.weight) * gate).flatten(1) @ module.heads.out.weight.T
    torch.testing.assert_close(module(x[None])[0], wanted, rtol=1e-9, atol=1e-9)


def test_one_step_per_token_is_gated_delta_net() -> None:
    product = built("delta_product:num_heads=2:num_householder=1:beta_max=1")
    plain = built("gated_delta_net:num_heads=2:expand_v=2")
    plain.load_state_dict(product.state_dict())
    x = tokens(100)[None]
    torch.testing.assert_close(product(x), plain(x), rtol=1e-9, atol=1e-9)


def test_four_reflections_per_token_permute_five_things() -> None:
    """A permutation of 5 is a product of at most 4 transpositions, each a reflection along e_i - e_j: S5 in one layer,
    which one reflection per token cannot track."""
    from assay.nn.scan import delta_scan

    rng = torch.Generator().manual_seed(0)
    state, keys, strengths, place = torch.eye(5, dtype=torch.float64), [], [], torch.eye(5, dtype=torch.float64)
    for _ in range(60):
        order = torch.randperm(5, generator=rng).tolist()
        place = place[order]
        swaps = []
        for i in range(4):  # selection: bring what belongs at i there
            j = order.index(i)
            swaps.append((i, j))
            order[i], order[j] = order[j], order[i]
        for i, j in reversed(swaps):
            key = torch.zeros(5, dtype=torch.float64)
            if i != j:
                key[i], key[j] = 0.5**0.5, -(0.5**0.5)
            keys.append(key)
            strengths.append(2.0 * (i != j))
    k, beta = torch.stack(keys)[None, None], torch.tensor(strengths, dtype=torch.float64)[None, None]
    _, end = delta_scan(k, k, torch.zeros_like(k), beta, state=state[None, None])
    torch.testing.assert_close(end[0, 0], place, rtol=1e-9, atol=1e-9)
