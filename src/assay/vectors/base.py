"""Vectors to code: a training part, a part to choose learning rates and penalties on, and a part to report on.

assay.data.places says where their files are looked for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from assay.core.plugin import Plugin, Registry
from assay.vectors import vectors


@dataclass(frozen=True)
class Part:
    """Rows, with their labels and the units that truly fired, where those are known."""

    x: Float[Tensor, "n d_in"]
    labels: Int[Tensor, " n"] | None = None
    fired: Float[Tensor, "n atoms"] | None = None

    def __len__(self) -> int:
        return len(self.x)

    def to(self, device: str) -> "Part":
        return Part(*(None if t is None else t.to(device) for t in (self.x, self.labels, self.fired)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Vectors:
    """A data set in three parts."""

    train: Part
    validation: Part
    test: Part
    dictionary: Float[Tensor, "atoms d_in"] | None = None
    """The atoms the rows are made of, where they are known."""
    image: tuple[int, int] | None = None
    """Height and width, where rows are images."""
    splice: Callable[[Callable[[Tensor], Tensor]], dict[str, float]] | None = None
    """What a reconstruction of the test rows does to the network they come from, where there is one."""

    @property
    def d_in(self) -> int:
        return self.train.x.shape[1]


class VectorData(Plugin):
    """vectors/<name>.py. The promises are in assay.contracts.vectors."""

    registry: ClassVar[Registry] = vectors
    remedy: ClassVar[str] = "This data set needs no files."
    """How to get its files, where the data folder that is named does not exist."""

    def locate(self) -> None:
        """Find the files, or say what to do; nothing where there are none to find."""

    def check(self, folder: Path | None = None) -> None:
        """A UserError for what loading would refuse by the options alone, by what they name and is not there, and by
        files in the folder that are small; nothing is fetched."""

    def missing(self, folder: Path | None = None) -> list[str]:
        """What is neither in the folder nor in a cache, by name: a run fetches it, or says how to. Nothing is
        fetched."""
        return []

    def fingerprint(self, folder: Path | None = None) -> str | None:
        """A hash of the files behind the options, looked for in the folder: part of a run's identity, so that files of
        one name are not taken for one another. None where the options alone say what is coded, or a file is absent."""
        return None

    def shape(self) -> tuple[int, int] | None:
        """Rows to train on and inputs, where they are known without loading anything."""
        return None

    def memory(self) -> int:
        """Bytes that it holds at once while it is loaded, about; 0 where that is not known before."""
        rows, d_in = self.shape() or (0, 0)
        return 6 * rows * d_in  # in float32; what is chosen and reported on is about half as much as what trains

    def load(self) -> Vectors:
        """The data, the same every time; float32 on the CPU."""
        raise NotImplementedError(f"{type(self).__name__}.load")

    def load_with(self, device: str) -> Vectors:
        """The same, with the device there is for what has to be computed first."""
        return self.load()
