"""The memory guard: a run that cannot fit is refused before anything is allocated.

`Study.memory` says what one run holds at once, from shapes: modules are built on the meta device, the rest is the
study's own arithmetic. It counts the large things a run cannot do without (weights, gradients, optimizer state, one
step's activations and logits, data), so it is close to a lower bound: within a factor of three of the measured peak
where that is over a few hundred MB (tests/studies/test_memory_measured.py). What it lets through may still be too much.

A cohort is no reason to refuse: it is halved when memory runs out, down to one run. Runs on a cluster (`--ray-address`)
are not judged: their machines are not known here.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from assay.core.errors import UserError
from assay.core.executors.base import Executor
from assay.core.memory import free_addresses, free_memory, size
from assay.core.plugin import registries
from assay.core.run import Run, flat
from assay.core.study import Study

Need = Mapping[str, int]
"""Bytes, by what holds them."""


class Room(NamedTuple):
    """A memory (host or GPU), and how many runs share it at once."""

    where: str
    free: int
    runs: int = 1


def check_memory(study: Study, runs: Sequence[Run], executor: Executor) -> Executor:
    """Return the executor, with fewer workers and a warning where not as many fit and the user gave no number. Raises a
    UserError that names what does not fit and the option to lower, where a run alone is too large, or as many runs at
    once as the user asked for."""
    known = registries()["studies"]
    asked = {name: known[name]() for name in {run.study for run in runs}}  # once: making a default study is slow
    sizes = {place: sum(asked[run.study].memory(run).values()) for place, run in enumerate(runs)}
    largest = max(sizes, key=lambda place: sizes[place], default=0)
    if not sizes or not sizes[largest]:
        return executor
    needs, given = sorted(sizes.values(), reverse=True), executor.workers
    for room in sorted(rooms(executor), key=lambda room: room.free):
        if needs[0] > room.free:
            raise UserError(_too_large(study, runs[largest], room))
        if (together := at_once(needs[: room.runs])) > room.free:
            fits = next(n for n in range(room.runs, 0, -1) if at_once(needs[:n]) <= room.free)
            fits *= len(executor.gpus) or 1
            said = (
                f"{study.name}: {min(room.runs, len(runs))} runs at once need about {size(together)} of memory, and "
                f"{room.where} has {size(room.free)} free."
            )
            if given:
                raise UserError(f"{said} Use --workers {fits}.")
            if not executor.workers or fits < executor.workers:  # several GPUs say the same
                warnings.warn(f"{said} --workers {fits} is used.", stacklevel=2)
                executor = replace(executor, workers=fits)
    return executor


def at_once(needs: Sequence[int]) -> int:
    """Estimate what runs in as many processes hold together, largest first: one at its peak, the others at half, since
    peaks seldom coincide."""
    return sum(needs[:1]) + sum(needs[1:]) // 2


def need_of(run: Run) -> Need:
    """Estimate the memory of one run by its own study: verbs plan runs of others."""
    return registries()["studies"][run.study]().memory(run)


def rooms(executor: Executor) -> Iterator[Room]:
    """Yield the memories that the executor's runs use. A worker's GPU counts as all free: asking it would take some
    of it, and all where processes must not share one."""
    if getattr(executor, "address", None):
        return
    if executor.gpus:
        import torch

        for index in executor.gpus:
            total = torch.cuda.get_device_properties(index).total_memory
            free = torch.cuda.mem_get_info(index)[0] if executor.slots() == 1 and executor.name == "serial" else total
            yield Room(f"GPU {index}", free, -(-executor.slots() // len(executor.gpus)))
        return
    if (free_here := free_memory()) is not None:
        yield Room("this machine", free_here, executor.slots())
    if (left := free_addresses()) is not None:
        yield Room("a process here (ulimit -v)", left)


def _too_large(study: Study, run: Run, room: Room) -> str:
    need = need_of(run)
    most = max(need, key=lambda what: need[what])
    text = (
        f"{study.name}: one run needs about {size(sum(need.values()))} of memory, {size(need[most])} of it for {most}"
    )
    text += f", and {room.where} has {size(room.free)} free."
    path, now, fitting = to_lower(run, room.free)
    return f"{text} Lower {_flag(study, path)}, now {now}{f': {fitting} would fit' if fitting else ' first'}."


def _flag(study: Study, path: str) -> str:
    """`--task.vocab_size`, `--dimensions`, or `width in --models`."""
    if path in study.lowered:
        return study.lowered[path]
    holder, _, option = path.rpartition(".")
    return f"{option} in {study.lowered[holder]}" if holder in study.lowered else f"--{path}"


def to_lower(run: Run, free: int) -> tuple[str, int, int | None]:
    """The option whose lowering alone makes the run fit with the fewest divisions by four: its path, its value and one
    that fits. Where no option alone does, the one that weighs most."""
    sizes = {path: value for path, value in flat(dict(run.options)).items() if type(value) is int and value > 1}
    for steps in range(1, 1 + max(value.bit_length() for value in sizes.values()) // 2):
        found = sorted(_lowered(run, {path: value >> 2 * steps for path, value in sizes.items()}))
        if found and found[0][0] <= free:
            _, path, fitting = found[0]
            return path, sizes[path], fitting
    heaviest = min(_lowered(run, {path: max(1, value >> 2) for path, value in sizes.items()}))[1]
    return heaviest, sizes[heaviest], None


def _lowered(run: Run, sizes: Mapping[str, int]) -> Iterator[tuple[int, str, int]]:
    """Yield what the run needs with one option lowered, for each that can be."""
    for path, value in sizes.items():
        with suppress(UserError):  # a size that the other options rule out
            if value:
                yield sum(need_of(_changed(run, path, value)).values()), path, value


def _changed(run: Run, path: str, value: int) -> Run:
    def inside(options: Mapping[str, Any], head: str, *rest: str) -> dict[str, Any]:
        return {**options, head: inside(options[head], *rest) if rest else value}

    return Run(run.study, inside(run.options, *path.split(".")), run.seed, run.versions, run.numerics)
