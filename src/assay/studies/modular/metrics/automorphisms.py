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

from assay.studies.modular.metrics.tensor_similarity import Entries, Factors, Matrix, Weights, cosines, weights

TOGETHER = 16
"""Models per block of pairs: some 2 MB each at P = 64 over reachable entries, 7 over all."""


@torch.no_grad()
def automorphism_similarity_matrix(models: Sequence[Factors], *, entries: Entries = "reachable") -> Matrix:
    """The largest `symmetric_similarity` of one model with the images of the other, of all pairs."""
    plain = [weights(model) for model in models]
    found = np.zeros((len(plain), len(plain)))
    blocks = [range(start, min(start + TOGETHER, len(plain))) for start in range(0, len(plain), TOGETHER)]
    for i, rows in enumerate(blocks):
        one = torch.stack([layout(plain[k], entries) for k in rows])
        for columns in blocks[i:]:
            other = one if columns is rows else torch.stack([layout(plain[k], entries) for k in columns])
            best = _largest(one, other).cpu().numpy()
            found[np.ix_(rows, columns)] = best
            found[np.ix_(columns, rows)] = best.T
    norms = [float(layout(w, entries).norm()) for w in plain]
    np.fill_diagonal(found, np.square(norms))
    return cosines((found + found.T) / 2)


@torch.no_grad()
def layout(model: Weights, entries: Entries) -> Float[Tensor, "P P channels"]:
    """The entries of the forms B_r, so placed that shifting a by s and b by t rolls the first two axes by s and t.

        ab block   [a, b, c]        r = a + b + c         counted twice, as it is in a symmetric form
        aa block   [a, c, e]        a' = a + e, r = a + c      moving r by s + t and a by s moves c by t
        bb block   [c, b, e]        b' = b + e, r = b + c

    All indices are multiplied by k with a, b and r; of the aa and bb blocks inputs reach e = 0 alone."""
    (la, lb), (ra, rb) = (part.T.split(model.P) for part in (model.w_l, model.w_r))
    n = torch.arange(model.P, device=model.w_p.device)
    i, j, k = n[:, None, None], n[None, :, None], n[None, None, :]
    ab = math.sqrt(2) * _form(la, ra, lb, rb, model.w_p)[i, j, (i + j + k) % model.P]
    e = k if entries == "all" else k[..., :1]
    aa, bb = (_form(x, y, x, y, model.w_p)[i, (i + e) % model.P, (i + j) % model.P] for x, y in ((la, ra), (lb, rb)))
    return torch.cat([ab, aa, rearrange(bb, "b c e -> c b e")], dim=2)


def _form(l1: Tensor, r1: Tensor, l2: Tensor, r2: Tensor, w_p: Tensor) -> Float[Tensor, "P P P"]:
    """A block of the symmetric forms: 1/2 sum_h (l r^T + r l^T)[x, y] w_p[r]; the last axis is r."""
    pairs = l1[:, None] * r2 + r1[:, None] * l2
    return pairs @ w_p.T / 2


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
    The swap exchanges the first two axes, and the aa channels with the bb channels. Shifts are left to the correlation.
    """
    P, channels = spectrum.shape[0], spectrum.shape[2]
    side = (channels - P) // 2
    n = torch.arange(P, device=spectrum.device)
    for k in (k for k in range(1, P) if math.gcd(k, P) == 1):
        times, over = k * n % P, pow(k, -1, P) * n % P
        aa, bb = (start + (times if side == P else n[:1]) for start in (P, P + side))
        f, g = over[:, None, None], over[None, : P // 2 + 1, None]
        yield spectrum[f, g, torch.cat([times, aa, bb])]
        yield spectrum[g, f, torch.cat([times, bb, aa])]
