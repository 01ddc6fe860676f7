"""The reader of pickles takes them for data: an attack is refused in one line, and no mutation crashes or fills it."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from assay.core.errors import UserError
from assay.studies.modular import files, pickles

FUZZ = Path(__file__).parent / "pickle_fuzz.py"


@pytest.fixture(scope="session")
def fuzz(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("tests/studies/modular/pickle_fuzz.py")


def run(folder: Path, first: int, count: int) -> list[int]:
    ran = subprocess.run(
        [sys.executable, str(FUZZ), str(folder), str(first), str(count)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, f"it ended with {ran.returncode}: {ran.stderr[-2000:]}"
    return [int(word) for word in ran.stdout.split()]


def test_mutated_pickles_are_read_or_refused(tmp_path: Path) -> None:
    read, refused = run(tmp_path, 0, 600)
    assert read > 50 and refused > 300, "mutations are neither harmless nor all fatal: the test looks at both"


@pytest.mark.slow
def test_ten_thousand_mutated_pickles_are_read_or_refused(tmp_path: Path) -> None:
    assert sum(run(tmp_path, 600, 10_000)) == 10_000


def test_a_dtype_made_of_a_pointer_is_refused(fuzz: ModuleType, tmp_path: Path) -> None:
    """numpy's own dtype, once allowed, took 8 bytes of this file for the address of an object."""
    (tmp_path / "x.pkl").write_bytes(fuzz.pointer())
    with pytest.raises(UserError, match=r"x\.pkl was not read: the pickle asks for numpy\.dtype with other arguments"):
        files.load(tmp_path / "x.pkl")


def test_nothing_that_was_named_can_be_changed() -> None:
    """Python's unpickler sets attributes: here, the defaults of a function that it was allowed to name."""
    named = b"ctorch._utils\n_rebuild_tensor_v2\n"
    for changed in (named, b"ccollections\nOrderedDict\n", b"K\x01", b"]"):
        with pytest.raises(pickles.Unknown, match="the pickle changes a "):
            pickles.read(b"\x80\x04" + changed + b"N}\x8c\x0c__defaults__)s\x86b.")
    assert torch._utils._rebuild_tensor_v2.__defaults__ == (None,)


class Swapped:
    """A number of numpy in the other byte order, as a big-endian machine writes it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        scalar, (kind, data) = self.value.__reduce__()
        return scalar, (kind.newbyteorder(">"), data[::-1])


@pytest.mark.parametrize("kind", ["f8", "f4", "f2", "i8", "i2", "i1", "u8", "u1"])
def test_numbers_of_numpy_come_back_in_either_byte_order(kind: str) -> None:
    value = np.dtype(kind).type(25.5)
    for written in (value, Swapped(value)):
        found = pickles.read(pickle.dumps(written))
        assert type(found) in (int, float) and found == value


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8]
)
def test_tensors_come_back_as_views_of_their_storage(dtype: torch.dtype) -> None:
    whole = torch.arange(24).view(4, 6).to(dtype)
    for tensor in (whole, whole[1:, ::2], whole.T, whole[:0], whole[2, 3]):
        assert torch.equal(pickles.read(pickle.dumps(tensor)), tensor)


def repeated(piece: bytes, times: int) -> bytes:
    return b"\x80\x04(" + piece + b"\x94" + b"h\x00" * times + b"t."


def test_a_small_file_cannot_fill_the_memory() -> None:
    """Sizes are bounded by the file: an expanded tensor, a storage read again and again, a count that is not true."""
    with pytest.raises(ValueError, match="larger than its numbers"):
        pickles.read(pickle.dumps(torch.ones(1).expand(10_000_000)))
    data = pickle.dumps(torch.zeros(500), protocol=3)
    stored = data[data.index(b"B") : data.index(b"B") + 5 + int.from_bytes(data[data.index(b"B") + 1 :][:4], "little")]
    one = b"ctorch.storage\n_load_from_bytes\nq\x00" + stored + b"q\x01"
    assert pickles.read(b"\x80\x04(" + one + b"h\x00h\x01\x85Rt.")[2].tolist() == [0.0] * 500
    with pytest.raises(ValueError, match="more numbers than bytes"):
        pickles.read(b"\x80\x04(" + one + b"h\x00h\x01\x85R" * 50 + b"t.")
    with pytest.raises(ValueError, match="a storage that is cut short"):
        pickles.read(data.replace(b"M\xf4\x01N", b"M\xff\xffN"))
    assert len(pickles.read(repeated(b"]", 1000))) == 1001, "what is named twice is one thing"


def test_keys_that_take_for_ever_to_hash_are_refused() -> None:
    nested = b"\x80\x04})" + b"\x85" * 100_000 + b"K\x01s."
    with pytest.raises(ValueError, match="key with a tuple"):
        pickles.read(nested)


def test_weights_that_are_no_floats_or_too_large_to_print_are_one_line(tmp_path: Path) -> None:
    state = {"bi_linear.weight": torch.ones(2, 10, dtype=torch.int64), "projection.weight": torch.ones(5, 1)}
    for sweep in (
        {"P": 5, "models": {1: state}},
        {"P": 5, "models": {10**5000: state}},
        {"P": 10**5000, "models": {1: state}},
    ):
        (tmp_path / "x.pkl").write_bytes(pickle.dumps(sweep))
        with pytest.raises(UserError, match=r"x\.pkl") as refused:
            files.load(tmp_path / "x.pkl")
        assert len(str(refused.value)) < 500
