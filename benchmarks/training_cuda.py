"""How fast models train on a GPU: tokens per second of the trainer's whole step; and our scans beside fla's.

    python benchmarks/training_cuda.py [steps] [fla] [kernels] [--mixers LABEL ...] [--layers 1 2] [--length 256]
                                       [--json FILE]

steps    draw a batch, forward, backward, clip and update, as `assay icl --device cuda --backend triton` does it: recall
         of 64 pairs among 256 tokens, 8192 words, width 128, 32,768 tokens per step. Goal: 20M tokens/s
fla      the scan alone, forward and backward as a CUDA graph, by flash-linear-attention over ours, on the same
         tensors of 32,768 tokens: 4 heads of bf16, at 256, 1024 and 4096 tokens. Goal: 1.0. Needs the package `fla`;
         left out without it
kernels  which kernels take a step's time when fifteen models train as one program, at the largest size of preset
         `capacity`: 256 pairs among 1024 tokens, width 64, one layer, 16,384 tokens per model and step. No goal, and
         not measured unless it is named

Kernels of the steps are compiled first, by a process for each mixer, and then found in Triton's cache.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from device_time import Times, machine, timed
from measuring import asked, verdict
from torch import Tensor
from torch.autograd import DeviceType
from torch.nn.functional import logsigmoid, normalize
from torch.profiler import ProfilerActivity, profile

from assay.core.run import Numerics
from assay.mixers import mixers
from assay.models.sequence import SequenceModel
from assay.nn import fla
from assay.state_mixers import state_mixers
from assay.tasks import tasks
from assay.train.bank import Bank
from assay.train.device import activate
from assay.train.recipe import Optimizer, Train
from assay.train.trainer import SingleTrainer

TOKENS, WIDTH, HEADS = 32768, 128, 4
MIXERS = (
    "gated_linear_attn:num_heads=2:conv=4",
    "gated_linear_attn:num_heads=2:conv=0",
    "mamba2:d_state=64",
    "retention:num_heads=4",
    "delta_net:num_heads=2",
    "attention:conv=4",
)
GOAL = 20e6
TOGETHER, PROFILED, SHOWN = 15, 10, 15
"""Models of a program, its steps under the profiler, and the kernels that are told of it."""
LENGTHS = (256, 1024, 4096)
Found = dict[str, Any]
"""What --json writes: each measurement adds its own."""
WARM, TIMED, ROUNDS = 24, 50, 3
"""Steps before the clock starts, in which every graph is captured; steps of a round, and rounds, whose best counts."""


def trained(label: str, layers: int, length: int, *, rounds: int = ROUNDS) -> float:
    """Return the tokens per second of training, without validation."""
    task = tasks.parse(f"mqar:vocab_size=8192:input_seq_len={length}:num_kv_pairs={length // 4}")
    options = SequenceModel(seq_mixer=mixers.parse(label), model_dim=WIDTH, num_layers=layers, positions="auto")
    train = Train(max_steps=WARM + TIMED * rounds, micro_batch_size=TOKENS // length, validate_every=1)
    with activate(Numerics(device="cuda", matmul_precision="high", backend="triton")):
        torch.manual_seed(0)
        trainer = SingleTrainer(options.build(task.shape()).cuda(), task, train, Optimizer(), seed=0)
        steps = trainer.run()
        advance(steps, WARM)
        before, found = sum(trainer.tokens), []
        for _ in range(rounds):
            start = time.perf_counter()
            advance(steps, TIMED)
            after = sum(trainer.tokens)
            found.append((after - before) / (time.perf_counter() - start))
            before = after
    return max(found, default=0.0)


def advance(steps: Iterator[int], count: int) -> None:
    for _ in range(count):
        next(steps)
    torch.cuda.synchronize()


def compiled(label: str, length: int) -> None:
    """Leave the kernels of a mixer in Triton's cache."""
    trained(label, 1, length, rounds=0)


def steps(given: argparse.Namespace, found: Found) -> bool:
    with ProcessPoolExecutor(len(given.mixers), mp_context=get_context("spawn")) as pool:
        for compiling in [pool.submit(compiled, label, given.length) for label in given.mixers]:
            compiling.exception()  # what fails here fails again below, and is told there
    met = []
    for label, layers in product(given.mixers, given.layers):
        speed = trained(label, layers, given.length)
        found["steps"].append({"mixer": label, "layers": layers, "length": given.length, "tokens/s": speed})
        told = f"{label}, {layers} layer{'s' if layers > 1 else ''}: {speed / 1e6:.1f}M tokens/s, {speed / GOAL:.2f}"
        met.append(verdict(told, goal="20M, 1.0", met=speed >= GOAL))
    return all(met)


