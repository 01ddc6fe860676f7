"""The spec's losses (its tests/test_losses.py): the theorem, and each formula against a loop over entries."""

import math

import numpy as np
import pytest
import torch

from assay.core.errors import UserError
from assay.nn.random import stream
from assay.studies.sae import (
    Encoder,
    combined_loss,
    correlation_loss,
    lse_loss,
    sae_loss,
    variance_loss,
    weight_redundancy_loss,
)


def activations(batch: int = 20, K: int = 6) -> torch.Tensor:
    return torch.randn(batch, K, generator=stream(0, "a"), dtype=torch.float64)


class TestLSELoss:
    def test_gradient_equals_responsibility(self) -> None:
        """The theorem, where it holds: at the energies, to float64 precision, for any activation."""
        x = torch.randn(64, 784, generator=stream(42, "x"), dtype=torch.float64)
        for activation in ("relu", "identity", "softplus"):
            a, _ = Encoder(784, 64, activation).double()(x)
            loss, r = lse_loss(a)
            (gradient,) = torch.autograd.grad(loss, a)
            correlation = np.corrcoef(gradient.flatten().numpy(), r.detach().flatten().numpy())[0, 1]
            assert correlation > 0.9999
            torch.testing.assert_close(gradient, r.detach(), rtol=0, atol=1e-15)

    def test_through_a_relu_the_gradient_is_responsibility_of_the_units_that_fire(self) -> None:
        x = torch.randn(64, 20, generator=stream(0, "x"), dtype=torch.float64)
        a, z = Encoder(20, 8).double()(x)
        loss, r = lse_loss(a)
        (gradient,) = torch.autograd.grad(loss, z)
        torch.testing.assert_close(gradient, r.detach() * (z > 0), rtol=0, atol=1e-15)
        silent = (z <= 0).any(dim=1)
        most = r.detach().argmax(dim=1)
        assert (gradient[torch.arange(64), most][silent] == 0).all(), (
            "the most responsible unit is off: it gets nothing"
        )

    def test_value_and_responsibilities_against_a_loop(self) -> None:
        a = activations()
        loss, r = lse_loss(a)
        by_hand = -sum(math.log(sum(math.exp(-v) for v in row)) for row in a.tolist())
        assert loss.item() == pytest.approx(by_hand) and loss.shape == ()
        assert torch.allclose(r.sum(dim=1), torch.ones(20, dtype=torch.float64)) and r.shape == a.shape

    def test_is_a_sum_over_the_batch(self) -> None:
        a = activations()
        assert lse_loss(torch.cat([a, a]))[0].item() == pytest.approx(2 * lse_loss(a)[0].item())

    def test_large_activations_do_not_overflow(self) -> None:
        loss, r = lse_loss(torch.tensor([[1e4, 2e4], [-1e4, 0.0]]))
        assert loss.isfinite() and r.isfinite().all()


class TestOtherLosses:
    def test_variance_against_numpy(self) -> None:
        a = activations()
        assert variance_loss(a).item() == pytest.approx(-np.log(a.numpy().var(axis=0, ddof=1) + 1e-6).sum())

    def test_variance_falls_by_2K_log_c_when_scaled_by_c(self) -> None:
        """Unbounded below: the origin of the 'convergence at epoch 70' law."""
        a = activations()
        fall = variance_loss(a, 0.0) - variance_loss(10 * a, 0.0)
        assert fall.item() == pytest.approx(2 * 6 * math.log(10))

    def test_correlation_against_numpy_counts_each_pair_twice(self) -> None:
        a = activations()
        R = np.corrcoef(a.numpy().T)
        by_hand = sum(R[i, j] ** 2 for i in range(6) for j in range(6) if i != j)
        assert correlation_loss(a).item() == pytest.approx(by_hand, rel=1e-6)

    def test_a_unit_that_stands_still_correlates_with_nothing_and_has_a_finite_gradient(self) -> None:
        a = activations()
        a[:, 2] = 0
        a.requires_grad_(True)
        correlation_loss(a).backward()
        assert a.grad is not None and a.grad.isfinite().all()

    def test_weight_redundancy_is_zero_for_orthogonal_rows_of_any_length(self) -> None:
        assert weight_redundancy_loss(3 * torch.eye(4, 7)).item() == pytest.approx(0, abs=1e-6)
        same = torch.ones(3, 5)
        assert weight_redundancy_loss(same).item() == pytest.approx(6, rel=1e-5)

    def test_sae_loss_is_two_means(self) -> None:
        x, recon, a = torch.zeros(2, 4), torch.ones(2, 4), -torch.ones(2, 3)
        found = sae_loss(x, recon, a, l1_weight=0.5)
        assert (found["total"].item(), found["mse"].item(), found["l1"].item()) == (1.5, 1, 1)


class TestCombinedLoss:
    def test_total_is_the_weighted_sum_and_the_rest_is_detached(self) -> None:
        a, W = activations().requires_grad_(True), torch.randn(6, 9, generator=stream(0, "W"), dtype=torch.float64)
        config = {"lambda_lse": 0.5, "lambda_var": 2.0, "lambda_tc": 3.0, "lambda_wr": 0.1}
        losses = combined_loss(a, W, config)
        assert set(losses) == {"total", "lse", "var", "tc", "wr", "responsibilities"}
        by_hand = sum(config[f"lambda_{name}"] * losses[name] for name in ("lse", "var", "tc", "wr"))
        assert losses["total"].item() == pytest.approx(float(by_hand))
        assert [name for name, value in losses.items() if value.requires_grad] == ["total"]

    def test_defaults_are_those_of_the_spec(self) -> None:
        a, W = activations(), torch.eye(6, 9, dtype=torch.float64)
        losses = combined_loss(a, W)
        assert losses["total"].item() == pytest.approx(float(losses["lse"] + losses["var"] + losses["tc"]))

    def test_a_term_of_weight_0_is_not_in_the_gradient_even_if_it_is_infinite(self) -> None:
        a = torch.zeros(4, 3, requires_grad=True)
        combined_loss(a, torch.zeros(3, 2), {"lambda_var": 0.0, "lambda_tc": 0.0, "variance_eps": 0.0})[
            "total"
        ].backward()
        assert a.grad is not None and a.grad.isfinite().all()

    def test_an_unknown_weight_is_refused(self) -> None:
        with pytest.raises(UserError, match="Did you mean 'lambda_tc'"):
            combined_loss(activations(), torch.eye(6), {"lambda_tcc": 1.0})
