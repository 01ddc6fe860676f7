"""Measures CPU seconds of each mixer token by token against its parallel form, in one run, on one thread.

    python benchmarks/mixers.py                       every mixer that runs on a CPU
    python benchmarks/mixers.py delta_net mamba2      these

One sequence of 1024 tokens, d_model 128, forward only, no gradients, the best of several runs. Both forms compute the
same outputs (the contract of a mixer), and their largest difference is printed. The exit code is 1 if a mixer with a
parallel form, every one but gru, takes more than a fifth of its step loop.
"""

import argparse
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from assay.mixers import mixers
from assay.mixers.base import MixerModule
from assay.nn.random import initialised_from, stream

GOAL = 5.0
LENGTH, D_MODEL = 1024, 128
SEQUENTIAL = {"gru"}  # its state passes through tanh: there is no parallel form


def stepped(module: MixerModule, x: Tensor) -> Tensor:
    """Compute the outputs token by token, as in decoding."""
    state, outputs = module.init_state(len(x)), []
    for token in x.unbind(1):
        y, state = module.step(token, state)
        outputs.append(y)
    return torch.stack(outputs, dim=1)


def best(run: Callable[[], Tensor], repeats: int) -> tuple[float, Tensor]:
    """Return the least CPU seconds of several runs after a warm-up, and the outputs."""
    outputs, seconds = run(), []
    for _ in range(repeats):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return min(seconds), outputs


@torch.no_grad()
def measure(name: str) -> float:
    """Measure a mixer and print its line; return how many times less CPU the parallel form takes."""
    with initialised_from(0, "benchmark", name):
        module = mixers[name]().build(D_MODEL, LENGTH).eval()
    x = torch.randn(1, LENGTH, D_MODEL, generator=stream(0, "benchmark", "tokens"))
    parallel, y = best(lambda: module(x), repeats=10)
    steps, y_steps = best(lambda: stepped(module, x), repeats=2)
    worst = (y - y_steps).abs().max().item()
    ratio = steps / parallel
    print(f"{name:<18} {1e3 * steps:8.1f} ms {1e3 * parallel:8.1f} ms {ratio:7.1f}x   {worst:.0e}", flush=True)
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=[name for name in mixers.names() if mixers[name].portable])
    torch.set_num_threads(1)
    print(f"{'mixer':<18} {'step loop':>11} {'parallel':>11} {'ratio':>8}   largest difference")
    ratios = {name: measure(name) for name in parser.parse_args().names}
    slow = [name for name, ratio in ratios.items() if ratio < GOAL and name not in SEQUENTIAL]
    print(f"below {GOAL:g}x: {', '.join(slow) or 'none'} (not counted: {', '.join(sorted(SEQUENTIAL))})")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
