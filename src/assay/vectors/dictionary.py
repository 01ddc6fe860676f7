"""This data set has rows made of few atoms of a known dictionary, so the ideal code is known.

    x = sum_j f_j c_j D_j + noise,   |D_j| = 1,   f_j fires with probability active / atoms,   c_j ~ U(0.5, 1.5)

More atoms than inputs is the regime sparse coders are for: superposition. With `hierarchy`, atoms come in threes, a
parent and two children, and a child fires only where its parent does, half the time: a coder may absorb the parent.

Differs from the spec: its synthetic rows have 784 inputs and 10 atoms, of which 1 to 3 fire; here are 64 inputs and 512
atoms, each of which fires by itself, 8 on average, and the noise is .05 where the spec's is .1. `hierarchy` is ours.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from assay.core.errors import UserError
from assay.vectors import vectors
from assay.vectors.base import Planted

CHILDREN = 2


@vectors.register("dictionary")
@dataclass(frozen=True, kw_only=True)
class Dictionary(Planted):
    """Rows made of few atoms of a known dictionary, more atoms than inputs."""

    d_in: int = 64
    atoms: int = 512
    """Directions that rows are made of."""
    active: float = 8.0
    """Atoms of a row, on average."""
    noise: float = 0.05
    rows: int = 20_000
    hierarchy: bool = False
    """Whether two of three atoms fire only with their parent."""
    draw: int = 0
    """Seed of the dictionary and its rows."""

    def __post_init__(self) -> None:
        if min(self.d_in, self.atoms, self.rows // 4) < 1 or not 0 < self.active <= self.atoms or self.noise < 0:
            raise UserError(
                f"dictionary: d_in={self.d_in}, atoms={self.atoms}, rows={self.rows} must be at least 1 (4 rows), "
                f"active={self.active} between 0 and the atoms, noise={self.noise} not negative."
            )

    @property
    def parents(self) -> tuple[int, ...] | None:
        return tuple(self._parents().tolist()) if self.hierarchy else None

    def fired(self, rows: int, rng: torch.Generator) -> Tensor:
        draws = torch.rand(rows, self.atoms, generator=rng)
        size = 0.5 + torch.rand(rows, self.atoms, generator=rng)
        if not self.hierarchy:
            return (draws < self.active / self.atoms) * size
        parents = self._parents()
        is_parent = parents == torch.arange(self.atoms)
        # A parent with 2 children, each firing with probability 1/2, fires 2 atoms on average.
        share = self.active / (is_parent.sum() * (1 + CHILDREN / 2))
        fires = torch.where(is_parent, draws < share, draws < 0.5)
        return (fires & fires[:, parents]) * size

    def _parents(self) -> Tensor:
        """Return the parent of each atom of a hierarchy; a parent is its own."""
        return torch.arange(self.atoms) // (1 + CHILDREN) * (1 + CHILDREN)
