"""Logistic probes of many codes at once are the probes each would have alone."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from assay.metrics import logistic
from assay.metrics.logistic import Probe, fit_all_as_scikit_learn, fit_as_scikit_learn, fit_paths
from assay.nn.random import stream

MODELS, ROWS, UNITS, CLASSES = 4, 500, 12, 5
SLOPE = 1e-4
"""What a fit may end at: 1e-5, or as much as a value that changes by 1e-9 a step leaves."""


def coded() -> tuple[Tensor, Tensor]:
    """Codes of one set of rows: one that is easy to read, one hard, one with dead units, one large."""
    rng = stream(0, "codes")
    y = torch.randint(0, CLASSES, (ROWS,), generator=rng)
    signal = torch.randn(CLASSES, UNITS, generator=rng)[y]
    noise = torch.randn(MODELS, ROWS, UNITS, generator=rng)
    z = (signal + torch.tensor([0.3, 3.0, 1.0, 1.0])[:, None, None] * noise).relu()
    z[2, :, 5:] = 0
    z[3] *= 1e4
    return z, y


def slope(probe: Probe, z: Tensor, y: Tensor) -> float:
    """The largest entry of the gradient, by autograd from the formula."""
    W, b = (part.clone().requires_grad_(True) for part in (probe.W, probe.b))
    logits = (z.double() - probe.centre) * probe.gain @ W + b
    (cross_entropy(logits, y) + W.square().sum() / (2 * probe.C * len(y))).backward()
    assert W.grad is not None and b.grad is not None
    return float(max(W.grad.abs().max(), b.grad.abs().max()))


def test_every_probe_is_a_minimum_of_its_own_objective() -> None:
    z, y = coded()
    for code, path in zip(z, fit_paths(z, y), strict=True):
        assert [probe.C for probe in path] == list(logistic.PENALTIES)
        assert max(slope(probe, code, y) for probe in path) < SLOPE
    for code, probe in zip(z, fit_all_as_scikit_learn(z, y), strict=True):
        assert probe.C == 1 and slope(probe, code, y) < SLOPE


def test_a_code_has_the_probes_it_has_alone() -> None:
    z, y = coded()
    for code, path, specs in zip(z, fit_paths(z, y), fit_all_as_scikit_learn(z, y), strict=True):
        for mine, alone in zip(
            [*path, specs], [*fit_paths(code[None], y)[0], fit_as_scikit_learn(code, y)], strict=True
        ):
            torch.testing.assert_close(mine.W, alone.W, rtol=0, atol=1e-8)
            torch.testing.assert_close(mine.b, alone.b, rtol=0, atol=1e-8)
            assert mine.accuracy(code, y) == alone.accuracy(code, y)


def test_where_a_path_begins_does_not_matter() -> None:
    z, y = coded()
    late = [path[0] for path in fit_paths(z, y, (0.1,))]
    for mine, alone in zip([path[-1] for path in fit_paths(z, y, (1e-4, 1e-2, 0.1))], late, strict=True):
        torch.testing.assert_close(mine.W, alone.W, rtol=0, atol=5e-3)


def test_a_dead_code_is_read_as_the_shares_of_the_classes() -> None:
    _, y = coded()
    ((probe,),) = fit_paths(torch.zeros(1, ROWS, 3), y, (1.0,))
    torch.testing.assert_close(probe.b.softmax(dim=0), y.bincount() / ROWS, rtol=0, atol=1e-4, check_dtype=False)
    assert not probe.W.any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpus_probes_are_the_cpus() -> None:
    z, y = coded()
    there = fit_paths(z.cuda(), y.cuda()), fit_all_as_scikit_learn(z.cuda(), y.cuda())
    here = fit_paths(z, y), fit_all_as_scikit_learn(z, y)
    for code, paths, specs, paths_here, specs_here in zip(z, *there, *here, strict=True):
        for far, near in zip([*paths, specs], [*paths_here, specs_here], strict=True):
            torch.testing.assert_close(far.W.cpu(), near.W, rtol=0, atol=2e-3)
            assert far.accuracy(code.cuda(), y.cuda()) == pytest.approx(near.accuracy(code, y), abs=0.002)
