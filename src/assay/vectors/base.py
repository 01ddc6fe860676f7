"""Vectors to code: a training part, a part to choose learning rates and penalties on, and a part to report on.

assay.data.places says where their files are looked for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from assay.core.errors import UserError
from assay.core.plugin import Plugin, Registry
from assay.data.named import REMEDY
from assay.nn.preparation import Preparation
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
    parents: tuple[int, ...] | None = None
    """For each atom the one that fires wherever it does, itself where there is none; where there is a hierarchy."""
    image: tuple[int, int] | None = None
    """Height and width, where rows are images."""
    splice: Callable[[Callable[[Tensor], Tensor]], dict[str, float]] | None = None
    """Measures the effect of a reconstruction of the test rows on the network they come from, if there is one."""
    preparation: Preparation | None = None
    """How the rows were made from raw ones; None where they are as the data set has them."""
    streamed: bool = False
    """Whether coders are trained on a stream, of which the training rows here are a sample."""

    @property
    def d_in(self) -> int:
        return self.train.x.shape[1]


class VectorData(Plugin):
    """vectors/<name>.py. The promises are in assay.contracts.vectors."""

    registry: ClassVar[Registry] = vectors
    remedy: ClassVar[str] = "This data set needs no files."
    """How to get its files, for the error where the data folder does not exist."""
    streams: ClassVar[bool] = False
    """Whether coders are trained on a stream of rows, of which `load` gives a sample (vectors.stream)."""
    prepares: ClassVar[bool] = False
    """Whether rows are centred and scaled: `Vectors.preparation` then says by how much."""

    def locate(self) -> None:
        """Find the files, or raise an error that says what to do; does nothing without files."""

    def check(self, folder: Path | None = None) -> None:
        """Raise where loading would, as far as the options, missing files and small files tell; nothing is fetched."""

    def missing(self, folder: Path | None = None) -> list[str]:
        """Name what is neither in the folder nor in a cache, and a run would fetch. Nothing is fetched here."""
        return []

    def fingerprint(self, folder: Path | None = None) -> str | None:
        """Hash the files that the options name, looked for in the folder. It is part of a run's id, so that files of
        one name are not confused. None where there are no files, or one is absent."""
        return None

    def shape(self) -> tuple[int, int] | None:
        """The numbers of training rows and of inputs, where they are known without loading anything."""
        return None

    def width(self) -> int | None:
        """The number of inputs, where it is known without loading anything."""
        return shape[1] if (shape := self.shape()) else None

    def memory(self) -> int:
        """Estimate the peak bytes of loading; 0 where that is not known before."""
        rows, d_in = self.shape() or (0, 0)
        return 6 * rows * d_in  # float32; validation and test are about half as large as training

    def load(self) -> Vectors:
        """Load the data, the same every time; float32 on the CPU."""
        raise NotImplementedError(f"{type(self).__name__}.load")

    def load_with(self, device: str) -> Vectors:
        """Load the data; what has to be computed first is computed on the device."""
        return self.load()


@dataclass(frozen=True, kw_only=True)
class ModelOutputs(VectorData):
    """Options of rows that are a module's outputs, a row per token, centred and scaled."""

    remedy: ClassVar[str] = REMEDY
    prepares: ClassVar[bool] = True

    model: str = "stories260K"
    """A folder in Hugging Face format, a name on the hub, or smollm2-135m, which needs no hub."""
    hook: str = "model.layers.2"
    """The module, as `named_modules` names it."""
    context: int = 128
    """Tokens of a sequence; the first is left out."""
    longest: float = 10.0
    """Rows that are longer than the median training row by more than this factor are left out; 0 keeps all."""

    def __post_init__(self) -> None:
        if self.longest and self.longest <= 1:
            raise UserError(
                f"{self.label}: longest={self.longest:g} would leave out the rows in the middle; 0 or above 1."
            )
