"""How fast each mixer trains and decodes on a GPU: one layer's tokens per second, where its time goes, and `step`.

    python benchmarks/mixers_cuda.py [--lengths 256 1024 4096] [--mixers LABEL ...] [--backends triton torch fla]
                                     [--only kda,rwkv7] [--check] [--parts NAME ...] [--no-decode] [--json FILE]
                                     [--without PART ...] [--limit S]

train    one layer of width 256 with 4 heads on 32,768 tokens, forward and backward, bf16 autocast, as a CUDA graph:
         tokens per second, and over attention's; for recurrent mixers, at which lengths they meet their goals: .5 of
         attention's speed at 256 tokens, .8 at 1024, 2 at 4096
parts    the device time of a training step by kernel, from the profiler: products, the convolution on the heads, the
         scan, norm and gate, decays, and the rest (element by element, copies, casts)
check    error of a layer's outputs and of its worst gradient under bf16 autocast, by the kernels / by torch, as a share
         of the norm of what torch gives in float32: the kernels' should not be far above torch's
decode   one token of 64 sequences by `step`, float32, after so many tokens: microseconds, and the state's bytes

Kernels are compiled first, by several processes, and then found in Triton's cache; --limit ends it all in time. All is
measured in another process, which is replaced where something failed: a broken capture spoils its random generators,
and every number after it. Mixers that no graph can hold are timed as called from Python, and marked `no graph`.
"""

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from device_time import machine, timed
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from worker import Asked, Late, Worker

from assay.mixers import mixers
from assay.mixers.base import State, state_scalars
from assay.nn import fused, scan

TOKENS, WIDTH, SEQUENCES = 32768, 256, 64
MIXERS = (
    "attention:num_heads=4:conv=0",
    "attention:num_heads=4:conv=4",
    "gated_linear_attn:num_heads=4",
    "retention:num_heads=4",
    "mamba2:num_heads=4:d_state=64",
    "delta_net:num_heads=4",
    "gated_delta_net:num_heads=4",
    "linear_attention:num_heads=4",
    "based:num_heads=4",
    "sliding_window:num_heads=4",
    "mlstm:num_heads=4",
    "kda:num_heads=4",
    "rwkv7:num_heads=4",
    "delta_product:num_heads=4",
    "mesa:num_heads=4",
    "hyena",
    "base_conv",
)
"""Attention is first: the others are compared with it."""
PARTS = ("gated_linear_attn", "retention", "mamba2", "delta_net", "gated_delta_net", "linear_attention", "mesa",
         "sliding_window")  # fmt: skip
KERNELS = {
    "products": ("gemm", "nvjet", "cutlass", "cublas", "wgmma", "splitk"),
    "heads": ("_written", "_gradients", "_convolved", "_weights", "_replaced", "_features", "_angles"),
    "scan": ("cumulate", "overlaps", "solve", "written", "carry", "carried", "outputs", "gradients", "_taylor",
             "_window", "pulled", "passed"),
    "norm and gate": ("_read", "_gated_normed", "_recalled", "_held"),
    "decays": ("_gates",),
}  # fmt: skip
"""Parts of a layer by what the names of their kernels hold, or begin with if that begins with _; the first part that
fits. "rest" is everything else."""
CALLS, ROUNDS, COMPILERS = 4, 3, 17
"""Calls and rounds are few, for a graph's replay hardly varies; so many processes compile at once."""
GOALS = {256: 0.5, 1024: 0.8, 4096: 2.0}
"""Share of attention's speed that recurrent mixers should have, by the tokens of a sequence."""
WITHOUT_GOALS = ("attention", "sliding_window", "hyena", "base_conv")
"""Mixers that are not recurrent."""
TRAINING = 0.75
"""Share of the time after that in which training is measured, so that some is left for parts and decoding."""


