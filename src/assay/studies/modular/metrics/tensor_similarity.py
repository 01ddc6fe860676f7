"""Measures how similar two bilinear models are: in their weights, their answers, and their hidden units.

A model z = W_p [(W_l x) * (W_r x)] is a quadratic form per output, z_p(x) = x^T B_p x with B_p symmetric. Its weights
are compared as these forms, <M1, M2> = sum_p <B1_p, B2_p>, which is found from the factors without making any B:

    sum_hk  1/2 [(L1 L2^T)(R1 R2^T) + (L1 R2^T)(R1 L2^T)]_hk  (W_p1^T W_p2)_hk        products entry by entry

It does not change where the forms do not: under exchange of L and R, and by order and scale of the units.

Inputs are [onehot(a); onehot(b)], so most entries of B_p meet no input: `entries="reachable"` leaves those out. Softmax
ignores what is added to all outputs: `centred(model)` leaves that out, in every comparison here.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, assert_never, runtime_checkable

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

Entries = Literal["all", "reachable"]
Matrix = Float[np.ndarray, "models models"]
UNITS = 192
"""Hidden units compared with all others at a time."""
LOGITS = 2**24
"""Most logits in memory at a time, over all models."""
EPSILON = 1e-8
"""Added to the norm of a row of logits, as in the spec: a row of zeros is like nothing."""


@runtime_checkable
class Factors(Protocol):
    """Anything with the three matrices of a bilinear model."""

    @property
    def w_l(self) -> Tensor: ...
    @property
    def w_r(self) -> Tensor: ...
    @property
    def w_p(self) -> Tensor: ...


@dataclass(frozen=True)
class Weights:
    """The three matrices alone, without gradients."""

    w_l: Float[Tensor, "d_hidden inputs"]
    w_r: Float[Tensor, "d_hidden inputs"]
    w_p: Float[Tensor, "P d_hidden"]

    @property
    def P(self) -> int:
        return len(self.w_p)


def weights(model: Factors, dtype: torch.dtype = torch.float64) -> Weights:
    return Weights(*(part.detach().to(dtype) for part in (model.w_l, model.w_r, model.w_p)))


def centred(model: Factors) -> Weights:
    """The model with the mean over outputs taken from every logit: the same after softmax."""
    plain = weights(model)
    return Weights(plain.w_l, plain.w_r, plain.w_p - plain.w_p.mean(dim=0))


def symmetric_inner(model1: Factors, model2: Factors, *, entries: Entries = "all") -> Float[Tensor, ""]:
    """<M1, M2> over all entries of the symmetric forms, or over those that an input reaches."""
    return torch.tensor(symmetric_inner_matrix([model1, model2], entries=entries)[0, 1])


def symmetric_similarity(model1: Factors, model2: Factors, *, entries: Entries = "all") -> Float[Tensor, ""]:
    """The cosine of two models' forms, in [-1, 1]; 0 where one of them is zero."""
    return torch.tensor(symmetric_similarity_matrix([model1, model2], entries=entries)[0, 1])


@torch.no_grad()
def symmetric_inner_matrix(
    models: Sequence[Factors], *, entries: Entries = "all", dtype: torch.dtype = torch.float64
) -> Matrix:
    """<M_i, M_j> of all pairs: the units of all models as one, then sums over each pair's block."""
    plain = [weights(model, dtype) for model in models]
    sizes = [len(w.w_l) for w in plain]
    found = np.zeros((len(plain), len(plain)))
    for block in _blocks(sizes, UNITS):  # and those that follow: the rest is the mirror image
        some, rest = _stacked(plain[block]), _stacked(plain[block.start :])
        gram = _core(some, rest, entries).mul_(some.w_p.T @ rest.w_p).cpu().numpy()
        starts = np.cumsum([0, *sizes[block.start : -1]])
        by_model = np.add.reduceat(np.add.reduceat(gram, starts, axis=1), starts[: block.stop - block.start], axis=0)
        found[block, block.start :] = by_model
    return np.triu(found) + np.triu(found, 1).T


def symmetric_similarity_matrix(
    models: Sequence[Factors], *, entries: Entries = "all", dtype: torch.dtype = torch.float64
) -> Matrix:
    """`symmetric_similarity` of all pairs."""
    return cosines(symmetric_inner_matrix(models, entries=entries, dtype=dtype))


def cosines(inner: Matrix) -> Matrix:
    """Inner products over norms, in [-1, 1], a diagonal of exactly 1; 0 beside a model of norm zero."""
    norms = np.sqrt(np.maximum(np.diag(inner), 0))
    scale = np.outer(norms, norms)
    found = np.clip(np.divide(inner, scale, out=np.zeros_like(inner), where=scale > 0), -1, 1)
    np.fill_diagonal(found, 1)
    return found


@torch.no_grad()
def activation_similarity_matrix(models: Sequence[Factors], *, dtype: torch.dtype = torch.float64) -> Matrix:
    """The cosine of the logits, averaged over all P^2 inputs, of all pairs: rows are normalised once, and one product
    has every pair."""
    plain = [weights(model, dtype) for model in models]
    total = _gram(
        logits.mul_(logits.norm(dim=-1, keepdim=True).add_(EPSILON).reciprocal_()) for logits in _logits(plain)
    )
    found = np.clip(total / plain[0].P ** 2, -1, 1)
    np.fill_diagonal(found, 1)
    return found


@torch.no_grad()
def logit_similarity_matrix(models: Sequence[Factors], *, dtype: torch.dtype = torch.float64) -> Matrix:
    """The cosine of the whole tables of logits of all pairs, on which no unused weight has an effect."""
    plain = [weights(model, dtype) for model in models]
    return cosines(_gram(_logits(plain)))


