"""Scores of sparse codes against what they must be where the answer is known."""

import math

import pytest
import torch

from assay.core.errors import UserError
from assay.metrics import sparsity
from assay.metrics.logistic import PENALTIES, choose, fit_paths
from assay.nn.random import stream


def rows(n: int, d: int, name: str = "x") -> torch.Tensor:
    return torch.randn(n, d, generator=stream(0, name))


def test_the_mean_predictor_explains_nothing_and_a_perfect_one_everything() -> None:
    """However far the mean is from 0: dividing by E|x|^2 would give the mean predictor .9 here."""
    x = rows(500, 32) + 3
    mean = x.mean(dim=0).expand_as(x)
    assert sparsity.fraction_unexplained(x, mean) == pytest.approx(1, abs=1e-6)
    assert sparsity.fraction_unexplained(x, x) == 0
    assert sparsity.fraction_unexplained(x, torch.zeros_like(x)) > 6


def test_a_ridge_decoder_finds_a_linear_map_and_fits_no_noise() -> None:
    code, W = rows(2000, 8), rows(8, 12, "W")
    x = code @ W + 5
    found = sparsity.ridge_decoder(code[:1000], x[:1000])
    assert sparsity.fraction_unexplained(x[1000:], found.decode(code[1000:])) < 1e-8
    noise = sparsity.ridge_decoder(rows(1000, 8, "noise"), x[:1000])
    assert 0.98 < sparsity.fraction_unexplained(x[1000:], noise.decode(rows(1000, 8, "other"))) < 1.05


def test_counts_of_active_and_dead_units_do_not_depend_on_scale() -> None:
    code = rows(100, 6).relu()
    code[:, 2] = 0
    code[1:, 3] = 0
    code[0, 3] = 1.0
    by_hand = sum(int(v > 0) for row in code.tolist() for v in row) / 100
    for scale in (1e-6, 1.0, 1e6):
        assert sparsity.l0(code * scale) == by_hand
        assert sparsity.dead(code * scale) == 1 and sparsity.dead(code * scale, share=0.01) == 2


def test_the_probe_is_that_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    z, y = rows(600, 5), (rows(600, 3) + rows(600, 5)[:, :3]).argmax(dim=1)
    scaled = StandardScaler().fit_transform(z.double().numpy())
    for mine in fit_paths(z[None], y, (1e-3, 1.0), floored=False)[0]:
        peer = LogisticRegression(C=mine.C, max_iter=5000, tol=1e-8).fit(scaled, y.numpy())
        centred = mine.W - mine.W.mean(dim=1, keepdim=True)
        torch.testing.assert_close(centred.T, torch.from_numpy(peer.coef_), rtol=0, atol=2e-3)
        assert mine.accuracy(z, y) == pytest.approx(peer.score(scaled, y.numpy()), abs=0.002)


def test_the_penalty_is_chosen_on_validation() -> None:
    z, y = rows(60, 40), (rows(60, 40)[:, 0] > 0).long()
    other = rows(500, 40, "v")
    seen = (other[:, 0] > 0).long()
    probe = choose(fit_paths(z[None], y)[0], other, seen)
    scores = [fit_paths(z[None], y, (C,))[0][0].accuracy(other, seen) for C in PENALTIES]
    assert probe.accuracy(other, seen) == pytest.approx(max(scores), abs=0.01)


def test_one_unit_is_enough_where_one_unit_says_it() -> None:
    y = torch.arange(400) % 8
    code = torch.nn.functional.one_hot(y, 8).float() + 0.01 * rows(400, 8)
    found = sparsity.k_sparse_accuracy((code[:200], y[:200]), (code[200:], y[200:]))
    assert found[1] == pytest.approx(1) and set(found) == {1, 2, 5}
    angle = 2 * math.pi * y / 8 + 0.2
    circle = torch.stack([angle.cos(), angle.sin()], dim=1) + 0.01 * rows(400, 2)
    found = sparsity.k_sparse_accuracy((circle[:200], y[:200]), (circle[200:], y[200:]), ks=(1, 2))
    assert found[1] < 0.98 and found[2] > 0.999, "a line cuts one point of a circle off, a threshold does not"


def test_stability_ignores_order_and_sign_and_scale() -> None:
    a = rows(10, 20)
    assert sparsity.stability(a, -3 * a.flip(0)) == pytest.approx(1, abs=1e-6)
    assert sparsity.stability(a, rows(10, 20, "b")) < 0.6


def test_recovery_is_perfect_for_the_dictionary_itself() -> None:
    atoms = torch.nn.functional.normalize(rows(12, 20), dim=1)
    fired = (torch.rand(300, 12, generator=stream(0, "fired")) < 0.2).float()
    order = torch.randperm(12, generator=stream(0, "order"))
    perfect = sparsity.recovery(atoms[order], fired[:, order], atoms, fired)
    assert perfect.cosine == pytest.approx(1) and perfect.found == 1 and perfect.f1 == pytest.approx(1)
    half = sparsity.recovery(atoms[:6], fired[:, :6], atoms, fired)
    assert half.found == 0.5 and half.f1 == pytest.approx(0.5)


def test_newton_is_the_minimum_of_the_penalised_loss() -> None:
    z = torch.cat([rows(300, 3).double(), torch.ones(300, 1, dtype=torch.float64)], dim=1)[None]
    y = (rows(300, 1, "y")[:, 0] + z[0, :, 0] > 0).double()[None]
    weight = torch.full_like(y, 1 / 300)
    W = sparsity.newton(z, y, weight).clone().requires_grad_(True)
    gain = 1 / z.square().mean(dim=1).sqrt()
    loss = (weight * torch.nn.functional.softplus((1 - 2 * y) * torch.einsum("fnd,fd->fn", z, W))).sum()
    (loss + 0.5e-4 * (W / gain).square().sum()).backward()
    assert W.grad.abs().max() < 1e-9


def test_newton_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.linalg.solve reads back whether it could; its sibling solve_ex does so only if told."""

    def waits(*_: object, **__: object) -> None:
        raise AssertionError("the host waits for the device")

    z, y = rows(40, 2).double()[None], (rows(40, 1, "y").T > 0).double()
    for name in ("item", "tolist", "__float__", "__bool__", "__int__", "cpu", "numpy", "nonzero"):
        monkeypatch.setattr(torch.Tensor, name, waits)
    monkeypatch.setattr(torch.linalg, "solve", waits)
    W = sparsity.newton(z, y, torch.full_like(y, 1 / 40))
    monkeypatch.undo()
    assert W.isfinite().all()


def test_classes_that_one_part_lacks_are_left_out() -> None:
    y = torch.arange(400) % 4
    code = torch.nn.functional.one_hot(y, 4).float() + 0.01 * rows(400, 4)
    with_three = sparsity.k_sparse_accuracy((code, y), (code[y != 3], y[y != 3]), ks=(1,))
    assert with_three[1] == pytest.approx(1), "class 3 has no test rows: nothing to be judged on"
    with pytest.raises(UserError, match="at least two classes"):
        sparsity.k_sparse_accuracy((code, y), (code[y == 1], y[y == 1]))