def drawn(length: int) -> dict[str, Tensor]:
    """Return queries, keys and values of 64 channels, and what stands beside them."""
    shape = (TOKENS // length, HEADS, length)

    def normal(*more: int) -> Tensor:
        return torch.randn(*shape, *more, device="cuda")

    return {
        "q": normal(64).bfloat16() / 8,
        "k": normalize(normal(64), dim=-1).bfloat16(),
        "v": normal(64).bfloat16(),
        "beta": torch.sigmoid(normal()),
        "decay": logsigmoid(normal(64)) / 16,
    }


def scanned(run: Callable[..., tuple[Tensor, Tensor]], *given: Tensor) -> Times:
    tensors = [x.detach().requires_grad_() for x in given]
    pull = torch.randn_like(given[2])

    def work() -> None:
        o, _ = run(*tensors)
        torch.autograd.grad(o, tensors, pull.to(o.dtype))

    return timed("", work)


def beside_fla(given: argparse.Namespace, found: Found) -> bool:
    if find_spec("fla") is None:
        print("fla: not measured, the package is not there", flush=True)
        return True
    from assay.nn import triton as ours

    met = []
    # Triton 3.6 miscompiles fla's other kernels on Hopper GPUs, which assay.nn.fla refuses.
    for length, (rule, beside) in product(LENGTHS, (("outer", "decay"), ("delta", "beta"))):
        x = drawn(length)
        tensors = (x["q"], x["k"], x["v"], x[beside])
        with torch.autocast("cuda", dtype=torch.bfloat16):
            own, other = (scanned(getattr(module, f"{rule}_scan"), *tensors) for module in (ours, fla))
        ratio = other.best / own.best
        found["fla"].append({"scan": rule, "length": length, "ours": own.best, "theirs": other.best})
        told = f"{rule}_scan, L = {length}: ours {own.best:.3f} ms, fla {other.best:.3f} ms, {ratio:.2f}"
        met.append(verdict(told, goal="1.0", met=ratio >= 1))
    return all(met)


def kernels(given: argparse.Namespace, found: Found) -> bool:
    task = tasks.parse("mqar:vocab_size=8192:input_seq_len=1024:num_kv_pairs=256:power_a=1:values=hidden")
    train = Train(max_steps=WARM + TIMED + PROFILED, micro_batch_size=16, validate_every=1)
    for label in given.mixers:
        alone = {"state_mixer": state_mixers.parse("none"), "model_dim": 64, "num_layers": 1, "positions": "auto"}
        options = SequenceModel(seq_mixer=mixers.parse(label), tied=True, **alone)
        with activate(Numerics(device="cuda", matmul_precision="high", backend="triton")):
            torch.manual_seed(0)
            models = [options.build(task.shape()).cuda() for _ in range(TOGETHER)]
            bank = Bank(models, task, train, [Optimizer()] * TOGETHER, seeds=range(TOGETHER))
            running = bank.run()
            advance(running, WARM)
            before, start = sum(bank.tokens), time.perf_counter()
            advance(running, TIMED)
            seconds, tokens = time.perf_counter() - start, sum(bank.tokens) - before
            with profile(activities=[ProfilerActivity.CUDA]) as seen:
                advance(running, PROFILED)
        took: Counter[str] = Counter()
        for event in seen.events():
            if event.device_type == DeviceType.CUDA and not event.is_user_annotation:
                took[event.name] += event.time_range.elapsed_us() / 1e3 / PROFILED
        print(f"{label}: {tokens / seconds / 1e6:.1f}M tokens/s, {1e3 * seconds / TIMED:.2f} ms per step, of it:")
        most = took.most_common(SHOWN)
        for name, spent in [*most, ("the rest", took.total() - sum(spent for _, spent in most))]:
            print(f"  {spent:7.3f} ms  {name[:100]}", flush=True)
    return True


MEASURED = {"steps": steps, "fla": beside_fla, "kernels": kernels}


def main() -> int:
    ask = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    ask.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(MEASURED)}")
    ask.add_argument("--mixers", nargs="+", default=list(MIXERS))
    ask.add_argument("--layers", nargs="+", type=int, default=[1, 2])
    ask.add_argument("--length", type=int, default=256)
    ask.add_argument("--json", type=Path)
    given = ask.parse_args()
    names = given.names or ["steps", "fla"]
    asked(ask, names, MEASURED)
    if not torch.cuda.is_available():
        print("no CUDA device: nothing is measured")
        return 0
    found: Found = {**machine(), "steps": [], "fla": []}
    try:
        met = [MEASURED[name](given, found) for name in names]
    finally:
        if given.json:
            given.json.write_text(json.dumps(found, indent=1))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
