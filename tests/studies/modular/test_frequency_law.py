"""Laws of frequencies: the spec's by its words, the others by the whole forms, none of them moved by a basis."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from assay.nn.random import initialised_from
from assay.studies.modular.bilinear import Model, constructive_model, init_model
from assay.studies.modular.metrics import frequency_law as freq
from assay.studies.modular.metrics.spectra import eigendecomposition, interaction_matrices
from assay.studies.modular.metrics.tensor_similarity import Weights, all_logits, symmetric_similarity, weights

KINDS = ("eigen", "power", "diagonal")


def model(P: int = 9, width: int = 5) -> Model:
    with initialised_from(3, "frequencies"):
        return init_model(P, width).double()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("P", [8, 9])
def test_a_law_is_a_distribution_per_remainder(kind: freq.Kind, P: int) -> None:
    law = freq.frequency_law(model(P), kind)
    assert law.shape == (P, P // 2 + 1) and (law >= 0).all()
    np.testing.assert_allclose(law.sum(axis=1), 1, atol=1e-12)


def test_the_law_of_the_spec_is_its_formula() -> None:
    P, n = 9, 3
    forms = interaction_matrices(model(P)).numpy()
    for r, row in enumerate(freq.frequency_law(model(P), "eigen", n_evecs=n)):
        values, vectors = np.linalg.eigh(forms[r])
        top = np.argsort(-np.abs(values))[:n]
        plain = sum(abs(values[i]) * np.abs(np.fft.rfft(vectors[:P, i])) for i in top)
        np.testing.assert_allclose(row, plain / plain.sum(), atol=1e-10)


@pytest.mark.parametrize("P", [8, 9])
def test_power_is_the_sum_over_all_eigenvectors(P: int) -> None:
    values, vectors = eigendecomposition(model(P))
    spectra = [np.abs(np.fft.fft(half.numpy(), axis=1)) ** 2 for half in vectors.split(P, dim=1)]
    whole = np.einsum("rfi,ri->rf", sum(spectra), values.numpy() ** 2)
    folded = np.stack([whole[:, f] + (whole[:, P - f] if 0 < f < P - f else 0) for f in range(P // 2 + 1)], axis=1)
    np.testing.assert_allclose(
        freq.frequency_law(model(P), "power"), folded / folded.sum(axis=1, keepdims=True), atol=1e-10
    )


@pytest.mark.parametrize("P", [8, 9])
def test_diagonal_is_the_diagonal_of_the_2d_transform(P: int) -> None:
    block = interaction_matrices(model(P))[:, :P, P:].numpy()
    whole = np.abs(np.stack([np.diag(np.fft.fft2(one)) for one in block])) ** 2
    folded = np.stack([whole[:, f] + (whole[:, P - f] if 0 < f < P - f else 0) for f in range(P // 2 + 1)], axis=1)
    np.testing.assert_allclose(
        freq.frequency_law(model(P), "diagonal"), folded / folded.sum(axis=1, keepdims=True), atol=1e-10
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_constructive_model_has_one_frequency(kind: freq.Kind) -> None:
    law = freq.frequency_law(constructive_model(16), kind)
    np.testing.assert_allclose(law[:, 1], 1, atol=1e-5)
    assert (freq.dominant_frequencies(law) == 1).all()


@pytest.mark.parametrize("kind", ["power", "diagonal"])
def test_a_multiplier_moves_the_frequencies_of_the_basis_free_laws(
    kind: freq.Kind, image: Callable[..., Weights]
) -> None:
    """Where a and b are multiplied by k, frequency f becomes k f, up to its sign; the remainder r is k r."""
    P, k = 11, 3
    before, after = (freq.frequency_law(m, kind) for m in (model(P), image(model(P), k)))
    fold = [min(k * f % P, -k * f % P) for f in range(P // 2 + 1)]
    np.testing.assert_allclose(after[:, fold], before[[k * r % P for r in range(P)]], atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_zeros_has_no_preference_and_no_nan(kind: freq.Kind) -> None:
    nothing = Weights(*(torch.zeros(shape, dtype=torch.float64) for shape in ((2, 10), (2, 10), (5, 2))))
    np.testing.assert_allclose(freq.frequency_law(nothing, kind), 1 / 3)


def test_dominant_frequencies_are_counted_until_the_share_is_reached() -> None:
    law = np.array([[0.95, 0.05, 0.0], [0.5, 0.3, 0.2], [1 / 3, 1 / 3, 1 / 3]])
    assert freq.dominant_frequencies(law, 0.8 - 1e-9).tolist() == [1, 2, 3]
    assert math.isclose(law.sum(), 3)


@pytest.mark.parametrize("P", [8, 9])
def test_scrambled_phases_keep_the_power_of_every_vector_and_nothing_else(P: int) -> None:
    plain, rng = model(P), torch.Generator().manual_seed(0)
    found = freq.phase_scrambled(plain, rng)

    def vectors(one: Weights | Model) -> torch.Tensor:
        return torch.cat([one.w_l[:, :P], one.w_l[:, P:], one.w_r[:, :P], one.w_r[:, P:], one.w_p.T]).detach()

    before, after = vectors(plain), vectors(found)
    torch.testing.assert_close(torch.fft.rfft(after).abs(), torch.fft.rfft(before).abs())
    assert (torch.nn.functional.cosine_similarity(before, after).abs() < 0.99).all()
    again = freq.phase_scrambled(plain, rng)
    assert not torch.allclose(vectors(again), after), "every draw is another"
    cut = freq.phase_scrambled(constructive_model(P).double(), rng)
    assert symmetric_similarity(constructive_model(P), cut) < 0.9


def test_a_frequency_is_used_by_as_much_as_the_right_answer_loses_without_it() -> None:
    """The obvious: take the frequency out of all inputs, and compare the logits of the right answers."""

    def right(of: Weights) -> float:
        logits = all_logits(of)
        P = of.P
        n = torch.arange(P)
        centred = logits - logits.mean(dim=1, keepdim=True)
        return float(centred.gather(1, ((n[:, None] + n) % P).reshape(-1, 1)).mean())

    def without(of: Weights, f: int) -> Weights:
        sides = []
        for side in (of.w_l, of.w_r):
            spectrum = torch.fft.rfft(side.unflatten(1, (2, of.P)))
            spectrum[..., f] = 0
            sides.append(torch.fft.irfft(spectrum, n=of.P).flatten(1))
        return Weights(*sides, of.w_p)

    for P in (8, 9):
        given = weights(model(P))
        use = freq.frequency_use(given)
        assert use.sum() == pytest.approx(right(given), abs=1e-12)
        assert use == pytest.approx([right(given) - right(without(given, f)) for f in range(P // 2 + 1)], abs=1e-12)
    assert np.flatnonzero(freq.frequency_use(constructive_model(9)) > 1e-6).tolist() == [1]
