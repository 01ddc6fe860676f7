"""CPU time of the in-context-learning study against the obvious way of writing it, in one run, on one thread.

    python benchmarks/icl.py                  every measurement
    python benchmarks/icl.py generation       one of them

Each measurement prints a ratio and its goal; the exit code is 1 if any goal is missed.
"""

import argparse
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from assay.nn.random import stream
from assay.tasks.mqar import Mqar


def cpu_seconds(work: Callable[[], object], *, repeats: int) -> float:
    """Per call: the best of five rounds, so that neighbours on the machine count for little."""
    work()
    rounds = []
    for _ in range(5):
        start = time.process_time()
        for _ in range(repeats):
            work()
        rounds.append((time.process_time() - start) / repeats)
    return min(rounds)


def verdict(what: str, ratio: float, goal: float) -> bool:
    print(f"{what}: {ratio:.1f}x less CPU than the plain reference (goal {goal:g}x)", flush=True)
    return ratio >= goal


def plain_mqar(task: Mqar, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """One example, as one would write it down."""
    length, pairs, half = task.input_seq_len, task.num_kv_pairs, task.vocab_size // 2
    keys = 1 + torch.randperm(half - 1, generator=rng)[:pairs]
    values = half + torch.randperm(task.vocab_size - half, generator=rng)[:pairs]
    slots = (length - 2 * pairs) // 2
    weights = torch.arange(1, slots + 1).float() ** (task.power_a - 1)
    positions = 2 * pairs + 2 * torch.multinomial(weights, pairs, generator=rng)
    inputs = torch.zeros(length, dtype=torch.long)
    inputs[0 : 2 * pairs : 2] = keys
    inputs[1 : 2 * pairs : 2] = values
    inputs[positions] = keys
    inputs[positions + 1] = values
    filler = torch.randint(1, task.vocab_size, (length,), generator=rng)
    return torch.where(inputs == 0, filler, inputs), positions, values


def generation() -> bool:
    """mqar at the default size: whole batches of 256 against one example after another."""
    task, batch, rng = Mqar(input_seq_len=64, vocab_size=8192, num_kv_pairs=8), 256, stream(0, "benchmark")
    plain = cpu_seconds(lambda: plain_mqar(task, rng), repeats=400)
    ours = cpu_seconds(lambda: task.sample(batch, rng), repeats=100) / batch
    print(f"mqar example: plain {plain * 1e6:.1f} us, assay {ours * 1e6:.2f} us")
    return verdict("mqar generation", plain / ours, goal=60)


MEASUREMENTS = {function.__name__: function for function in (generation,)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(MEASUREMENTS)}; all by default")
    names = parser.parse_args().names or list(MEASUREMENTS)
    if unknown := set(names) - set(MEASUREMENTS):
        parser.error(f"no measurement named {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}")
    torch.set_num_threads(1)
    met = [MEASUREMENTS[name]() for name in names]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
