"""Rotary positions turn pairs of channels, and scores see distances alone."""

import math

import torch

from assay.nn.random import stream
from assay.nn.rotary import rotate


def vectors(*shape):
    return torch.randn(shape, generator=stream(0, "x"), dtype=torch.float64)


def test_each_pair_of_channels_turns_by_its_own_speed():
    x = vectors(3, 8)
    for p in range(3):
        for i in range(4):
            turn = complex(x[p, i], x[p, i + 4]) * complex(math.cos(a := p * 10_000 ** (-i / 4)), math.sin(a))
            y = rotate(x)[p]
            assert abs(complex(y[i], y[i + 4]) - turn) < 1e-12


def test_scores_depend_on_the_distance_alone():
    q, k = vectors(2, 1, 6)
    near = rotate(q, start=5) @ rotate(k, start=2).T
    far = rotate(q, start=1005) @ rotate(k, start=1002).T
    torch.testing.assert_close(near, far, rtol=0, atol=1e-9)
    assert (near - rotate(q, start=6) @ rotate(k, start=2).T).abs() > 1e-3


def test_lengths_are_kept_and_the_first_token_stays():
    x = vectors(2, 7, 6)
    torch.testing.assert_close(rotate(x).norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(rotate(x)[:, 0], x[:, 0])


def test_a_part_that_starts_later_is_a_part_of_the_whole():
    x = vectors(2, 9, 6)
    torch.testing.assert_close(rotate(x[:, 4:], start=4), rotate(x)[:, 4:])


def test_in_bf16_late_positions_keep_their_angle():
    x = vectors(2_000, 4).float()
    half = rotate(x.bfloat16())
    assert half.dtype is torch.bfloat16
    torch.testing.assert_close(half.float(), rotate(x), rtol=0, atol=0.05)
