import math

import numpy as np
import pytest
import torch
from torch import nn

from assay.core.errors import UserError
from assay.metrics import jacobian
from assay.metrics.jacobian import jacobians, spectrum

POINTS, TIME, D_IN, D_CODE = 5, 4, 3, 6


class Mixed(nn.Module):
    """Attention, a norm and a nonlinearity; with dropout, so that the mode matters."""

    def __init__(self):
        super().__init__()
        self.mix = nn.MultiheadAttention(D_IN, 1, batch_first=True)
        self.norm = nn.LayerNorm(D_IN)
        self.drop = nn.Dropout(0.5)
        self.read = nn.Linear(TIME * D_IN, D_CODE)

    def forward(self, x):
        mixed = self.norm(x + self.mix(x, x, x, need_weights=False)[0])
        return torch.tanh(self.read(self.drop(mixed).flatten(1)))


class Square(torch.autograd.Function):
    """Written the old way, for which vmap has no rule."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]


class Unbatchable(Mixed):
    def forward(self, x):
        return Square.apply(super().forward(x))


class Batchable(Mixed):
    def forward(self, x):
        return super().forward(x) ** 2


@pytest.fixture
def x():
    return torch.randn(POINTS, TIME, D_IN, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def twins():
    fast, slow = Batchable().double(), Unbatchable().double()
    slow.load_state_dict(fast.state_dict())
    return fast, slow


def test_equals_finite_differences(x):
    module = Mixed().double()
    found = jacobians(module, x)
    module.eval()
    step = 1e-6
    for i in range(TIME * D_IN):
        bump = torch.zeros(TIME * D_IN, dtype=torch.float64)
        bump[i] = step
        bump = bump.view(TIME, D_IN)
        with torch.no_grad():
            slope = (module(x + bump) - module(x - bump)) / (2 * step)
        torch.testing.assert_close(found[:, :, i], slope, atol=1e-7, rtol=1e-6)


def test_a_module_without_batching_rules_gets_the_same_matrix(x, twins):
    fast, slow = twins
    with pytest.raises(RuntimeError):
        jacobian._by_vmap(slow.eval(), x, 2)
    torch.testing.assert_close(jacobians(slow, x), jacobians(fast, x), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("index", [0, 1])
def test_chunks_change_nothing(x, twins, index):
    torch.testing.assert_close(jacobians(twins[index], x, chunk=2), jacobians(twins[index], x, chunk=100))


@pytest.mark.parametrize("index", [0, 1])
def test_the_module_is_left_as_it_was(x, twins, index):
    module = twins[index].train()
    module.norm.eval()
    module.read.bias.requires_grad_(False)
    jacobians(module, x)
    assert module.training and module.drop.training and not module.norm.training
    assert [name for name, weight in module.named_parameters() if not weight.requires_grad] == ["read.bias"]
    assert all(weight.grad is None for weight in module.parameters())


def test_a_faulty_module_raises_its_own_error_and_is_left_as_it_was():
    module = Mixed().train()
    with pytest.raises(RuntimeError):
        jacobians(module, torch.randn(2, TIME + 1, D_IN))
    assert module.training and module.read.weight.requires_grad


def test_attention_is_batched_and_not_looped_over(x, recwarn):
    jacobians(Mixed().double(), x)
    assert not [str(warning.message) for warning in recwarn if "performance drop" in str(warning.message)]


def test_a_code_per_token_is_refused(x):
    with pytest.raises(UserError, match="Pool over time"):
        jacobians(nn.Linear(D_IN, 2).double(), x)


@pytest.mark.parametrize("path", ["jacobians", "_by_rows"])
def test_a_constant_code_has_a_zero_jacobian(x, path):
    class Constant(nn.Module):
        def forward(self, x):
            return torch.ones(len(x), D_CODE, dtype=x.dtype)

    found = getattr(jacobian, path)(Constant(), x)
    assert found.shape[:2] == (POINTS, D_CODE) and not found.any()


def test_spectrum_is_the_definition_point_by_point():
    matrices = torch.randn(7, 5, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows = []
    for matrix in matrices.numpy():
        s = np.sqrt(np.linalg.eigvalsh(matrix @ matrix.T))
        p = s / s.sum()
        entropy = -sum(p * np.log(p))
        power = s**2 / sum(s**2)
        bits = sum(0.5 * math.log2(1 + (v / 0.3) ** 2) for v in s)
        rows.append([entropy, 1 - sum(p**2), min(s), sorted(s)[2], math.exp(entropy), 1 / sum(power**2), bits])
    found = spectrum(matrices, noise=0.3)
    names = ["entropy", "gini", "sv_min", "sv_median", "erank", "participation", "logdet_bits"]
    assert found == pytest.approx(dict(zip(names, np.mean(rows, axis=0), strict=True)), abs=1e-9)


def test_equal_directions_are_counted():
    matrix = torch.diag(torch.tensor([2.0, 2.0, 2.0, 0.0]))[None]
    found = spectrum(matrix, noise=2.0)
    assert found["erank"] == pytest.approx(3) and found["participation"] == pytest.approx(3)
    assert found["sv_min"] == 0 and found["sv_median"] == 2
    assert found["logdet_bits"] == pytest.approx(1.5)


def test_the_median_of_an_even_count_is_the_lower_one():
    assert spectrum(torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0]))[None], noise=0.0)["sv_median"] == 2


@pytest.mark.parametrize("gain", [1e-3, 1e3])
def test_shape_figures_do_not_see_a_gain_of_the_code(gain):
    matrices = torch.randn(3, 8, 20, generator=torch.Generator().manual_seed(1))
    plain, scaled = spectrum(matrices, noise=0.1), spectrum(matrices * gain, noise=0.1)
    for name in ("entropy", "gini", "erank", "participation"):
        assert scaled[name] == pytest.approx(plain[name], abs=1e-6)
    assert scaled["sv_median"] == pytest.approx(gain * plain["sv_median"])


def test_without_noise_there_is_no_capacity_figure():
    assert "logdet_bits" not in spectrum(torch.eye(3)[None], noise=0.0)


def test_a_dead_code_has_no_rank_and_no_nan():
    found = spectrum(torch.zeros(2, 4, 6), noise=0.1)
    assert found["erank"] == found["participation"] == found["logdet_bits"] == found["sv_min"] == 0
    assert all(math.isfinite(value) for value in found.values())
