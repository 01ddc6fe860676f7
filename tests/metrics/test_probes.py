import dataclasses

import numpy as np
import pytest
import torch

from assay.core.errors import UserError
from assay.metrics import probes
from assay.metrics.probes import (
    PENALTIES,
    Split,
    masked_r2,
    principal_r2,
    r2,
    ridge,
    ridge_chosen,
    ridge_r2,
    standardiser,
)


def make(seed=0, *, n=400, d=12, r=3, noise=1.0, dtype=torch.float64):
    """A code of correlated, uneven columns that holds the targets under noise."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randn(2 * n, r, generator=rng, dtype=torch.float64)
    z = y @ torch.randn(r, d, generator=rng, dtype=torch.float64)
    z = (z + noise * torch.randn(2 * n, d, generator=rng, dtype=torch.float64)) * torch.linspace(1, 5, d) + 3
    z, y = z.to(dtype), y.to(dtype)
    return Split(z[:n], y[:n] + 1, z[n:], y[n:] + 1)


def recode(split, change):
    return dataclasses.replace(split, z_fit=change(split.z_fit), z_test=change(split.z_test))


def hat(z, penalty):
    """The smoother matrix of ridge with an intercept, in full."""
    z = (z - z.mean(0)) / z.std(0)
    n = len(z)
    return np.full((n, n), 1 / n) + z @ np.linalg.solve(z.T @ z + n * penalty * np.eye(z.shape[1]), z.T)


def brute_penalty(z, y):
    """GCV by its definition, one n x n smoother per penalty."""
    scores = []
    for penalty in PENALTIES:
        smoother = hat(z, penalty)
        left = y - smoother @ y
        scores.append((left**2).sum() / len(z) / (1 - np.trace(smoother) / len(z)) ** 2)
    return PENALTIES[int(np.argmin(scores))]


def brute_r2(split, columns):
    """Refit on the columns by least squares on an augmented system, penalty by brute force."""
    z, y, z_test, y_test = (part.double().numpy() for part in dataclasses.astuple(split))
    z, z_test = z[:, columns], z_test[:, columns]
    penalty = brute_penalty(z, y)
    mean, deviation = z.mean(0), z.std(0)
    rows = np.vstack([(z - mean) / deviation, np.sqrt(len(z) * penalty) * np.eye(z.shape[1])])
    right = np.vstack([y - y.mean(0), np.zeros((z.shape[1], y.shape[1]))])
    weights = np.linalg.lstsq(rows, right, rcond=None)[0]
    guess = y.mean(0) + (z_test - mean) / deviation @ weights
    return 1 - ((guess - y_test) ** 2).mean() / y_test.var(0, ddof=1).mean()


def test_r2_centres_each_output_on_its_own_mean():
    target = torch.tensor([[0.0, 100.0], [2.0, 104.0], [4.0, 108.0]])
    guess = target + torch.tensor([1.0, -1.0])
    assert r2(guess, target) == pytest.approx(1 - 1 / ((4 + 16) / 2))
    alone = [r2(guess[:, [i]], target[:, [i]]) for i in (0, 1)]
    assert alone == pytest.approx([1 - 1 / 4, 1 - 1 / 16])


def test_a_constant_target_scores_zero():
    assert r2(torch.randn(9, 2), torch.full((9, 2), 7.0)) == 0.0


def test_penalty_and_degrees_are_those_of_brute_force_cross_validation():
    split = make(n=40, d=12, noise=6.0)
    fit = ridge(split)
    penalty = brute_penalty(split.z_fit.numpy(), split.y_fit.numpy())
    assert PENALTIES[0] < penalty < PENALTIES[-1], "the case must have its minimum inside the grid"
    assert fit.penalty == pytest.approx(penalty)
    assert fit.degrees == pytest.approx(np.trace(hat(split.z_fit.numpy(), penalty)))


def test_ridge_equals_the_brute_force_fit():
    split = make(n=60, noise=4.0)
    assert ridge_r2(split) == pytest.approx(brute_r2(split, list(range(12))), abs=1e-9)


def test_masked_r2_equals_refitting_each_mask():
    split, keep, masks = make(n=60, noise=2.0), 0.5, 5
    draws = torch.rand(masks, 12, generator=torch.Generator().manual_seed(3))
    slow = [brute_r2(split, row.argsort()[:6].sort().values.tolist()) for row in draws]
    assert np.std(slow) > 0.01
    fast = masked_r2(split, keep, masks, torch.Generator().manual_seed(3))
    assert fast == pytest.approx(np.mean(slow), abs=1e-9)


def test_a_mask_that_keeps_all_is_no_mask():
    split = make()
    assert masked_r2(split, 1.0, 3, torch.Generator()) == pytest.approx(ridge_r2(split), abs=1e-12)


def test_a_mask_keeps_one_coordinate_at_least_and_a_share_of_nothing_is_refused():
    rng = torch.Generator().manual_seed(0)
    assert masked_r2(make(), 0.05, 4, rng) == masked_r2(make(), 1 / 12, 4, torch.Generator().manual_seed(0))
    with pytest.raises(UserError, match=r"keep=0"):
        masked_r2(make(), 0.0, 1, torch.Generator())


def test_a_noise_code_scores_zero_held_out():
    scores = []
    for seed in range(12):
        rng = torch.Generator().manual_seed(seed)
        part = lambda width: torch.randn(2048, width, generator=rng)  # noqa: B023, E731
        scores.append(ridge_r2(Split(part(32), part(8), part(32), part(8))))
    assert abs(np.mean(scores)) < 0.005


def test_dead_and_constant_columns_change_nothing():
    split = make()

    def deaden(z):
        return torch.cat([torch.zeros(len(z), 2), z, torch.full((len(z), 1), 0.1)], dim=1)

    assert ridge_r2(recode(split, deaden)) == pytest.approx(ridge_r2(split), abs=1e-12)
    gain = standardiser(deaden(split.z_fit))[1]
    assert gain[[0, 1, -1]].tolist() == [0, 0, 0] and (gain[2:-1] > 0).all()


def test_a_code_that_is_dead_throughout_scores_zero():
    split = recode(make(), torch.zeros_like)
    scores = [ridge_r2(split), masked_r2(split, 0.5, 4, torch.Generator()), *principal_r2(split)]
    assert max(map(abs, scores)) < 0.02


@pytest.mark.parametrize("gain", [1e-6, 1e6])
def test_no_probe_sees_a_common_gain(gain):
    split = make(dtype=torch.float32)
    scaled = recode(split, lambda z: z * gain)
    assert ridge_r2(scaled) == pytest.approx(ridge_r2(split), abs=1e-6)
    assert principal_r2(scaled) == pytest.approx(principal_r2(split), abs=1e-6)


def test_the_order_of_units_is_irrelevant_to_the_whole_code():
    split, order = make(), torch.randperm(12, generator=torch.Generator().manual_seed(1))
    assert ridge_r2(recode(split, lambda z: z[:, order])) == pytest.approx(ridge_r2(split), abs=1e-10)


def test_principal_curve_is_free_of_rotation():
    split = make()
    rotation = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64))[0]
    turned = recode(split, lambda z: z @ rotation)
    assert principal_r2(turned) == pytest.approx(principal_r2(split), abs=1e-9)
    assert masked_r2(turned, 0.25, 8, torch.Generator()) != pytest.approx(
        masked_r2(split, 0.25, 8, torch.Generator()), abs=1e-3
    )


def test_principal_curve_equals_regression_on_explicit_components():
    split = make(n=2000, noise=0.3)
    z, y, z_test, y_test = (part.numpy() for part in dataclasses.astuple(split))
    axes = np.linalg.svd(z - z.mean(0), full_matrices=False)[2]
    slow = []
    for k in range(1, 6):
        design, design_test = (np.c_[np.ones(len(part)), (part - z.mean(0)) @ axes[:k].T] for part in (z, z_test))
        guess = design_test @ np.linalg.lstsq(design, y, rcond=None)[0]
        slow.append(1 - ((guess - y_test) ** 2).mean() / y_test.var(0, ddof=1).mean())
    assert principal_r2(split, k_max=5) == pytest.approx(slow, abs=1e-3)
    assert len(principal_r2(split)) == 12


def test_more_coordinates_than_rows_is_still_a_fit():
    split = make(n=60, d=200, noise=1.0)
    assert 0.8 < ridge_r2(split) <= 1


def test_a_unit_that_hardly_ever_fired_does_not_throw_the_prediction_off():
    rng = torch.Generator().manual_seed(0)
    z, y = torch.randn(256, 8, generator=rng), torch.randn(256, 1, generator=rng)
    y[:, 0] = z[:, 0]
    z[:, 7] = 0
    z[3, 7], z[200, 7] = 1e-4, 0.3  # one whisper while fitting, one shout afterwards
    assert ridge_r2(Split(z[:128], y[:128], z[128:], y[128:])) > 0.9


@pytest.mark.parametrize(("n", "d", "noise"), [(400, 12, 1.0), (60, 40, 0.3), (30, 50, 1.0)])
def test_a_wide_codes_search_ends_where_the_whole_grid_does(n, d, noise, monkeypatch):
    split = make(n=n, d=d, noise=noise)
    whole = ridge(split)
    monkeypatch.setattr(probes, "WIDE", 1)
    searched = ridge(split)
    assert searched.penalty == pytest.approx(whole.penalty)
    assert searched.degrees == pytest.approx(whole.degrees)
    torch.testing.assert_close(searched.predict(split.z_test), whole.predict(split.z_test), rtol=1e-6, atol=1e-8)


def test_a_wide_code_with_a_dead_unit_and_one_twice_is_no_obstacle(monkeypatch):
    split = recode(make(), lambda z: torch.cat([z, torch.zeros(len(z), 1), z[:, :1]], dim=1))
    whole = ridge(split)
    monkeypatch.setattr(probes, "WIDE", 1)
    torch.testing.assert_close(ridge(split).predict(split.z_test), whole.predict(split.z_test), rtol=1e-5, atol=1e-6)


def errors_of_the_grid(split):
    """On the other part, each penalty fitted by solving its equations."""
    centre, gain = standardiser(split.z_fit)
    z, y = (split.z_fit.double() - centre) * gain, split.y_fit.double() - split.y_fit.double().mean(dim=0)

    def error(penalty: float) -> float:
        left = z.mT @ z / len(z) + penalty * torch.eye(z.shape[1], dtype=z.dtype)
        weights = torch.linalg.solve(left, z.mT @ y / len(z))
        guess = split.y_fit.double().mean(dim=0) + (split.z_test.double() - centre) * gain @ weights
        return float((guess - split.y_test.double()).square().mean())

    return {penalty: error(penalty) for penalty in PENALTIES}


@pytest.mark.parametrize("wide", [1, probes.WIDE], ids=["searched", "whole"])
@pytest.mark.parametrize(("n", "d", "noise"), [(400, 12, 1.0), (60, 40, 0.3), (30, 50, 1.0)])
def test_a_chosen_penalty_is_the_best_of_the_grid_for_the_rows_it_is_chosen_on(n, d, noise, wide, monkeypatch):
    split = make(n=n, d=d, noise=noise)
    monkeypatch.setattr(probes, "WIDE", wide)
    errors, found = errors_of_the_grid(split), ridge_chosen(split)
    assert errors[found.penalty] == pytest.approx(min(errors.values()))
    at_it = float((found.predict(split.z_test) - split.y_test.double()).square().mean())
    assert at_it == pytest.approx(errors[found.penalty])


def test_a_code_that_is_not_wide_is_given_the_best_of_two_minima(monkeypatch):
    """Two columns are almost the third. What they hold by their small differences is, held out, right for one and of
    the wrong sign for the other, whose difference is smaller; so is what is held by all three. Penalties that shrink
    the one and not the other are few, and the search, on its way from every eighth, does not see them."""
    n, rng = 200, torch.Generator().manual_seed(0)
    common, right, turned = torch.randn(3, 2 * n, 1, generator=rng, dtype=torch.float64)
    z = torch.cat([common, common + 0.05 * right, common + 0.01 * turned], dim=1)
    sign = torch.ones(2 * n, 1, dtype=torch.float64)
    sign[n:] = -1
    y = torch.cat([right, sign * turned, 0.4 * sign * common], dim=1)
    split = Split(z[:n], y[:n], z[n:], y[n:])
    errors = errors_of_the_grid(split)
    assert errors[ridge_chosen(split).penalty] == min(errors.values())
    monkeypatch.setattr(probes, "WIDE", 1)
    assert errors[ridge_chosen(split).penalty] > 1.1 * min(errors.values())


@pytest.mark.parametrize("wide", [1, probes.WIDE], ids=["searched", "whole"])
def test_a_code_that_is_not_finite_is_refused_in_words(wide, monkeypatch):
    monkeypatch.setattr(probes, "WIDE", wide)
    with pytest.raises(AssertionError, match="not finite"):
        ridge_chosen(recode(make(), lambda z: z * torch.inf))


def test_units_that_fire_in_two_rows_do_not_throw_the_chosen_reader_off():
    """Heavy tails: while fitting a unit fires weakly beside an outlier of the target, and afterwards strongly."""
    rng = torch.Generator().manual_seed(0)
    n, units = 600, 60
    y = torch.randn(3 * n, 4, generator=rng)
    z = torch.zeros(3 * n, units)
    for part, size in ((0, 1.0), (1, 20.0), (2, 20.0)):
        for unit in range(units):
            z[part * n + torch.randint(n, (2,), generator=rng), unit] = size
    fitted, choosing, last = ((z[i : i + n], y[i : i + n]) for i in (0, n, 2 * n))
    chosen = ridge_chosen(Split(*fitted, *choosing)).predict(last[0])
    crossed = ridge(Split(*fitted, *last)).predict(last[0])
    assert r2(crossed, last[1]) < -1  # generalised cross-validation sees no harm in them
    assert r2(chosen, last[1]) > -0.05
