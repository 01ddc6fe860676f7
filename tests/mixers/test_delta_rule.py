"""What the delta rule is for: values are replaced, and with beta_max=2 the transition can reflect."""

from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from assay.core.errors import UserError
from assay.mixers import mixers
from assay.nn.random import initialised_from, stream
from assay.nn.scan import delta_loop, delta_scan, outer_scan

FORMS = pytest.mark.parametrize("run", [delta_loop, delta_scan], ids=["loop", "scan"])
NAMES = pytest.mark.parametrize("name", ["delta_net", "gated_delta_net"])


def drawn(*shape: int, name: str = "one") -> torch.Tensor:
    return torch.randn(shape, generator=stream(0, "delta", name), dtype=torch.float64)


@FORMS
def test_a_write_with_beta_one_replaces_the_value_of_its_key_and_leaves_orthogonal_keys_alone(run: Any) -> None:
    keys = torch.linalg.qr(drawn(4, 4)).Q
    order = torch.tensor([0, 1, 2, 0, 2])
    values = drawn(5, 3)
    k, v = keys[order][None, None], values[None, None]
    _, state = run(k, k, v, torch.ones(1, 1, 5, dtype=torch.float64))
    held = (keys @ state).squeeze()
    torch.testing.assert_close(held, torch.stack([values[3], values[1], values[4], torch.zeros_like(values[0])]))


@FORMS
def test_linear_attention_adds_up_what_the_delta_rule_replaces(run: Any) -> None:
    k = normalize(drawn(1, 1, 1, 4), dim=-1).expand(1, 1, 2, 4)
    v, ones = drawn(1, 1, 2, 3), torch.ones(1, 1, 2, dtype=torch.float64)
    torch.testing.assert_close(run(k, k, v, ones)[0][:, :, 1], v[:, :, 1])
    torch.testing.assert_close(outer_scan(k, k, v, 0 * ones)[0][:, :, 1], v.sum(2))


@FORMS
def test_beta_two_reflects_the_state_along_the_key(run: Any) -> None:
    """Eigenvalue -1 along k, 1 across it: a Householder reflection, and twice the identity."""
    k, start = normalize(drawn(1, 1, 1, 4), dim=-1), drawn(1, 1, 4, 3, name="state")
    nothing, two = torch.zeros(1, 1, 1, 3, dtype=torch.float64), torch.full((1, 1, 1), 2.0, dtype=torch.float64)
    _, once = run(k, k, nothing, two, state=start)
    reflection = torch.eye(4, dtype=torch.float64) - 2 * k.mT @ k
    torch.testing.assert_close(once, reflection @ start)
    torch.testing.assert_close(torch.linalg.eigvalsh(reflection).squeeze(), torch.tensor([-1.0, 1, 1, 1]).double())
    _, twice = run(k, k, nothing, two, state=once)
    torch.testing.assert_close(twice, start)


@FORMS
def test_a_reflection_per_one_tracks_parity_over_256_bits(run: Any) -> None:
    bits = torch.randint(2, (1, 1, 256), generator=stream(0, "delta", "bits"))
    k = torch.tensor([1.0, 0.0]).expand(1, 1, 256, 2)
    start = torch.tensor([[1.0], [0.0]])[None, None]
    o, _ = run(k, k, torch.zeros(1, 1, 256, 1), 2.0 * bits, state=start)
    torch.testing.assert_close(o.flatten(), 1.0 - 2.0 * (bits.flatten().cumsum(0) % 2))


@pytest.mark.parametrize("beta_max", [1.0, 2.0])
@NAMES
def test_writes_are_between_zero_and_beta_max_and_keys_have_length_one(name: str, beta_max: float) -> None:
    with initialised_from(0, name):
        module = mixers[name](beta_max=beta_max, conv=0).build(32, 64)
    x = torch.randn(4, 64, 32, generator=stream(0, "tokens"))
    heads, beside = module.heads.split_beside(x, module.beside)
    # Far into both ends of the sigmoid.
    q, k, _, beta, *_ = module.written(x, *heads, *(100 * part for part in beside))
    assert 0 <= beta.min() < 0.1 * beta_max and 0.9 * beta_max < beta.max() <= beta_max
    torch.testing.assert_close(k.norm(dim=-1), torch.ones(k.shape[:3]), rtol=1e-3, atol=0)
    torch.testing.assert_close(q.norm(dim=-1), torch.full(q.shape[:3], 8**-0.5), rtol=1e-3, atol=0)


@FORMS
def test_without_forgetting_the_gated_rule_is_the_plain_one(run: Any) -> None:
    q, k, v = drawn(1, 2, 9, 4), normalize(drawn(1, 2, 9, 4, name="k"), dim=-1), drawn(1, 2, 9, 3)
    beta = torch.sigmoid(drawn(1, 2, 9))
    for gated, plain in zip(run(q, k, v, beta, torch.zeros_like(beta)), run(q, k, v, beta), strict=True):
        torch.testing.assert_close(gated, plain)


@pytest.mark.parametrize("options", ["beta_max=2.5", "beta_max=0", "num_heads=0", "expand_v=0"])
@NAMES
def test_options_out_of_range_are_refused_with_their_limits(name: str, options: str) -> None:
    with pytest.raises(UserError, match=r"must be above 0|is too small"):
        mixers.parse(f"{name}:{options}")
