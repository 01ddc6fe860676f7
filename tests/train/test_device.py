"""The settings of torch that belong to a run."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
import torch

import assay
from assay.core.errors import UserError
from assay.core.run import Numerics
from assay.nn import scan
from assay.train.device import activate
from assay.train.numerics import numerics_for


def product() -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    left, right = (torch.randn(64, 48, 48, generator=rng) for _ in range(2))
    return left @ right.mT


def test_the_bits_of_a_run_do_not_depend_on_whether_torch_dropped_onednn_before() -> None:
    found = []
    for dropped in (False, True):
        before = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(not dropped)
        with activate(Numerics(device="cpu")):
            found.append(product())
        assert torch._C._get_mkldnn_enabled() is not dropped, "left as it was found"
        torch._C._set_mkldnn_enabled(before)
    assert torch.equal(*found)


@pytest.fixture
def with_fla(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one CUDA device and a package named fla."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    package = ModuleType("fla")
    package.__spec__ = ModuleSpec("fla", None)
    monkeypatch.setitem(sys.modules, "fla", package)


def test_what_changes_numbers_is_in_the_numerics(with_fla: None) -> None:
    assert numerics_for("cpu") == Numerics()
    assert numerics_for("cpu", compile=True) == Numerics(compile=True)
    assert numerics_for("cuda", backend="fla") == Numerics(device="cuda", backend="fla")


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_fla_on_a_cpu_is_an_error_before_anything_is_computed(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="--backend triton runs on CUDA alone: leave it out, or use --device cuda"):
        numerics_for("cpu", backend="triton")
    with pytest.raises(UserError, match="--backend fla runs on CUDA alone: leave it out, or use --device cuda"):
        assay.run("expressivity", device=device, backend="fla", out=tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_missing_package_is_an_error_with_the_command_that_installs_it(
    with_fla: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "fla")
    monkeypatch.setattr("assay.nn.fla.find_spec", lambda name: None)
    for ask in (lambda: numerics_for("cuda", backend="fla"), activate(Numerics("cuda", backend="fla")).__enter__):
        with pytest.raises(UserError, match=r"pip install 'assay-bench\[fla\]'"):
            ask()


def test_an_unknown_backend_is_an_error_and_never_ours_under_its_name() -> None:
    for ask in (lambda: numerics_for("cpu", backend="cudnn"), activate(Numerics(backend="cudnn")).__enter__):
        with pytest.raises(UserError, match="--backend cudnn: choose torch, triton or fla"):
            ask()


def test_the_backend_of_a_run_is_set_inside_and_put_back_after_a_failure_too(with_fla: None) -> None:
    assert scan.backend == "torch"
    with pytest.raises(ValueError, match="inside"), activate(Numerics(device="cuda", backend="fla")):
        assert scan.backend == "fla"
        with activate(Numerics()):
            assert scan.backend == "torch"
        assert scan.backend == "fla"
        raise ValueError("inside")
    assert scan.backend == "torch"
