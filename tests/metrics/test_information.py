import math

import pytest
import torch

from assay.metrics.information import FLOOR, barber_agakov_bits, nce_bits, nce_cap
from assay.metrics.probes import Split, ridge


def linear_gaussian(noise, *, seed=0, n=16384, r=3, d=8):
    """z = gA + noise, with its mutual information in closed form, 1/2 log2 det(I + A A'/s^2)."""
    rng = torch.Generator().manual_seed(seed)
    mix = torch.randn(r, d, generator=rng, dtype=torch.float64) / math.sqrt(d)
    g = torch.randn(2 * n, r, generator=rng, dtype=torch.float64)
    z = g @ mix + noise * torch.randn(2 * n, d, generator=rng, dtype=torch.float64)
    bits = torch.logdet(torch.eye(r) + mix @ mix.T / max(noise, 1e-9) ** 2).item() / 2 / math.log(2)
    return Split(z[:n], g[:n], z[n:], g[n:]), bits


@pytest.mark.parametrize("noise", [3.0, 1.0, 0.3, 0.03])
def test_barber_agakov_recovers_the_analytic_information(noise):
    split, bits = linear_gaussian(noise)
    assert barber_agakov_bits(split) == pytest.approx(bits, abs=0.1)


@pytest.mark.parametrize("noise", [3.0, 1.0, 0.5])
def test_nce_recovers_information_that_is_small_against_its_cap(noise):
    split, bits = linear_gaussian(noise, n=8192)
    assert bits < 0.5 * nce_cap(8192)
    assert nce_bits(split) == pytest.approx(bits, abs=0.15)


def test_a_noise_code_holds_no_bits():
    rng = torch.Generator().manual_seed(5)
    split = Split(*(torch.randn(4096, width, generator=rng) for width in (32, 4, 32, 4)))
    assert abs(barber_agakov_bits(split)) < 0.05
    assert abs(nce_bits(split)) < 0.05


@pytest.mark.parametrize("noise", [1e-2, 1e-5, 0.0])
def test_nce_saturates_at_its_cap_and_never_passes_it(noise):
    split, bits = linear_gaussian(noise, n=2048)
    assert bits > nce_cap(2048)
    assert nce_bits(split) <= nce_cap(2048) == 10
    assert nce_bits(split) > 9.5


def test_a_code_that_is_its_target_reads_the_floor_not_infinity():
    g = torch.randn(4096, 2, generator=torch.Generator().manual_seed(1))
    split = Split(g[:2048], g[:2048], g[2048:], g[2048:])
    assert barber_agakov_bits(split) == pytest.approx(math.log2(math.e / FLOOR), abs=0.1)
    assert nce_bits(split) == pytest.approx(10, abs=1e-3)


def test_overfitted_residuals_are_corrected():
    """With 300 rows for 100 units the in-sample residuals are too small by half; the bound must stay a bound."""
    split, bits = linear_gaussian(0.3, n=4096, d=100)
    few = Split(split.z_fit[:300], split.y_fit[:300], split.z_test, split.y_test)
    assert bits - 1.5 < barber_agakov_bits(few) < bits


@pytest.mark.parametrize("gain", [1e-4, 1e4])
def test_bits_do_not_depend_on_the_scale_of_the_code(gain):
    split, _ = linear_gaussian(0.3, n=2048)
    scaled = Split(split.z_fit * gain, split.y_fit, split.z_test * gain, split.y_test)
    assert nce_bits(scaled) == pytest.approx(nce_bits(split), abs=1e-8)
    assert barber_agakov_bits(scaled) == pytest.approx(barber_agakov_bits(split), abs=1e-8)


def test_nce_equals_its_definition_on_whole_blocks():
    split, _ = linear_gaussian(0.5, n=300)
    fit = ridge(split)
    error = split.y_fit - fit.predict(split.z_fit)
    sigma = error.T @ error / 300 / (1 - fit.degrees / 300) ** 2 + FLOOR * torch.eye(3)
    mu, bits = fit.predict(split.z_test), []
    for block in (range(100), range(100, 200), range(200, 300)):
        for i in block:
            q = torch.distributions.MultivariateNormal(mu[block], sigma).log_prob(split.y_test[i]).exp()
            bits.append(math.log2(q[i - block.start] / q.mean()))
    assert nce_bits(split, block=100) == pytest.approx(sum(bits) / 300, abs=1e-9)


def test_rows_that_fill_no_block_are_left_out_unless_they_are_all():
    split, _ = linear_gaussian(0.5, n=250)
    first = Split(split.z_fit, split.y_fit, split.z_test[:200], split.y_test[:200])
    assert nce_bits(split, block=100) == nce_bits(first, block=100)
    assert nce_cap(250) == math.log2(250) and nce_cap(5000) == 10
    assert nce_bits(split) <= nce_cap(250)