@torch.no_grad()
def hidden(model: Factors) -> Float[Tensor, "pairs d_hidden"]:
    """The hidden units on all P^2 inputs; row aP + b."""
    plain = weights(model)
    return rearrange(_hidden(plain, slice(0, plain.P)), "a b d -> (a b) d")


@torch.no_grad()
def all_logits(model: Factors) -> Float[Tensor, "pairs P"]:
    """The logits on all P^2 inputs; row aP + b."""
    return hidden(model) @ weights(model).w_p.T


@torch.no_grad()
def hidden_similarity_matrices(models: Sequence[Factors]) -> tuple[Matrix, Matrix]:
    """Two similarities of all pairs' hidden units X and Y, centred over inputs, in [0, 1], from one pass over the
    products: linear CKA, |X^T Y|^2 / (|X^T X| |Y^T Y|) (Kornblith et al. 2019), and the best cosine of X and Y Q over
    orthogonal Q, the nuclear norm of X^T Y over |X| |Y|. Both are 1 where one is a rotation and a scaling of the other.
    """
    units = [x - x.mean(dim=0) for x in map(hidden, models)]
    cka, nuclear = np.zeros((2, len(units), len(units)))
    for i, x in enumerate(units):
        products = (x.T @ torch.cat(units[i:], dim=1)).split([y.shape[1] for y in units[i:]], dim=1)
        for j, product in enumerate(products, start=i):
            cka[i, j] = cka[j, i] = product.square().sum()
            nuclear[i, j] = nuclear[j, i] = torch.linalg.svdvals(product).sum()
    return cosines(cka), cosines(nuclear)


def _core(one: Weights, other: Weights, entries: Entries) -> Float[Tensor, "d_1 d_2"]:
    """The inner products of two models' units as symmetric matrices 1/2 (l r^T + r l^T)."""
    l1, r1, l2, r2 = one.w_l, one.w_r, other.w_l, other.w_r
    if entries == "all":
        return ((l1 @ l2.T).mul_(r1 @ r2.T)).add_((l1 @ r2.T).mul_(r1 @ l2.T)).div_(2)
    if entries == "reachable":
        P = one.P
        (la1, lb1), (ra1, rb1), (la2, lb2), (ra2, rb2) = (part.split(P, dim=1) for part in (l1, r1, l2, r2))
        diagonal = (l1 * r1) @ (l2 * r2).T
        straight = (la1 @ la2.T).mul_(rb1 @ rb2.T).add_((ra1 @ ra2.T).mul_(lb1 @ lb2.T))
        crossed = (la1 @ ra2.T).mul_(rb1 @ lb2.T).add_((ra1 @ la2.T).mul_(lb1 @ rb2.T))
        return straight.add_(crossed).div_(2).add_(diagonal)
    assert_never(entries)


def unit_products(one: Factors, other: Factors) -> Float[Tensor, "d_1 d_2"]:
    """The inner products of two models' units with their readouts, of which <M1, M2> is the sum."""
    a, b = weights(one), weights(other)
    return _core(a, b, "all").mul_(a.w_p.T @ b.w_p)


def _stacked(models: Sequence[Weights]) -> Weights:
    """All units as those of one model."""
    parts = [(w.w_l, w.w_r, w.w_p.T) for w in models]
    left, right, out = (torch.cat(part) for part in zip(*parts, strict=True))
    return Weights(left, right, out.T)


def _blocks(sizes: Sequence[int], limit: int) -> Iterator[slice]:
    """Neighbours whose sizes add up to at most the limit, or single ones."""
    start = total = 0
    for place, size in enumerate(sizes):
        if total + size > limit and place > start:
            yield slice(start, place)
            start, total = place, 0
        total += size
    yield slice(start, len(sizes))


def _hidden(model: Weights, rows: slice) -> Float[Tensor, "a b d_hidden"]:
    """Units for some a and all b: an input has two ones, so W x is a sum of two columns."""
    (la, lb), (ra, rb) = (part.T.split(model.P) for part in (model.w_l, model.w_r))
    return (la[rows, None] + lb).mul_(ra[rows, None] + rb)


def _logits(models: Sequence[Weights]) -> Iterator[Float[Tensor, "models rows P"]]:
    """All models' logits, for some a at a time and all b; the next ones are written over them. A row of zeros follows:
    without it the tables of two models lie a power of two apart, and push each other out of the processor's cache."""
    P, like = models[0].P, models[0].w_p
    size = min(P, max(1, LOGITS // (P * P * len(models))))
    room = like.new_zeros(len(models), size * P + 1, P)
    for start in range(0, P, size):
        rows = (min(start + size, P) - start) * P
        room[:, rows:] = 0
        for model, own in zip(models, room, strict=True):
            units = rearrange(_hidden(model, slice(start, start + size)), "a b d -> (a b) d")
            torch.mm(units, model.w_p.T, out=own[:rows])
        yield room


def _gram(parts: Iterable[Float[Tensor, "models rows P"]]) -> Matrix:
    """The inner products of all pairs, the parts' added up."""
    return np.sum([_products(rearrange(part, "models rows P -> models (rows P)")) for part in parts], axis=0)


def _products(flat: Float[Tensor, "models entries"]) -> Matrix:
    """Multiply every row with every row. NumPy finds one half of a matrix times its own transpose and mirrors it; torch
    finds both, but has them where the rows are."""
    if flat.device.type != "cpu":
        return (flat @ flat.T).double().cpu().numpy()
    rows = flat.numpy()
    return (rows @ rows.T).astype(np.float64)
