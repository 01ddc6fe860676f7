"""Feature absorption is measured where atoms and their hierarchy are known (Chanin et al. 2024, arXiv 2409.14507).

A child implies its parent. A coder absorbs the parent where the parent's unit stays silent on a row that has the
child, and another unit carries the parent's direction instead. As SAEBench counts it ("full absorption", Karvonen et
al. 2025), a row with a child, and so with the parent p, is absorbed if

    the parent's unit is silent,
    and of all units that which adds the most along p:  a_i W_i . p  has  cos(W_i, p) >= .025
    and adds at least .4 of what there is:              a_i W_i . p >= .4 (x - b) . p

The score is the share of such rows, over the rows that have a child, and the mean over parents. The true dictionary
with the true code scores 0: the parent's unit always fires. A coder whose child units are parent + child, and whose
parent unit fires without children alone, scores nearly 1 (.9 where noise and other atoms blur what there is along p).

Differs from SAEBench, which has no truth: there p is a logistic probe and the parent's unit is found by k-sparse
probing; here p is the parent's atom, and its unit the one that is matched with it one to one. W and b are of the ridge
decoder that every code is judged by; b, which no unit carries, is taken off. A coder that knows no parents absorbs
none: read the score beside the F1 with which parents' units detect their parents.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from assay.core.grouping import grouped
from assay.metrics.sparsity import Atoms, Code, Directions, Fired, RidgeDecoder, Rows, fires, matched

ALIGNED, CARRIED = 0.025, 0.4
"""Least cosine with the parent, and least share of its projection, of the unit that absorbs it: SAEBench's."""


def families(parents: Sequence[int], *, most: int = 16) -> dict[int, list[int]]:
    """Return the children of each atom that has any; of many parents, `most` that are evenly spaced."""
    children = [atom for atom, parent in enumerate(parents) if parent != atom]
    found = grouped(children, lambda atom: parents[atom])
    step = -(-len(found) // most) or 1
    return {parent: found[parent] for parent in sorted(found)[::step]}


@dataclass(frozen=True)
class Absorption:
    rate: float
    """Share of the rows with a child in which its parent is absorbed, the mean over parents."""
    f1: float
    """F1 with which a parent's unit fires where the parent does, the mean over parents."""


def absorption(
    directions: Directions,
    code: Code,
    decoder: RidgeDecoder,
    x: Rows,
    dictionary: Atoms,
    fired: Fired,
    parents: Sequence[int],
) -> Absorption:
    """Score a frozen code on rows whose atoms are known; parents without a unit or without a child's row are left out,
    and count as detected with F1 0 if they have no unit."""
    units, atoms, _ = matched(directions, dictionary)
    unit_of = dict(zip(atoms.tolist(), units.tolist(), strict=True))
    active, rates, scores = fires(code), [], []
    for parent, children in families(parents).items():
        if (unit := unit_of.get(parent)) is None:
            scores.append(0.0)
            continue
        there = fired[:, parent] > 0
        both = (there & active[:, unit]).sum()
        scores.append(float(2 * both / (there.sum() + active[:, unit].sum()).clamp_min(1)))
        rows = (fired[:, children] > 0).any(dim=1)
        if rows.any():
            carried = _carried(code[rows], decoder, x[rows], dictionary[parent])
            rates.append(float((carried & ~active[rows, unit]).double().mean()))
    return Absorption(rate=fmean(rates or [0.0]), f1=fmean(scores or [0.0]))


def _carried(code: Code, decoder: RidgeDecoder, x: Rows, atom: Float[Tensor, " d"]) -> Tensor:
    """Return whether one unit adds enough along the atom, by row."""
    direction = normalize(atom, dim=0)
    whole = (x - decoder.b) @ direction
    most, unit = (code * (decoder.W @ direction)).max(dim=1)
    aligned = cosine_similarity(decoder.W, direction[None]) >= ALIGNED
    return aligned[unit] & (whole > 0) & (most >= CARRIED * whole)
