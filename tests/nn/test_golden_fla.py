"""The scans and loops against flash-linear-attention's naive forms, whose outputs tests/golden keeps."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from assay.nn.scan import delta_loop, delta_scan, general_loop, general_scan, outer_loop, outer_scan

GOLDEN = Path(__file__).parent.parent / "golden" / "fla_naive.safetensors"
OUTER, DELTA, GENERAL = (outer_loop, outer_scan), (delta_loop, delta_scan), (general_loop, general_scan)
SCALE = 8**-0.5
FORM = pytest.mark.parametrize("form", [0, 1], ids=["loop", "scan"])


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    return load_file(GOLDEN)


@FORM
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
    o, state = forms[form](*arguments, state=golden["state"], scale=SCALE)
    torch.testing.assert_close(o, golden[op], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, golden[f"{op}_state"], rtol=1e-5, atol=1e-5)


@FORM
def test_retention_is_the_peers(golden: dict[str, Tensor], form: int) -> None:
    q, k, v = (golden[name] for name in ("q", "k", "v"))
    gamma = 1 - 2.0 ** (-5 - torch.arange(q.shape[1]))
    o, _ = OUTER[form](q, k, v, gamma.log()[:, None].expand(v.shape[:3]), scale=SCALE)
    torch.testing.assert_close(o, golden["retention"], rtol=1e-5, atol=1e-5)


def agrees(golden: dict[str, Tensor], op: str, found: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(found[0], golden[op], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1], golden[f"{op}_state"], rtol=1e-5, atol=1e-5)


@FORM
def test_kimi_delta_attention_is_the_peers(golden: dict[str, Tensor], form: int) -> None:
    q, k, v, log_decay = (golden[name] for name in ("q", "k", "v", "log_decay_channel"))
    written = golden["beta"][..., None] * k
    found = GENERAL[form](q, written, v, -written, log_decay.exp() * k, log_decay, state=golden["state"], scale=SCALE)
    agrees(golden, "kda", found)


@FORM
def test_a_diagonal_and_a_low_rank_transition_is_the_peers(golden: dict[str, Tensor], form: int) -> None:
    q, k, v, removed, log_decay = (golden[name] for name in ("q", "k", "v", "removed", "log_decay_channel"))
    erased = -golden["rate"] * removed
    agrees(golden, "dplr", GENERAL[form](q, k, v, erased, removed, log_decay, state=golden["state"], scale=SCALE))


@FORM
def test_two_delta_steps_per_token_are_the_peers(golden: dict[str, Tensor], form: int) -> None:
    """Queries stand on a token's last step, decays on its first."""
    k, v, beta = (golden[f"{name}_steps"] for name in ("k", "v", "beta"))
    q, log_decay = torch.zeros_like(k), torch.zeros_like(beta)
    q[:, :, 1::2], log_decay[:, :, ::2] = golden["q"], golden["log_decay_head"]
    o, state = DELTA[form](q, k, v, beta, log_decay, state=golden["state"], scale=SCALE)
    agrees(golden, "delta_product", (o[:, :, 1::2], state))
