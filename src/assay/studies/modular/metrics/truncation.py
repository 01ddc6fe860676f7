"""Cuts a wide model down to d units, and scores what is left: is the width at which training fails a limit of capacity?

units   the d units that move the logits most, with the readout that best gives back the wide model's logits
eigen   each remainder's form cut to its 2d largest eigenvalues, the rank that d units allow. These forms need not
        share units, so that this is more than a model of width d can hold: a bound, not a model
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from assay.studies.modular.bilinear import addition_table
from assay.studies.modular.metrics.spectra import eigendecomposition
from assay.studies.modular.metrics.tensor_similarity import Factors, hidden, weights

Accuracies = Float[Tensor, " widths"]


@torch.no_grad()
def truncated_to_units(model: Factors) -> Accuracies:
    """The share of all P^2 pairs answered with 1, 2, ... d_hidden units left."""
    plain, units = weights(model), hidden(model)
    strength = units.norm(dim=0) * plain.w_p.norm(dim=0)
    units = units[:, strength.argsort(descending=True)]
    logits = hidden(model) @ plain.w_p.T
    # Orthogonal directions of the first 1, 2, ... units: each adds its own part of the logits to the best fit.
    basis = torch.linalg.qr(units).Q
    target, kept = addition_table(plain.P)[2], torch.zeros_like(logits)
    found = []
    for direction in basis.unbind(dim=1):
        kept += torch.outer(direction, direction @ logits)
        found.append((kept.argmax(dim=1) == target).double().mean())
    return torch.stack(found)


@torch.no_grad()
def truncated_to_eigenvalues(model: Factors) -> Accuracies:
    """The share of all P^2 pairs answered with 2, 4, ... eigenvalues of each form left."""
    values, vectors = eigendecomposition(model)
    P = len(values)
    target, kept = addition_table(P)[2], values.new_zeros(P, P, P)
    found = []
    for k in range(values.shape[1]):
        first, second = vectors[:, :P, k], vectors[:, P:, k]
        kept += values[:, k, None, None] * (first[:, :, None] + second[:, None, :]).square_()
        if k % 2:
            logits = rearrange(kept, "r a b -> (a b) r")
            found.append((logits.argmax(dim=1) == target).double().mean())
    return torch.stack(found)