def training_step(label: str, length: int, backend: str) -> Callable[[], None]:
    scan.backend = backend
    torch.manual_seed(0)
    layer = mixers.parse(label).build(WIDTH, length).cuda()
    x = torch.randn(TOKENS // length, length, WIDTH, device="cuda", requires_grad=True)
    pull = torch.randn_like(x)

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = layer(x)
        torch.autograd.grad(y, [x, *layer.parameters()], pull.to(y.dtype))

    return step


def device_time(work: Callable[[], object]) -> dict[str, Any]:
    """Return the milliseconds of a call: of a graph's replay, or as called where no graph holds it. A capture that
    failed has spoiled its process."""
    times = timed("", work, calls=CALLS, rounds=ROUNDS)
    return {"ms": times.best, "graph": times.device is not None}


def training_time(label: str, length: int, backend: str) -> dict[str, Any]:
    return device_time(training_step(label, length, backend))


def trained(
    labels: Sequence[str], lengths: Sequence[int], backends: Sequence[str], ask: Asked, late: Late
) -> Iterator[dict]:
    base: dict[int, tuple[str, float]] = {}
    for label in labels:
        for backend in backends:
            row: dict[str, Any] = {"mixer": label, "backend": backend}
            over_attention: dict[int, float] = {}
            for length in lengths:
                found = ask(late, training_time, label, length, backend)
                if isinstance(found, dict):
                    first, took = base.setdefault(length, (label, found["ms"]))
                    over = took / found["ms"]
                    if name_of(first) == "attention":
                        over_attention[length] = over
                    speeds = {"tokens/s": TOKENS / found["ms"] * 1e3, "over attention": over}
                    found = {**speeds, "graph": found["graph"]}
                row[f"L = {length}"] = found
            yield {**row, "goals": goals(label, over_attention)}


def goals(label: str, over_attention: dict[int, float]) -> str:
    """Return at which lengths a mixer meets its goals, "-" where it has none or none was measured."""
    judged = [length for length in GOALS if length in over_attention]
    if name_of(label) in WITHOUT_GOALS or not judged:
        return "-"
    met = [str(length) for length in judged if over_attention[length] >= GOALS[length]]
    return f"met at {' and '.join(met)}" if met else "none met"


def name_of(label: str) -> str:
    return label.partition(":")[0]


def begin(without: Sequence[str]) -> None:
    """Prepare a process that measures: torch's warnings would stand between the lines of the tables."""
    warnings.simplefilter("ignore")
    fused.FUSED -= set(without)


def parts(label: str, length: int) -> dict[str, Any]:
    """Return the milliseconds of a training step by part, and the kernels that take the most of the rest."""
    step, calls = training_step(label, length, "triton"), 3
    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(calls):
            step()
        torch.cuda.synchronize()
    found: Counter[str] = Counter(dict.fromkeys((*KERNELS, "rest"), 0.0))
    kernels: Counter[str] = Counter()
    for event in seen.events():
        if event.device_type != DeviceType.CUDA or event.is_user_annotation:
            continue
        took = (event.time_range.end - event.time_range.start) / 1e3 / calls
        part = part_of(event.name)
        found[part] += took
        kernels[f"{part}: {event.name[:90]}"] += took
    if not kernels:
        raise RuntimeError("the profiler saw no kernel")
    return {"mixer": label, "length": length, "ms": dict(found), "kernels": dict(kernels.most_common(16))}


def answers(label: str, length: int, backend: str, *, autocast: bool) -> list[torch.Tensor]:
    """Return a layer's outputs and the gradients of all that it has."""
    scan.backend = backend
    torch.manual_seed(0)
    layer = mixers.parse(label).build(WIDTH, length).cuda()
    rng = torch.Generator("cuda").manual_seed(0)
    x, pull = (torch.randn(max(8, 8192 // length), length, WIDTH, device="cuda", generator=rng) for _ in range(2))
    x.requires_grad_()
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
        y = layer(x)
    return [y.float(), *torch.autograd.grad(y, [x, *layer.parameters()], pull.to(y.dtype))]


def checked(label: str, length: int) -> dict[str, Any]:
    """Return the errors of outputs and of the worst gradient, by the kernels and by torch."""
    exact = answers(label, length, "torch", autocast=False)

    def errors(backend: str) -> tuple[float, float]:
        found = answers(label, length, backend, autocast=True)
        off = [((a - b).norm() / b.norm().clamp(min=1e-12)).item() for a, b in zip(found, exact, strict=True)]
        return off[0], max(off[1:])

    kernels, plain = errors("triton"), errors("torch")
    # Not "greater": a number that is none is wrong as well.
    right = all(a <= 2 * b + 0.01 for a, b in zip(kernels, plain, strict=True))
    return {"mixer": label, "length": length, "kernels": kernels, "torch": plain, "right": right}


def part_of(kernel: str) -> str:
    name = kernel.lower()
    fits = (part for part, words in KERNELS.items() if any(_named(name, word) for word in words))
    return next(fits, "rest")


def _named(name: str, word: str) -> bool:
    return name.startswith(word) if word.startswith("_") else word in name


def decoded(label: str, length: int) -> dict[str, Any]:
    """Return the microseconds of one token after `length` others, and the bytes of a sequence's state."""
    scan.backend = "triton"
    torch.manual_seed(0)
    mixer = mixers.parse(label)
    layer = mixer.build(WIDTH, length + 1).cuda()
    x = torch.randn(SEQUENCES, WIDTH, device="cuda")
    with torch.no_grad():
        state = after(layer, x, mixer.state_size(WIDTH, length))
        took = device_time(lambda: layer.step(x, state))
    return {"us": took.pop("ms") * 1e3, "bytes": 4 * state_scalars(state), **took}


def after(layer: Any, x: torch.Tensor, scalars: int) -> State:
    """Return a state of so many scalars per sequence: what grows with the tokens is drawn at that size."""
    _, first = layer.step(x, layer.init_state(len(x)))
    _, second = layer.step(x, first)
    per_token = state_scalars(second) - state_scalars(first)
    if not per_token:
        return second
    return grown(first, second, 1 + (scalars - state_scalars(first)) // per_token)


def grown(first: State, second: State, tokens: int) -> State:
    if not isinstance(first, torch.Tensor):
        return tuple(grown(a, b, tokens) for a, b in zip(first, second, strict=True))
    shape = [tokens if a != b else a for a, b in zip(first.shape, second.shape, strict=True)]
    return second if first.shape == second.shape else torch.randn(shape, device=first.device, dtype=first.dtype)


def compile_ahead(labels: Sequence[str], lengths: Sequence[int], without: Sequence[str]) -> float:
    """Run every layer once in processes of their own, which leave its kernels in Triton's cache; return the seconds."""
    start = time.monotonic()
    flags = ["--compile", "--lengths", *map(str, lengths), "--without", *without]
    command = [sys.executable, "-W", "ignore", __file__, *flags]
    shares = [labels[i::COMPILERS] for i in range(COMPILERS)]
    # What fails here fails again where it is measured, and is told there.
    running = [subprocess.Popen([*command, "--mixers", *share], stderr=subprocess.DEVNULL) for share in shares if share]
    for process in running:
        process.wait()
    return time.monotonic() - start


def compiled(labels: Sequence[str], lengths: Sequence[int]) -> None:
    for label in labels:
        for length in lengths:
            with suppress(Exception):
                training_step(label, length, "triton")()
    torch.cuda.synchronize()


def cell(found: Any) -> str:
    if isinstance(found, str):
        return found
    marked = "" if found["graph"] else ", no graph"
    if "tokens/s" in found:
        return f"{found['tokens/s'] / 1e6:.1f}M ({found['over attention']:.2f}){marked}"
    return f"{found['us']:.0f} us, {found['bytes'] / 1e3:.1f} kB{marked}"


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> None:
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head), flush=True)
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def measured(given: argparse.Namespace, ask: Asked, late: Late, found: dict[str, Any]) -> None:
    """Print the tables row by row, and keep what they show in `found`, which a failure leaves as far as it got."""
    columns = [f"L = {length}" for length in given.lengths]

    def training() -> Iterator[Sequence[str]]:
        for row in trained(given.mixers, given.lengths, given.backends, ask, Late(late.left() * TRAINING)):
            found["train"].append(row)
            yield row["mixer"], row["backend"], *(cell(row[column]) for column in columns), row["goals"]

    def parted() -> Iterator[Sequence[str]]:
        for label in (label for label in given.mixers if name_of(label) in given.parts):
            for length in (given.lengths[0], given.lengths[-1]):
                row = ask(late, parts, label, length)
                found["parts"].append(row)
                times = [row] if isinstance(row, str) else [f"{took:.3f}" for took in row["ms"].values()]
                yield label, str(length), *times

    def decoding() -> Iterator[Sequence[str]]:
        for label in given.mixers:
            cells = {f"L = {length}": ask(late, decoded, label, length) for length in given.lengths}
            found["decode"].append({"mixer": label, **cells})
            yield label, *map(cell, cells.values())

    def checking() -> Iterator[Sequence[str]]:
        for label in given.mixers:
            for length in (given.lengths[0], given.lengths[-1]):
                row = ask(late, checked, label, length)
                found["check"].append(row)
                pairs = [] if isinstance(row, str) else list(zip(row["kernels"], row["torch"], strict=True))
                words = [f"{a:.2g} / {b:.2g}" for a, b in pairs]
                yield label, str(length), *(words or [row]), "" if words and row["right"] else "WRONG"

    if given.check:
        print("Errors under bf16 autocast, kernels / torch")
        table(["mixer", "L", "outputs", "worst gradient", ""], checking())
    print(f"\nTokens per second trained, {found['device']}, torch {found['torch']} (over the first row's)")
    table(["mixer", "backend", *columns, "goals"], training())
    if given.parts:
        print("\nMilliseconds of a training step by part")
        table(["mixer", "L", *KERNELS, "rest"], parted())
    if not given.no_decode:
        print(f"\nOne token of {SEQUENCES} sequences by `step`, and the bytes of a sequence's state")
        table(["mixer", *columns], decoding())


def chosen(labels: Sequence[str], names: Sequence[str] | None) -> list[str]:
    """Return the labels of the mixers of those names, all without names; what speeds are compared with stays first."""
    if names is None:
        return list(labels)
    known = {name_of(label) for label in labels}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"--only {','.join(unknown)}: no such mixer here. Known: {', '.join(sorted(known))}")
    return [*labels[:1], *(label for label in labels[1:] if name_of(label) in names)]


def main() -> int:
    ask = argparse.ArgumentParser()
    ask.add_argument("--lengths", nargs="+", type=int, default=[256, 1024, 4096])
    ask.add_argument("--mixers", nargs="+", default=list(MIXERS))
    ask.add_argument("--only", type=lambda names: names.split(","), help="of these mixers alone, by name: kda,rwkv7")
    ask.add_argument("--backends", nargs="+", default=["triton"])
    ask.add_argument("--parts", nargs="*", default=list(PARTS), help="mixers whose time is shown by part")
    ask.add_argument("--check", action="store_true", help="compare the kernels' numbers with torch's first")
    ask.add_argument("--no-decode", action="store_true")
    ask.add_argument("--without", nargs="*", default=[], help=f"of {', '.join(sorted(fused.FUSED))}: not as one kernel")
    ask.add_argument("--limit", type=float, default=95.0, help="seconds for all of it")
    ask.add_argument("--json", type=Path)
    ask.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    given = ask.parse_args()
    given.mixers = chosen(given.mixers, given.only)
    begin(given.without)
    if given.compile:
        compiled(given.mixers, given.lengths)
        return 0
    if not torch.cuda.is_available():
        print("no CUDA device: nothing is measured")
        return 0
    late = Late(given.limit)
    ahead = compile_ahead(given.mixers, given.lengths, given.without) if "triton" in given.backends else 0.0
    print(f"Kernels compiled in {ahead:.0f} s", flush=True)
    found = {**machine(), "without": given.without,
             "tokens": TOKENS, "width": WIDTH, "check": [], "train": [], "parts": [], "decode": []}  # fmt: skip
    worker = Worker(partial(begin, given.without))
    try:
        measured(given, worker.ask, late, found)
    finally:
        worker.close()
        if given.json:
            given.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
