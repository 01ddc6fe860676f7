"""Rotary positions (Su et al. 2021) rotate queries and keys by their position, so that scores see distances alone.

    rotate(q, start=m) . rotate(k, start=n)  depends on m and n through m - n only

Nothing is learned and no table is kept: the angles are made where they are used.
"""

import torch
from jaxtyping import Float
from torch import Tensor

BASE = 10_000.0  # the slowest pair turns once in about 2 pi BASE tokens (Su et al. 2021)


def rotate(x: Float[Tensor, "*batch time d"], *, start: int = 0) -> Float[Tensor, "*batch time d"]:
    """Rotate channels i and i + d/2 of the token at position p by p * BASE^(-2i/d); the first token is at `start`."""
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = turns(x.shape[-2], x.shape[-1], start=start, device=x.device, dtype=wide)
    one, other = x.to(wide).chunk(2, dim=-1)
    return torch.cat([one * cos - other * sin, one * sin + other * cos], dim=-1).to(x.dtype)


def turns(
    time: int, d: int, *, start: int, device: torch.device, dtype: torch.dtype
) -> tuple[Float[Tensor, "time half"], Float[Tensor, "time half"]]:
    """Return the cosines and sines of the angles."""
    assert d % 2 == 0, f"rotary positions turn pairs of channels: {d} is odd"
    # Angles and the rotation are at least float32: a bf16 angle is wrong by radians after 256 tokens.
    speed = BASE ** (-torch.arange(0, d, 2, device=device, dtype=dtype) / d)
    angle = torch.arange(start, start + time, device=device, dtype=dtype)[:, None] * speed
    return angle.cos(), angle.sin()
