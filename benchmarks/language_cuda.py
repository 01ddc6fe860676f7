"""How fast a token language model of each mixer trains on a GPU: the trainer's whole step, and where its time goes.

    python benchmarks/language_cuda.py [--mixers LABEL ...] [--lengths 1024 4096] [--parts LABEL ...]
                                       [--check LABEL ...] [--json FILE]

The model is that of the card's first question: width 512, 6 layers of 16 x 512^2 parameters, swiglu, 8,192 tokens of a
vocabulary whose vectors the head shares; 32,768 tokens a step, bf16 autocast over float32 weights, the fused kernels.
A step draws a batch, goes forward and backward, clips and updates, as a CUDA graph.

tokens/s          and over attention's at the same length, with the goal where a mixer has one
share             of 989 TFLOP/s, by 6 N + 12 layers x length x width operations a token
parts             the device time of a step by kernel, from the profiler
check             the training loss after 50 steps of 8,192 tokens, less that of the plain loop in float32 without
                  kernels (goal: within .01 nats), and less that of the same run once more

Kernels are compiled first, by a process for each mixer, and then found in Triton's cache.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from device_time import machine
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from worker import one_line

from assay.core.run import Numerics
from assay.mixers import mixers
from assay.models.sequence import SequenceModel
from assay.state_mixers import state_mixers
from assay.tasks.base import Batch, Task, TaskShape, Tokens
from assay.train.device import activate
from assay.train.recipe import Optimizer, Train
from assay.train.trainer import SingleTrainer

WIDTH, LAYERS, VOCABULARY, TOKENS, PEAK = 512, 6, 8192, 32768, 989e12
GOALS = {
    "gated_linear_attn:conv=4": 0.7,
    "delta_net": 0.7,
    "mamba2": 0.7,
    "gated_delta_net": 0.7,
    "kda": 0.7,
    "rwkv7": 0.55,
    "retention": 1.0,
    "based": 1.0,
    "sliding_window:num_heads=8:window=128:conv=4": 1.0,
}
"""Share of attention's speed at 1,024 tokens that a mixer should have."""
FASTER = ("gated_linear_attn:conv=4", "delta_net", "mamba2", "gated_delta_net", "kda", "retention")
"""Mixers that should be faster than attention at 4,096 tokens."""
ATTENTION, ATTENTION_GOAL = "attention:num_heads=8:positions=rotary", 1.3e6
MIXERS = (ATTENTION, *GOALS, "mlstm", "hyena", "base_conv", "linear_attention:conv=4")
ALIGNED = 64
"""The state mixer's width is a multiple of this: cuBLAS has no fast kernels for rows that begin in odd places."""
WARM, TIMED, PROFILED, SHOWN = 8, 24, 4, 24
CHECKED, LAST, CLOSE = 50, 10, 0.01
"""Steps compared with the plain loop; the last ones, whose mean loss counts; and how near it has to be, in nats."""
OPTIMIZER = Optimizer(lr=2e-3, weight_decay=0.1, beta2=0.95, clip=1.0)


@dataclass(frozen=True, kw_only=True)
class Drawn(Task):
    """Tokens of random words, few of them frequent, for nothing is learned here."""

    name = "drawn"
    loss = "cross_entropy"
    length: int = 1024

    def shape(self) -> TaskShape:
        return TaskShape(inputs=Tokens(VOCABULARY), outputs=Tokens(VOCABULARY), length=self.length)

    def turns(self, micro_batch_size: int) -> tuple[tuple[Task, int], ...]:
        return ((self, micro_batch_size),)

    def sample(self, batch: int, rng: torch.Generator) -> Batch:
        shares = torch.rand(batch, self.length + 1, generator=rng, device=rng.device)
        words = (VOCABULARY * shares**3).long()
        places = torch.arange(self.length, device=rng.device).expand(batch, self.length)
        return Batch(inputs=words[:, :-1], targets=words[:, 1:], positions=places)


def advance(steps: Iterator[int], count: int) -> None:
    for _ in range(count):
        next(steps)
    torch.cuda.synchronize()


def model_of(label: str, length: int) -> SequenceModel:
    state_mixer = state_mixers.parse("swiglu")
    asked = {"model_dim": WIDTH, "num_layers": LAYERS, "positions": "auto", "layer_params": 16 * WIDTH**2}
    model = SequenceModel(seq_mixer=mixers.parse(label), state_mixer=state_mixer, tied=True, **asked)  # type: ignore[arg-type]
    return model.nearest(length, ALIGNED)[0]


def trained(label: str, length: int, *, timed: int = TIMED, parts: bool = False) -> dict[str, Any]:
    """Train for a moment; return the speed, the memory and, with `parts`, the milliseconds of a step by kernel."""
    task, model = Drawn(length=length), model_of(label, length)
    train = Train(max_steps=10**6, micro_batch_size=TOKENS // length, validate_every=1)
    found: dict[str, Any] = {}
    with activate(Numerics(device="cuda", matmul_precision="high", backend="triton")):
        torch.manual_seed(0)
        trainer = SingleTrainer(model.build(task.shape()).cuda(), task, train, OPTIMIZER, seed=0)
        torch.cuda.reset_peak_memory_stats()
        steps = trainer.run()
        advance(steps, WARM)
        if timed:
            start = time.perf_counter()
            advance(steps, timed)
            seconds = (time.perf_counter() - start) / timed
            weights = sum(p.numel() for p in trainer.parameters)
            operations = 6 * weights + 12 * LAYERS * length * WIDTH
            found = {
                "mixer": label, "length": length, "ms": 1e3 * seconds, "tokens/s": TOKENS / seconds,
                "share": operations * TOKENS / seconds / PEAK, "weights": weights,
                "GB": torch.cuda.max_memory_allocated() / 1e9,
            }  # fmt: skip
        if parts:
            with profile(activities=[ProfilerActivity.CUDA]) as seen:
                advance(steps, PROFILED)
            found["parts"], found["calls"] = by_kernel(seen)
    return found


class Plain(SingleTrainer):
    """The step as it is written: float32, no graph."""

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, enabled=False)


