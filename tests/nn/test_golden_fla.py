"""The scans and loops against flash-linear-attention's naive forms, whose outputs tests/golden keeps."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from assay.nn.scan import delta_loop, delta_scan, outer_loop, outer_scan

GOLDEN = Path(__file__).parent.parent / "golden" / "fla_naive.safetensors"
OUTER, DELTA = (outer_loop, outer_scan), (delta_loop, delta_scan)


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    return load_file(GOLDEN)


@pytest.mark.parametrize("form", [0, 1], ids=["loop", "scan"])
@pytest.mark.parametrize(
    ("op", "forms", "names"),
    [
        ("gla", OUTER, ["log_decay_channel"]),
        ("delta_rule", DELTA, ["beta"]),
        ("gated_delta_rule", DELTA, ["beta", "log_decay_head"]),
    ],
)
def test_outputs_and_last_state_are_the_peers(
    golden: dict[str, Tensor], op: str, forms: tuple[Callable, ...], names: list[str], form: int
) -> None:
    arguments = [golden[name] for name in ("q", "k", "v", *names)]
    o, state = forms[form](*arguments, state=golden["state"], scale=golden["q"].shape[-1] ** -0.5)
    torch.testing.assert_close(o, golden[op], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, golden[f"{op}_state"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", [0, 1], ids=["loop", "scan"])
def test_retention_is_the_peers(golden: dict[str, Tensor], form: int) -> None:
    q, k, v = (golden[name] for name in ("q", "k", "v"))
    gamma = 1 - 2.0 ** (-5 - torch.arange(q.shape[1]))
    o, _ = OUTER[form](q, k, v, gamma.log()[:, None].expand(v.shape[:3]), scale=q.shape[-1] ** -0.5)
    torch.testing.assert_close(o, golden["retention"], rtol=1e-5, atol=1e-5)
