"""A cached array and its sidecar may be anything: what cannot be read is computed again, and nothing hangs."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from assay.studies.modular.matrices import cached

HARMS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "nested": lambda path: path.write_text("[" * 100_000),
    "huge": lambda path: (path.touch(), os.truncate(path, 2**40)),
    "no object": lambda path: path.write_text("[1]"),
    "empty": lambda path: path.write_text(""),
}


def stored(path: Path, value: float) -> float:
    return float(cached(path, lambda: np.full(3, value), source={"a": 1}, about={}, shape=(3,))[0])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["x.npy", "x.npy.json"])
@pytest.mark.parametrize("harm", HARMS)
def test_what_cannot_be_read_is_computed_again(tmp_path: Path, harm: str, name: str) -> None:
    assert stored(tmp_path / "x.npy", 1.0) == stored(tmp_path / "x.npy", 2.0) == 1.0
    (tmp_path / name).unlink()
    HARMS[harm](tmp_path / name)
    assert stored(tmp_path / "x.npy", 2.0) == stored(tmp_path / "x.npy", 3.0) == 2.0


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 and no archive", b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 16])
def test_an_array_that_is_none_is_computed_again_though_its_hash_is_right(tmp_path: Path, data: bytes) -> None:
    stored(tmp_path / "x.npy", 1.0)
    sidecar = json.loads((tmp_path / "x.npy.json").read_text())
    (tmp_path / "x.npy").write_bytes(data)
    (tmp_path / "x.npy.json").write_text(json.dumps(sidecar | {"sha256": hashlib.sha256(data).hexdigest()}))
    assert stored(tmp_path / "x.npy", 2.0) == 2.0