def losses(label: str, *, fast: bool) -> list[float]:
    """Return the loss at each of the first CHECKED steps."""
    task, model = Drawn(), model_of(label, 1024)
    train = Train(max_steps=10**6, micro_batch_size=8, validate_every=1, warmup_ratio=1e-5)
    numerics = {"matmul_precision": "high", "backend": "triton"} if fast else {}
    with activate(Numerics(device="cuda", **numerics)):
        torch.manual_seed(0)
        kind = SingleTrainer if fast else Plain
        made = model.build(task.shape()).cuda()
        trainer = kind(made, task, train, OPTIMIZER, seed=0, graph=fast)
        return [trainer.losses.item() for _, _ in zip(range(CHECKED), trainer.run(), strict=False)]


def checked(label: str) -> dict[str, float | str]:
    """Compare the last steps' mean loss with the plain loop's, and with a second run's."""
    one, two, plain = losses(label, fast=True), losses(label, fast=True), losses(label, fast=False)
    ends = [sum(each[-LAST:]) / LAST for each in (one, two, plain)]
    return {"mixer": label, "loss": ends[2], "off plain": ends[0] - ends[2], "off itself": ends[0] - ends[1]}


def by_kernel(seen: profile) -> tuple[dict[str, float], dict[str, float]]:
    """Return the milliseconds of a step by kernel, and how often it ran; `idle` is when nothing did."""
    took: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    events = [e for e in seen.events() if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    for event in events:
        took[event.name] += event.time_range.elapsed_us() / 1e3 / PROFILED
        calls[event.name] += 1 / PROFILED
    whole = (max(e.time_range.end for e in events) - min(e.time_range.start for e in events)) / 1e3 / PROFILED
    took["idle"] = whole - took.total()
    return dict(took.most_common()), dict(calls)


def compiled(label: str, length: int) -> None:
    """Leave the kernels of a mixer in Triton's cache."""
    trained(label, length, timed=0)


def asked_for(label: str, length: int, over: float) -> str:
    """Return the goal of a mixer and whether it is met."""
    goal = GOALS.get(label) if length == 1024 else 1.0 if length == 4096 and label in FASTER else None
    if goal is None:
        return ""
    return f"{goal:g}: {'met' if over >= goal else 'MISSED'}"


def main() -> int:
    ask = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    ask.add_argument("--mixers", nargs="+", default=list(MIXERS))
    ask.add_argument("--lengths", nargs="+", type=int, default=[1024])
    ask.add_argument("--parts", nargs="*", default=[])
    ask.add_argument("--check", nargs="*", default=[])
    ask.add_argument("--json", type=Path)
    given = ask.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing is measured")
        return 0
    found: dict[str, Any] = {**machine(), "steps": [], "check": []}
    start, spawn = time.perf_counter(), get_context("spawn")
    with ProcessPoolExecutor(16, mp_context=spawn) as pool:
        for compiling in [pool.submit(compiled, label, length) for label in given.mixers for length in given.lengths]:
            compiling.exception()  # what fails here fails again below, and is told there
    print(f"Kernels compiled in {time.perf_counter() - start:.0f} s, {found['device']}, torch {found['torch']}")
    for length in given.lengths:
        first = 0.0
        for label in given.mixers:
            with ProcessPoolExecutor(1, mp_context=spawn) as alone:
                try:
                    row = alone.submit(trained, label, length, parts=label in given.parts).result()
                except Exception as error:  # noqa: BLE001 - the other mixers are still measured
                    print(f"{label:48} {length:5}  {one_line(error)}", flush=True)
                    continue
            found["steps"].append(row)
            first = first or row["tokens/s"]
            over = row["tokens/s"] / first
            if label == ATTENTION and length == 1024:
                goal = f"1.3M: {'met' if row['tokens/s'] >= ATTENTION_GOAL else 'MISSED'}"
            else:
                goal = asked_for(label, length, over)
            print(
                f"{label:48} {length:5}  {row['tokens/s'] / 1e6:.2f}M tokens/s  {over:.2f}  share {row['share']:.2f}  "
                f"{row['ms']:.1f} ms  {row['GB']:.1f} GB  {goal}",
                flush=True,
            )
            for name, ms in list(row.get("parts", {}).items())[:SHOWN]:
                print(f"    {ms:7.3f} ms {row['calls'].get(name, 0):5.0f}  {name[:110]}", flush=True)
            if given.json:
                given.json.write_text(json.dumps(found, indent=1))
    for label in given.check:
        with ProcessPoolExecutor(1, mp_context=spawn) as alone:
            try:
                row = alone.submit(checked, label).result()
            except Exception as error:  # noqa: BLE001 - the other mixers are still compared
                print(f"{label:48} {one_line(error)}", flush=True)
                continue
        found["check"].append(row)
        met = "met" if abs(row["off plain"]) <= CLOSE else "MISSED"
        print(
            f"{label:48} loss {row['loss']:.4f}, off the plain loop {row['off plain']:+.4f} (.01: {met}), "
            f"off itself {row['off itself']:+.1e}", flush=True,
        )  # fmt: skip
        if given.json:
            given.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
