"""The five laws of regression, and that every predictor is the one it is called."""

import math
from dataclasses import replace

import pytest
import torch

from assay.core.errors import UserError
from assay.nn.random import stream
from assay.tasks.base import Batch
from assay.tasks.pairs import separate
from assay.tasks.regression import PREDICTORS, Regression, averaging, knn3, lasso, ols, ridge

KINDS = ("linear", "quadratic", "sparse_linear", "noisy", "outlier")


def draw(task, batch=512):
    return task.sample(batch, stream(0, "test"))


def weights(task, batch):
    """The w of each sequence, by least squares on all pairs."""
    x, y = separate(batch)
    return torch.linalg.lstsq(x.double(), y.double().unsqueeze(-1)).solution.squeeze(-1)


def error(predicted, batch):
    return (predicted - batch.targets).double().square().mean(0)


@pytest.mark.parametrize(
    ("options", "variance"),
    [
        ({}, 20),
        ({"scale": 3.0}, 180),
        ({"regression_type": "quadratic"}, 20),
        ({"regression_type": "sparse_linear"}, 5),
        ({"regression_type": "sparse_linear", "sparsity": 3}, 3),
        ({"regression_type": "noisy"}, 21),
        ({"regression_type": "noisy", "noise_std": 4.0}, 36),
        ({"regression_type": "noisy", "noise_std": 4.0, "renormalize_noisy": True}, 20),
    ],
)
def test_the_targets_have_their_variance(options, variance):
    targets = draw(Regression(**options), 4096).targets
    # One w per sequence: 4096 of them, each with a variance that itself varies by a third, and if quadratic a mean of
    # its own with standard deviation sqrt(20 / 3).
    assert targets.square().mean().item() == pytest.approx(variance, rel=0.06)
    assert abs(targets.mean().item()) < 5 / 64 * math.sqrt(variance / 3)


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_interleaved_and_asked_for_at_x(kind):
    task = Regression(regression_type=kind)
    batch = draw(task, 16)
    x, y = separate(batch)
    assert batch.inputs.shape == (16, 80, 20)
    assert torch.equal(y, batch.targets)
    assert not batch.inputs[:, 1::2, 1:].any()
    assert batch.positions[5].tolist() == list(range(0, 80, 2))
    assert torch.equal(batch.inputs.gather(1, batch.positions[..., None].expand(-1, -1, 20)), x)


def test_the_worked_example_is_answered():
    inputs = torch.tensor([[[3.0, 1], [2, 0], [0, 4], [-4, 0], [1, 1], [0, 0]]])
    task = Regression(input_dim=2, input_seq_len=3)
    assert task.oracle(Batch(inputs, torch.zeros(1, 3)))[0, -1].item() == pytest.approx(0, abs=1e-5)


def test_linear_targets_are_linear_with_normal_weights():
    batch = draw(Regression(), 2048)
    w = weights(Regression(), batch)
    torch.testing.assert_close(torch.einsum("bnd,bd->bn", separate(batch)[0].double(), w).float(), batch.targets)
    assert abs(w.mean().item()) < 0.02 and w.var().item() == pytest.approx(1, abs=0.03)


def test_sparse_weights_keep_sparsity_uniform_coordinates():
    task = Regression(regression_type="sparse_linear", sparsity=3, input_dim=8)
    live = weights(task, draw(task, 4096)).abs() > 1e-5
    assert (live.sum(1) == 3).all()
    torch.testing.assert_close(live.double().mean(0), torch.full((8,), 3 / 8).double(), rtol=0, atol=0.04)


def test_noise_has_its_size():
    noisy, clean = draw(Regression(regression_type="noisy", noise_std=2.0)), draw(Regression())
    assert (noisy.targets - clean.targets).std().item() == pytest.approx(2, abs=0.05)


def test_outliers_are_ones_at_their_rate_and_the_rest_is_linear():
    batch = draw(Regression(regression_type="outlier"), 1024)
    x, y = separate(batch)
    outlying = (x == 1).all(-1)
    assert outlying.double().mean().item() == pytest.approx(0.1, abs=0.01)
    assert (y[outlying] == 1).all()
    assert y[~outlying].var().item() == pytest.approx(20, rel=0.1)


def test_ols_error_is_one_minus_n_over_d():
    batch = draw(Regression(), 4096)
    curve = error(ols(*separate(batch)), batch) / 20
    expected = (1 - torch.arange(40).double() / 20).clamp(min=0)
    assert ((curve - expected).abs() <= 0.1 * expected + 0.001).all()


@pytest.mark.parametrize("kind", KINDS)
def test_no_reference_beats_the_oracle(kind):
    task = Regression(regression_type=kind, input_dim=8, input_seq_len=16, sparsity=1)
    batch = draw(task, 512)
    best = error(task.oracle(batch), batch).mean().item()
    for name, answer in task.references(batch).items():
        # 1 % for chance: early on the posterior mean and, say, ridge are nearly the same.
        assert best <= 1.01 * error(answer, batch).mean().item(), name


