"""The law of the hybrid task, and that nobody beats its oracle."""

import math
from dataclasses import replace

import pytest
import torch

from assay.core.errors import UserError
from assay.nn.random import stream
from assay.tasks.hybrid import SCALE, Hybrid, posterior_mean, posterior_mode

CLEAN = Hybrid(noise=0.0)
CONTEXTS = (0, 1, 2)


def draw(task, batch=2048, name="test"):
    return task.sample(batch, stream(0, name))


def r2(predicted, targets):
    return 1 - ((predicted - targets).square().mean() / targets.var(0).mean()).item()


def assert_same_law(fast, slow):
    """Means and covariances agree to within five standard errors of the smaller sample."""
    scale, rows = fast.std(0), len(slow)
    assert ((fast.mean(0) - slow.mean(0)).abs() <= 5 * scale / rows**0.5).all()
    assert ((torch.cov(fast.T) - torch.cov(slow.T)).abs() <= 5 * torch.outer(scale, scale) * (2 / rows) ** 0.5).all()


def slow_sequence(task, rng):
    """The definition, one sequence and one step at a time."""
    w_global, w_local = task.weights()
    g = torch.randn(task.r_global, generator=rng)
    local, x = torch.randn(task.r_local, generator=rng), torch.zeros(task.L, task.d_in)
    for t in range(task.L):
        if t > 0:
            shock = torch.randn(task.r_local, generator=rng)
            local = task.ar_coeff * local + math.sqrt(1 - task.ar_coeff**2) * shock
        if {0: True, 1: t % 2 == 1, 2: 1 <= t < task.L // 2}[task.context]:
            features = torch.cat((torch.tanh(0.35 * g @ w_global), torch.tanh(0.35 * local @ w_local)))
            x[t, task.K_keys + task.V_dim :] = features
    x[0, task.context] += 1
    return x + task.noise * torch.randn(x.shape, generator=rng), g


@pytest.mark.parametrize("context", CONTEXTS)
def test_the_batch_has_the_law_of_the_slow_definition(context):
    task = Hybrid(context=context, L=6, K_keys=2, V_dim=1, F_feat=4, r_global=2, r_local=2, noise=0.2)
    rng, rows = stream(1, "slow"), 1200
    slow_inputs, slow_targets = map(torch.stack, zip(*(slow_sequence(task, rng) for _ in range(rows)), strict=True))
    fast = draw(task, 20_000)
    slow = torch.cat((slow_inputs.flatten(1), slow_targets), dim=1)
    assert_same_law(torch.cat((fast.inputs.flatten(1), fast.targets), dim=1), slow)


@pytest.mark.parametrize("a", [0.0, 0.5, 0.8, 0.99])
def test_local_factors_have_unit_variance_and_autocorrelation_a_to_the_lag(a):
    local = Hybrid(ar_coeff=a).local_factors(40_000, stream(0, "ar"))
    second = torch.einsum("tbr,sbr->ts", local, local) / local[0].numel()
    lags = torch.arange(32)
    expected = torch.tensor(a) ** (lags[:, None] - lags).abs()
    torch.testing.assert_close(second, expected, rtol=0, atol=0.01)


def test_the_local_factors_equal_the_recurrence_on_the_same_shocks():
    task, batch = Hybrid(L=17), 3
    shocks = torch.randn(17, batch * task.r_local, generator=stream(0, "ar")).reshape(17, batch, task.r_local)
    slow = [shocks[0]]
    for shock in shocks[1:]:
        slow.append(0.8 * slow[-1] + 0.6 * shock)
    torch.testing.assert_close(task.local_factors(batch, stream(0, "ar")), torch.stack(slow))


@pytest.mark.parametrize(
    ("context", "filled"),
    [(0, list(range(32))), (1, list(range(1, 32, 2))), (2, list(range(1, 16)))],
)
def test_each_context_fills_its_positions_and_flags_the_first_token(context, filled):
    x = draw(replace(CLEAN, context=context), 16).inputs
    assert x[:, :, 12:].abs().amin(dim=(0, 2)).nonzero().flatten().tolist() == filled
    rest = x.clone()
    rest[:, filled, 12:] = 0
    assert (rest[:, 0, context] == 1).all()
    rest[:, 0, context] = 0
    assert not rest.any()


def test_the_global_half_is_constant_in_time_and_a_function_of_the_target():
    batch = draw(CLEAN, 64)
    half = batch.inputs[:, :, 12:18]
    expected = torch.tanh(0.35 * batch.targets @ CLEAN.weights()[0])
    torch.testing.assert_close(half, expected[:, None].expand_as(half), rtol=0, atol=0)
    assert batch.inputs[:, :, 18:].std(dim=1).min() > 0.01


def test_noise_is_on_every_entry_and_has_its_size():
    noisy, clean = draw(Hybrid(noise=0.3)), draw(CLEAN)
    noise = noisy.inputs - clean.inputs
    torch.testing.assert_close(noise.std(dim=0), torch.full((32, 24), 0.3), rtol=0, atol=0.03)
    assert torch.equal(noisy.targets, clean.targets)


def test_the_weights_follow_their_seed_alone():
    one, other = Hybrid(weights_seed=1).weights(), Hybrid(weights_seed=2).weights()
    assert [tuple(w.shape) for w in one] == [(4, 6), (8, 6)]
    assert torch.equal(one[0], Hybrid(weights_seed=1, context=2, noise=1.0).weights()[0])
    assert not torch.equal(one[0], other[0])


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_the_oracle_recovers_nearly_everything_at_little_noise(context, noise):
    task = Hybrid(context=context, noise=noise)
    batch = draw(task, 1024)
    assert r2(task.oracle(batch), batch.targets) > (0.99 if noise else 0.99999)


@pytest.mark.parametrize("context", CONTEXTS)
def test_at_large_noise_neither_ridge_nor_the_posterior_mode_beats_the_oracle(context):
    task = Hybrid(context=context, noise=1.0)
    train, test = draw(task, 3000, "train"), draw(task, 1024, "heldout")
    best = r2(task.oracle(test), test.targets)

    x = train.inputs.flatten(1).double()
    gram = x.T @ x
    for penalty in (3e2, 3e3):
        weights = torch.linalg.solve(gram + penalty * torch.eye(len(gram)), x.T @ train.targets.double())
        assert r2(test.inputs.flatten(1).double() @ weights, test.targets) < best

    seen = test.inputs[:, task.signal_positions(), task.global_feature].double()
    mode = posterior_mode(seen.mean(1), SCALE * task.weights()[0].double(), 1 / math.sqrt(seen.shape[1]))
    assert r2(mode, test.targets) < best


def test_the_posterior_mean_equals_the_integral_over_the_prior():
    mixing = SCALE * Hybrid().weights()[0].double()
    prior = torch.randn(400_000, 4, generator=stream(0, "prior"), dtype=torch.float64)
    features = torch.tanh(prior @ mixing)
    y = features[:6] + 0.3 * torch.randn(6, 6, generator=stream(0, "noise"), dtype=torch.float64)
    weights = torch.softmax(-(torch.cdist(y, features[6:]) ** 2) / (2 * 0.3**2), dim=-1)
    torch.testing.assert_close(posterior_mean(y, mixing, 0.3), weights @ prior[6:], rtol=0, atol=0.04)


def test_the_oracle_is_calibrated():
    """A posterior mean is uncorrelated with its error; a mode or an unshrunk estimate is not."""
    task = Hybrid(noise=2.0)
    batch = draw(task, 2048)
    answer = task.oracle(batch)
    slope = (answer * batch.targets).sum() / answer.square().sum()
    assert abs(slope.item() - 1) < 0.04


def test_the_oracle_is_a_function_of_the_batch():
    task = Hybrid(noise=1.0)
    batch = draw(task, 32)
    assert torch.equal(task.oracle(batch), task.oracle(batch))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"F_feat": 5}, "F_feat=5 must be even and at least 2.*Use F_feat=6"),
        ({"F_feat": 0}, "Use F_feat=2"),
        ({"L": 16}, "L=16 is too short for K_keys=8.*Use L=17"),
        ({"L": 3, "K_keys": 1, "context": 2}, "context=2 fills no position of a sequence of L=3"),
        ({"r_global": 0}, "r_global=0 must be at least 1"),
        ({"r_local": 0}, "r_local=0 must be at least 1"),
        ({"V_dim": 0}, "V_dim=0 must be at least 1"),
        ({"ar_coeff": 1.0}, "ar_coeff=1.0.*Use 0 <= ar_coeff < 1"),
        ({"ar_coeff": -0.1}, "ar_coeff=-0.1"),
        ({"noise": -1.0}, "noise=-1.0 is not a standard deviation"),
        ({"noise": math.nan}, "noise=nan"),
    ],
)
def test_impossible_options_are_refused_with_a_remedy(options, says):
    with pytest.raises(UserError, match=f"task 'hybrid': .*{says}"):
        Hybrid(**options)
