"""Measures on this machine what a mixer costs: tokens per second trained and decoded, beside attention. Never stored or
shipped: a speed belongs to the machine it was measured on."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from assay.mixers import mixers
from assay.nn.random import initialised_from, stream

WIDTH, BATCH, LENGTH = 64, 8, 256
DECODED = 64
"""Tokens that are decoded, after each other, from a fresh state."""
REPEATS = 5


@dataclass(frozen=True)
class Speed:
    """Tokens per second of one layer of width 64: trained (forward and backward, 8 sequences of 256), and decoded."""

    trained: float
    decoded: float


def speed(mixer: str, device: torch.device) -> Speed:
    """Time one layer, the best of a few repetitions: other programs only ever slow it down."""
    with initialised_from(0, "speed"):
        layer = mixers.parse(mixer).build(WIDTH, LENGTH).to(device)
    x = torch.randn(BATCH, LENGTH, WIDTH, generator=stream(0, "speed", device=device), device=device)

    def train() -> None:
        layer.zero_grad()
        layer(x).square().mean().backward()

    @torch.no_grad()
    def decode() -> None:
        state = layer.init_state(1)
        for token in x[:1, :DECODED].unbind(1):
            _, state = layer.step(token, state)

    return Speed(BATCH * LENGTH / _seconds(train, device), DECODED / _seconds(decode, device))


def _seconds(run: Callable[[], None], device: torch.device) -> float:
    best = float("inf")
    for _ in range(REPEATS + 1):  # the first warms up
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best