@pytest.mark.parametrize("kind", KINDS)
def test_no_answer_reads_its_own_or_a_later_label(kind):
    task = Regression(regression_type=kind, input_dim=5, input_seq_len=9)
    batch, other = draw(task, 16), task.sample(16, stream(1, "other"))
    changed = batch.inputs.clone()
    changed[:, 9:] = other.inputs[:, 9:]  # from y_5 on
    twin = Batch(changed, batch.targets, batch.positions)
    answers = {"oracle": task.oracle(batch)} | task.references(batch)
    for name, answer in ({"oracle": task.oracle(twin)} | task.references(twin)).items():
        torch.testing.assert_close(answer[:, :5], answers[name][:, :5], rtol=0, atol=1e-5)


def slow(predict, x, y):
    """One prefix and one sequence at a time."""
    return torch.tensor([[predict(xs[:i], ys[:i], xs[i]) for i in range(len(xs))] for xs, ys in zip(x, y, strict=True)])


def slow_ols(x, y, at):
    return (torch.linalg.pinv(x) @ y @ at).item() if len(x) else 0.0


def slow_ridge(x, y, at, penalty=1.0):
    return (torch.linalg.inv(x.T @ x + penalty * torch.eye(len(at)).double()) @ x.T @ y @ at).item()


def slow_averaging(x, y, at):
    return sum((yi * xi @ at).item() for xi, yi in zip(x, y, strict=True)) / max(len(x), 1)


def slow_knn3(x, y, at):
    near = sorted(range(len(x)), key=lambda i: (x[i] - at).norm().item())[:3]
    return sum(y[i].item() for i in near) / max(len(near), 1)


@pytest.mark.parametrize(
    ("fast", "plain"), [(ols, slow_ols), (ridge, slow_ridge), (averaging, slow_averaging), (knn3, slow_knn3)]
)
@pytest.mark.parametrize("kind", ["noisy", "outlier"])
def test_each_predictor_is_what_it_is_called(fast, plain, kind):
    x, y = separate(draw(Regression(regression_type=kind, input_dim=4, input_seq_len=10), 24))
    torch.testing.assert_close(fast(x, y), slow(plain, x.double(), y.double()), rtol=2e-3, atol=2e-3)


def test_the_lasso_meets_its_optimality_conditions():
    """At unit vectors the predictions are w itself: |x^T (y - x w)| / i is alpha where w lives, and at most that."""
    d, alpha, seen = 6, 0.1, 10
    x, y = separate(draw(Regression(regression_type="sparse_linear", sparsity=2, input_dim=d, input_seq_len=seen), 8))
    coordinates = []
    for unit in torch.eye(d):
        probe = torch.cat((x, unit.expand(8, 1, d)), dim=1)
        coordinates.append(lasso(probe, torch.cat((y, y[:, :1]), dim=1), alpha=alpha, steps=1000)[:, -1])
    w = torch.stack(coordinates, dim=1).double()
    slope = torch.einsum("bnd,bn->bd", x.double(), y - torch.einsum("bnd,bd->bn", x.double(), w)) / seen
    live = w.abs() > 1e-4
    assert live.any() and not live.all()
    assert slope.abs().max().item() <= alpha + 1e-4
    torch.testing.assert_close(slope[live], alpha * w[live].sign(), rtol=0, atol=1e-4)


def test_at_no_noise_ridge_is_ols():
    task = Regression(regression_type="noisy", noise_std=0.0)
    batch = draw(task, 32)
    assert torch.equal(task.oracle(batch), replace(task, regression_type="linear").oracle(batch))


def test_references_are_listed_by_name():
    assert list(Regression().references(draw(Regression(input_seq_len=4), 2))) == list(PREDICTORS)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"regression_type": "sparse_linear", "sparsity": 21},
            "sparsity=21 .* input_dim=20. Use a sparsity from 1 to 20",
        ),
        ({"input_dim": 0}, "input_dim=0 must be at least 1"),
        ({"input_seq_len": 0}, "input_seq_len=0 must be at least 1"),
        ({"noise_std": -1.0}, "noise_std=-1.0 is not a standard deviation"),
        ({"outlier_prob": 1.5}, "outlier_prob=1.5 is not a probability"),
        ({"scale": 0.0}, "scale=0.0 must be positive"),
    ],
)
def test_impossible_options_are_refused_with_a_remedy(options, says):
    with pytest.raises(UserError, match=f"task 'regression': .*{says}"):
        Regression(**options)


def test_a_sparsity_that_is_not_used_is_not_checked():
    assert Regression(input_dim=3).sparsity == 5
