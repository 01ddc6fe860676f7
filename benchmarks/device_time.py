"""Measures how long a GPU takes for some work: by itself, and as called from Python.

device time       several calls captured in a CUDA graph, whose replays are timed by events: nothing waits for the host
as called         events around the same calls, started one by one from Python: where the host needs longer to start a
                  kernel than the GPU to run it, this is the host's time
busy              of a program that no graph holds: the time in which the GPU ran a kernel or a copy, by the profiler

The first two are the median of several rounds, per call, after a warm-up. Work that cannot be captured (because it
waits for the GPU, say) has no device time; it is compared as called, and its row says why. Two sides of a ratio are
timed alike.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from statistics import fmean, median

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from assay.core.run import source_digest

Work = Callable[[], object]
CALLS, ROUNDS, WARM_UP = 10, 9, 3


@dataclass(frozen=True)
class Times:
    """Milliseconds per call."""

    name: str
    called: float
    device: float | None
    reason: str = ""
    """The reason for a missing device time."""

    @property
    def best(self) -> float:
        """The device time; as called, where there is none."""
        return self.called if self.device is None else self.device

    def __str__(self) -> str:
        alone = f"{self.device:.3f}" if self.device is not None else f"not captured: {self.reason}"
        return f"| {self.name} | {alone} | {self.called:.3f} |"


def machine() -> dict[str, str]:
    """Return what numbers were measured with, and when: the GPU, torch, and the digest of assay's source, which records
    of runs have too."""
    device, torch_used = torch.cuda.get_device_name(), torch.__version__
    return {"device": device, "torch": torch_used, "source": source_digest(), "date": f"{date.today()}"}


HEAD = "| | device time (graph replay), ms | as called from Python, ms |\n|---|---|---|"


def timed(name: str, work: Work, *, calls: int = CALLS, rounds: int = ROUNDS) -> Times:
    """Measure both times of one contender. A failed capture loses only its device time."""
    for _ in range(WARM_UP):  # compilers and planners run before anything is captured
        work()
    called = median(milliseconds(lambda: repeated(work, calls), rounds)) / calls
    try:
        replay = captured(work, calls)
    except Exception as error:  # noqa: BLE001 - the other contenders are still measured
        torch.cuda.synchronize()
        said = str(error).strip().splitlines()
        return Times(name, called, None, said[0] if said else type(error).__name__)
    return Times(name, called, median(milliseconds(replay, rounds)) / calls)


def ratio(slow: Sequence[Times], fast: Sequence[Times]) -> tuple[float, str]:
    """Divide the sum of some by that of others, all timed alike: by replay if each could be, else as called."""
    every = [*slow, *fast]
    if all(times.device is not None for times in every):
        return sum(times.best for times in slow) / sum(times.best for times in fast), "device time, graph replay"
    return sum(times.called for times in slow) / sum(times.called for times in fast), "as called from Python"


def fastest(contenders: Sequence[Times]) -> Times:
    """Choose the fastest by device time if all have one, else as called."""
    captured_all = all(times.device is not None for times in contenders)
    return min(contenders, key=lambda times: times.best if captured_all else times.called)


@dataclass(frozen=True)
class Spent:
    """Milliseconds of a program: elapsed, with the time the GPU waited for the host; and busy."""

    elapsed: float
    busy: float | None
    reason: str = ""
    """The reason for a missing busy time."""

    def per(self, parts: int) -> "Spent":
        return Spent(self.elapsed / parts, None if self.busy is None else self.busy / parts, self.reason)

    def over(self, other: "Spent") -> tuple[float, float | None]:
        """Divide by the other's time: elapsed, and busy where both are known."""
        known = self.busy is not None and other.busy
        return self.elapsed / other.elapsed, self.busy / other.busy if known else None

    def __str__(self) -> str:
        busy = f"{self.busy:.4g} ms busy" if self.busy is not None else f"busy time not measured: {self.reason}"
        return f"{self.elapsed:.4g} ms elapsed, {busy}"


def mean(programs: Sequence[Spent]) -> Spent:
    """Average programs; the busy time only if each is known."""
    elapsed = fmean(one.elapsed for one in programs)
    known = [one.busy for one in programs if one.busy is not None]
    if len(known) == len(programs):
        return Spent(elapsed, fmean(known))
    return Spent(elapsed, None, next(one.reason for one in programs if one.busy is None))


def spent(work: Work, rounds: int = 1) -> Spent:
    """Measure elapsed time, the best round after a warm-up, and busy time, of one more round under the profiler."""
    return Spent(min(milliseconds(work, rounds)), *busy(work))


def busy(work: Work) -> tuple[float | None, str]:
    """Measure the milliseconds in which the GPU ran something, or return why they are not known."""
    try:
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            work()
            torch.cuda.synchronize()
        # A named region spans the kernels in it and the gaps between them.
        on_gpu = [e for e in seen.events() if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    except Exception as error:  # noqa: BLE001 - a failed profiler loses only this column
        said = str(error).strip().splitlines()
        return None, said[0] if said else type(error).__name__
    if not on_gpu:
        return None, "the profiler saw no kernel"
    return covered((e.time_range.start, e.time_range.end) for e in on_gpu) / 1e3, ""


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of their union: kernels that run side by side are counted once."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def repeated(work: Work, calls: int) -> None:
    for _ in range(calls):
        work()


def milliseconds(work: Work, rounds: int) -> list[float]:
    """Time each round by events, after a warm-up."""
    found = []
    for _ in range(rounds + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end))
    return found[1:]


def captured(work: Work, calls: int) -> Work:
    """Capture so many calls as one graph, after a warm-up on the same stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
        # Work that waits for the GPU would break a capture, and with it the random generators, so it is found first.
        with waiting_is_an_error():
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        repeated(work, calls)
    torch.cuda.synchronize()
    return graph.replay


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def cache_note(held: int, cache: int) -> str:
    """Describe how much of the tensors of repeated calls fits the level-2 cache."""
    sizes = f"{held / 2**20:.0f} MiB of tensors, {cache / 2**20:.0f} MiB of level-2 cache"
    if held > 4 * cache:
        return f"{sizes}: calls follow each other over the same tensors, of which little is still cached"
    return f"{sizes}: calls follow each other over the same tensors, and find much of them cached"
