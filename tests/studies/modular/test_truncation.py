"""Truncation: what is left of a model with fewer units, against fits and cuts written out."""

import torch

from assay.nn.random import initialised_from
from assay.studies.modular import figures
from assay.studies.modular.bilinear import Model, addition_table, constructive_model, init_model, one_hot
from assay.studies.modular.metrics.spectra import interaction_matrices
from assay.studies.modular.metrics.tensor_similarity import hidden


def model(P: int = 7, width: int = 6) -> Model:
    with initialised_from(1, "truncation"):
        return init_model(P, width).double()


def accuracy(logits: torch.Tensor, P: int) -> float:
    return float((logits.argmax(dim=1) == addition_table(P)[2]).double().mean())


def test_units_are_refitted_by_least_squares() -> None:
    given = model()
    units, logits = hidden(given), hidden(given) @ given.w_p.T.detach()
    order = (units.norm(dim=0) * given.w_p.norm(dim=0)).argsort(descending=True)
    for d, found in enumerate(figures.truncated_to_units(given).tolist(), start=1):
        some = units[:, order[:d]]
        assert found == accuracy(some @ torch.linalg.lstsq(some, logits).solution, 7)


def test_forms_are_cut_to_their_largest_eigenvalues() -> None:
    given = model()
    a, b, _ = addition_table(7)
    x = one_hot(a, b, 7).double()
    values, vectors = torch.linalg.eigh(interaction_matrices(given))
    for d, found in enumerate(figures.truncated_to_eigenvalues(given).tolist(), start=1):
        cut = []
        for lam, v in zip(values, vectors, strict=True):
            top = lam.abs().argsort(descending=True)[: 2 * d]
            cut.append(v[:, top] * lam[top] @ v[:, top].T)
        assert found == accuracy(torch.einsum("ni,rij,nj->nr", x, torch.stack(cut), x), 7)


def test_nothing_is_lost_at_full_width_and_four_units_are_enough() -> None:
    given, four = model(), constructive_model(7)
    whole = accuracy(hidden(given) @ given.w_p.T.detach(), 7)
    assert figures.truncated_to_units(given)[-1] == figures.truncated_to_eigenvalues(given)[-1] == whole
    assert figures.truncated_to_units(four)[-1] == 1 and figures.truncated_to_eigenvalues(four)[1] == 1
