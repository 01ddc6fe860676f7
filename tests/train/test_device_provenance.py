"""What a record says of the hardware: the CPU from the core, the GPU from whoever activates it."""

from pathlib import Path

import pytest
import torch

from assay.core import run as run_module
from assay.core.run import Numerics, Provenance, computing_on, cpu_model
from assay.train import device
from assay.train.device import activate

VERSIONS = {
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (me@)\nGCC version: 15.3.0\n":
        "580.159.04",
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.06  Wed Jun 26 06:46:07 UTC 2024\n": "535.183.06",
    "something else\n": "",
}  # fmt: skip


@pytest.mark.parametrize(("text", "version"), VERSIONS.items())
def test_the_driver_is_the_kernel_modules_version(text: str, version: str, tmp_path: Path) -> None:
    (tmp_path / "version").write_text(text)
    assert device._driver(tmp_path / "version") == version
    assert device._driver(tmp_path / "absent") == ""


def test_the_gpu_is_named_while_it_is_active_and_not_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(device, "_driver", lambda: "580.159.04")
    with activate(Numerics(device="cuda")):
        made = Provenance.here()
        assert (made.gpu, made.driver, made.cuda) == ("NVIDIA H200", "580.159.04", "12.8")
        with activate(Numerics()):
            assert Provenance.here().gpu == ""
        assert Provenance.here() == made
    assert Provenance.here().gpu == Provenance.here().driver == Provenance.here().cuda == ""


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Processor\nflags\t\t: fpu\n", "Intel(R) Xeon(R) Processor"),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n", "ARM implementer 0x41 part 0xd40"),
    ],
)
def test_the_cpu_has_its_name_or_its_numbers(text: str, model: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_model(tmp_path / "cpuinfo") == model
    assert cpu_model(tmp_path / "absent"), "elsewhere Python's own word for it"


def test_devices_do_not_leak_when_a_run_raises() -> None:
    with pytest.raises(ValueError), computing_on(gpu="one"):
        raise ValueError
    assert run_module._device == {}
