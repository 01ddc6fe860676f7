"""Computes which frequencies a bilinear model adds with: p(f | r), one law over f = 0 .. P/2 per remainder r.

    eigen      sum_i |lambda_i| |rFFT(v_i[:P])|_f over the n_evecs largest eigenvalues of B_r: the spec's definition
    power      sum_i lambda_i^2 (|FFT(v_i[:P])|_f^2 + |FFT(v_i[P:])|_f^2) over all of them
    diagonal   |FFT2(B_r[:P, P:])|_(f,f)^2: what of the a-b block depends on a + b alone, which is what adding needs

The first depends on how an eigensolver turns the vectors of equal eigenvalues, and addition makes them equal in fours;
it sees the first input alone. The others depend on the form alone, and need no eigenvectors: since sum_i lambda_i^2
v_i v_i^T is B^2, `power` is the squared length of the rows of FFT(B). A frequency and its mirror image are one bin.
"""

from collections.abc import Sequence
from typing import Literal, assert_never

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.errors import UserError
from assay.studies.modular.metrics.spectra import eigendecomposition, js_divergence_matrix, shares_of
from assay.studies.modular.metrics.tensor_similarity import Factors, Matrix, Weights, weights

Kind = Literal["eigen", "power", "diagonal"]
Law = Float[np.ndarray, "P frequencies"]


@torch.no_grad()
def frequency_law(model: Factors, kind: Kind = "eigen", *, n_evecs: int = 4, dtype: torch.dtype = torch.float64) -> Law:
    """p(f | r) of a model; a row of a form that is zero is uniform."""
    if kind == "eigen":
        _check_count(n_evecs)
        values, vectors = eigendecomposition(model, dtype, largest=n_evecs)
        return eigen_law(values, vectors, n_evecs=n_evecs)
    plain = weights(model, dtype)
    if kind == "power":
        return shares_of(_power(plain).cpu())
    if kind == "diagonal":
        return shares_of(_diagonal(plain).cpu())
    assert_never(kind)


def law_divergences(models: Sequence[Factors], kind: Kind = "eigen", n_evecs: int = 4) -> Matrix:
    """The Jensen-Shannon divergence of all pairs' laws, summed over remainders as in the spec: at most P ln 2."""
    return js_divergence_matrix(np.stack([frequency_law(model, kind, n_evecs=n_evecs) for model in models]))


@torch.no_grad()
def eigen_law(
    eigenvalues: Float[Tensor, "P rank"], eigenvectors: Float[Tensor, "P inputs rank"], *, n_evecs: int = 4
) -> Law:
    """The spec's law, from eigenvalues sorted by size."""
    _check_count(n_evecs)
    first = eigenvectors[:, : len(eigenvectors), :n_evecs]
    spectrum = torch.fft.rfft(first, dim=1).abs()
    return shares_of(torch.einsum("rfi,ri->rf", spectrum, eigenvalues[:, :n_evecs].abs()).cpu())


def _check_count(n_evecs: int) -> None:
    if n_evecs < 1:
        raise UserError(f"n_evecs={n_evecs}: it is at least 1.")


def dominant_frequencies(law: Law, share: float = 0.9) -> np.ndarray:
    """Count the frequencies that make up this share of each remainder's law."""
    return 1 + (np.cumsum(-np.sort(-law, axis=1), axis=1)[:, :-1] < share).sum(axis=1)


@torch.no_grad()
def frequency_use(model: Factors) -> Float[np.ndarray, " frequencies"]:
    """The part of the right answer's logit that a model owes to each frequency, averaged over all inputs and centred
    over outputs: it goes where the frequency is taken out of all inputs, and the parts add up to the whole.

        c_f = sum_h Re[w(f) conj(l_a(f) r_b(f) + r_a(f) l_b(f))] / P^3        transforms of a unit's five vectors

    Unlike the laws it depends on phases: units of one frequency that do not work together give nothing."""
    plain = weights(model)
    (la, lb), (ra, rb) = (_halves(side, plain.P) for side in (plain.w_l, plain.w_r))
    found = (torch.fft.rfft(plain.w_p.T) * (la * rb + ra * lb).conj()).real.sum(dim=0) / plain.P**3
    found[0] = 0  # it is added to all outputs alike
    return (found * _mirrored(plain.P, found)).cpu().numpy()


@torch.no_grad()
def phase_scrambled(model: Factors, rng: torch.Generator) -> Weights:
    """Draw a new phase at every frequency of each unit's five vectors (left and right of a and of b, and the readout):
    this keeps their power spectra and destroys how units work together."""
    plain = weights(model)

    def scrambled(vectors: Float[Tensor, "*units P"]) -> Float[Tensor, "*units P"]:
        found = torch.fft.rfft(vectors)
        turn = torch.rand(found.shape, generator=rng, dtype=vectors.dtype).to(vectors.device)
        turn[..., 0] = 0  # the mean has no phase, and neither has the alternating part of an even P
        if plain.P % 2 == 0:
            turn[..., -1] = 0
        return torch.fft.irfft(found * torch.polar(torch.ones_like(turn), 2 * torch.pi * turn), n=plain.P)

    left, right = (scrambled(side.unflatten(1, (2, plain.P))).flatten(1) for side in (plain.w_l, plain.w_r))
    return Weights(left, right, scrambled(plain.w_p.T).T)


def _power(model: Weights) -> Float[Tensor, "P frequencies"]:
    """The rows of FFT(B_r), from the factors: FFT acts on one side of l r^T alone."""
    total = torch.zeros(())
    for half in (slice(0, model.P), slice(model.P, 2 * model.P)):
        left, right = (torch.fft.rfft(side[:, half], dim=1) for side in (model.w_l, model.w_r))
        rows = torch.einsum("hf,rh,hj->rfj", left, model.w_p.to(left.dtype), model.w_r.to(left.dtype))
        rows += torch.einsum("hf,rh,hj->rfj", right, model.w_p.to(left.dtype), model.w_l.to(left.dtype))
        total = total + rows.abs().square().sum(dim=2)
    return total * _mirrored(model.P, total)


def _diagonal(model: Weights) -> Float[Tensor, "P frequencies"]:
    (la, lb), (ra, rb) = (_halves(side, model.P) for side in (model.w_l, model.w_r))
    found = model.w_p.to(la.dtype) @ (la * rb + ra * lb)
    return found.abs().square() * _mirrored(model.P, found.real)


def _halves(side: Float[Tensor, "units inputs"], P: int) -> tuple[Tensor, ...]:
    """The spectra of the weights of a and of b."""
    return torch.fft.rfft(side.unflatten(1, (2, P)), dim=2).unbind(dim=1)


def _mirrored(P: int, like: Tensor) -> Float[Tensor, " frequencies"]:
    """2 where f and P - f are two frequencies, 1 where they are one."""
    f = torch.arange(P // 2 + 1, device=like.device)
    return torch.where((2 * f) % P == 0, 1.0, 2.0).to(like.dtype)
