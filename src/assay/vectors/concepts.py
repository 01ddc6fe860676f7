"""This data set has rows of planted concepts, some of which imply others, so that absorption can be measured.

    x = sum_j f_j c_j D_j + noise,   |D_j| = 1,   c_j ~ U(0.9, 1.1)

    atoms      how many                  a row has it                       "animal", "cat", "blue"
    concepts   concepts                  with probability .2
    children   concepts x children       .25, and only where its concept    a child implies its concept
    free       free                      .05, by itself

A coder that pays for active units may leave the concept's unit silent where a child fires and give the child's unit
both directions: absorption (Chanin et al. 2024, arXiv 2409.14507, which shows it on such a toy). Sizes are nearly
equal, as in their toy, so that one unit can stand for two atoms. A row has as many concepts as happen to fire: each is
a yes-or-no label of the row, which k-sparse probing and concept erasure are scored on.

Differs from the paper: its toy has few features and no free ones; here a row has 8 of 136 atoms, in 64 inputs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from assay.core.errors import UserError
from assay.vectors import vectors
from assay.vectors.base import Planted

CONCEPT, CHILD, FREE = 0.2, 0.25, 0.05
"""Probabilities that a row has a concept, a child of a concept it has, and a free atom."""
SPREAD = 0.1


@vectors.register("concepts")
@dataclass(frozen=True, kw_only=True)
class Concepts(Planted):
    """Rows of planted concepts with children that imply them: labelled, and with known atoms."""

    d_in: int = 64
    concepts: int = 8
    """Atoms that have children, at least 2; each is a label of the rows."""
    children: int = 4
    """Atoms of each concept that fire only where it does."""
    free: int = 96
    """Atoms that imply nothing."""
    noise: float = 0.05
    rows: int = 20_000
    draw: int = 0
    """Seed of the atoms and the rows."""

    def __post_init__(self) -> None:
        if min(self.d_in, self.children, self.rows // 4) < 1 or self.concepts < 2 or self.free < 0 or self.noise < 0:
            raise UserError(
                f"concepts: d_in={self.d_in}, children={self.children}, rows={self.rows} must be at least 1 (4 rows), "
                f"concepts={self.concepts} at least 2, free={self.free} and noise={self.noise} not negative."
            )

    @property
    def atoms(self) -> int:  # type: ignore[override]
        return self.concepts * (1 + self.children) + self.free

    @property
    def parents(self) -> tuple[int, ...]:
        """For each atom the one it implies, itself where there is none: concepts first, then children, then free."""
        of_children = [concept for concept in range(self.concepts) for _ in range(self.children)]
        return (*range(self.concepts), *of_children, *range(self.atoms - self.free, self.atoms))

    def fired(self, rows: int, rng: torch.Generator) -> Tensor:
        chances = [CONCEPT] * self.concepts + [CHILD] * (self.concepts * self.children) + [FREE] * self.free
        draws = torch.rand(rows, self.atoms, generator=rng) < torch.tensor(chances)
        size = 1 - SPREAD + 2 * SPREAD * torch.rand(rows, self.atoms, generator=rng)
        return (draws & draws[:, list(self.parents)]) * size
