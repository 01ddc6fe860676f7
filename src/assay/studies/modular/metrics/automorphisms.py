"""The symmetries of modular addition, and similarity up to them.

For any unit k of Z/P and any shifts s, t, a model that adds also adds after

    a -> k a + s,   b -> k b + t,   r -> k r + s + t,        with or without exchanging a and b

Two models that use one algorithm at different frequencies differ by a k, and by their weights look unrelated. The
maximum over the group tells that from two algorithms. A maximum flatters every pair: compare it with the maximum of
pairs that have nothing in common.

All P^2 shifts are found at once. A form is laid out so that s moves the first axis and t the second and nothing else
moves; then the inner products with all shifted forms are one correlation, by FFT.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Complex, Float
from torch import Tensor

from assay.studies.modular.metrics.tensor_similarity import Factors, Matrix, Weights, cosines, weights

TOGETHER = 16
"""Models per block of pairs: some 2 MB each at P = 64."""


@torch.no_grad()
def automorphism_similarity_matrix(models: Sequence[Factors]) -> Matrix:
    """The largest `symmetric_similarity` of one model with the images of the other, over reachable entries, of all
    pairs."""
    plain = [weights(model) for model in models]
    found = np.zeros((len(plain), len(plain)))
    blocks = [range(start, min(start + TOGETHER, len(plain))) for start in range(0, len(plain), TOGETHER)]
    for i, rows in enumerate(blocks):
        one = torch.stack([layout(plain[k]) for k in rows])
        for columns in blocks[i:]:
            other = one if columns is rows else torch.stack([layout(plain[k]) for k in columns])
            best = _largest(one, other).cpu().numpy()
            found[np.ix_(rows, columns)] = best
            found[np.ix_(columns, rows)] = best.T
    norms = [float(layout(w).norm()) for w in plain]
    np.fill_diagonal(found, np.square(norms))
    return cosines((found + found.T) / 2)


@torch.no_grad()
def layout(model: Weights) -> Float[Tensor, "P P channels"]:
    """The entries of the forms B_r that an input reaches, so placed that shifting a by s and b by t rolls the first two
    axes by s and t. Of the aa and bb blocks that is the diagonal.

        ab block      [a, b, c]    r = a + b + c    counted twice, as it is in a symmetric form
        aa diagonal   [a, c]       r = a + c        moving r by s + t and a by s moves c by t
        bb diagonal   [c, b]       r = b + c

    All indices are multiplied by k with a, b and r."""
    (la, lb), (ra, rb) = (part.T.split(model.P) for part in (model.w_l, model.w_r))
    n = torch.arange(model.P, device=model.w_p.device)
    i, j, k = n[:, None, None], n[None, :, None], n[None, None, :]
    ab = math.sqrt(2) * ((la[:, None] * rb + ra[:, None] * lb) @ model.w_p.T / 2)
    aa, bb = (left * right @ model.w_p.T for left, right in ((la, ra), (lb, rb)))
    r = (i + j) % model.P
    return torch.cat([ab[i, j, (i + j + k) % model.P], aa[i, r], bb[j, r]], dim=2)


def _largest(
    one: Float[Tensor, "rows P P channels"], other: Float[Tensor, "columns P P channels"]
) -> Float[Tensor, "rows columns"]:
    """The largest inner product of each pair, over all images of the second."""
    P = one.shape[1]
    first = rearrange(torch.fft.rfft2(one, dim=(1, 2)), "i f g c -> (f g) i c").conj().resolve_conj()
    best = one.new_full((len(one), len(other)), -torch.inf)
    for image in _images(rearrange(torch.fft.fft2(other, dim=(1, 2)), "j f g c -> f g c j").contiguous()):
        product = torch.bmm(first, rearrange(image, "f g c j -> (f g) c j"))
        shifted = torch.fft.irfft2(rearrange(product, "(f g) i j -> i j f g", f=P), s=(P, P))
        best = torch.maximum(best, shifted.amax(dim=(2, 3)))
    return best


def _images(spectrum: Complex[Tensor, "P P channels models"]) -> Iterator[Complex[Tensor, "P half channels models"]]:
    """Spectra under all multipliers and the swap: where positions are multiplied by k, frequencies are divided by it.
    The swap exchanges the first two axes, and the aa channel with the bb channel. Shifts are left to the correlation.
    """
    P = len(spectrum)
    n, aa, bb = torch.arange(P + 2, device=spectrum.device).split([P, 1, 1])
    for k in (k for k in range(1, P) if math.gcd(k, P) == 1):
        times, over = k * n % P, pow(k, -1, P) * n % P
        f, g = over[:, None, None], over[None, : P // 2 + 1, None]
        yield spectrum[f, g, torch.cat([times, aa, bb])]
        yield spectrum[g, f, torch.cat([times, bb, aa])]
