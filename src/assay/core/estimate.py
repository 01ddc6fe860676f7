"""Runs' durations are estimated from the costs of stored runs: each run is compared with those most like it.

    the same options, another seed          ->  the median of what those took
    the same plug-ins and about the size    ->  the same
    one plug-in another, or more of them    ->  the same, of those with about the size elsewhere

Records are read once and compared within their kind, so that neither a plan nor a store can be too long for it.
"""

import bisect
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from assay.core.grouping import grouped
from assay.core.run import Record, Run, flat, plugins_of

NEAR = math.log(4.0)
"""Largest difference, as a logarithm over all sizes and counts together, at which one run's time predicts another's."""
SAMPLE = 5000
"""Most records of one kind that are compared: a random sample, since the store lists them by id, which is a hash."""
COMPARED = 16
"""Sizes that one run is compared with, on either side of its own."""


class Kind(NamedTuple):
    """Runs must share this to be compared at all: study, device, and their plug-ins by dotted path."""

    study: str
    device: str
    plugins: tuple[tuple[str, str], ...]


def estimate(runs: Sequence[Run], records: Iterable[Record], workers: int) -> float | None:
    """Return wall seconds for `runs` on this kind of device; None if nothing stored is like one of them."""
    total = 0.0
    for seconds in estimates(runs, records):
        if seconds is None:
            return None
        total += seconds
    return total / max(1, min(workers, len(runs))) if runs else None


def estimates(runs: Iterable[Run], records: Iterable[Record]) -> Iterator[float | None]:
    """Yield the seconds that each run will take; None for one that nothing stored is like."""
    costs = ((record.run, record.cost.get("seconds")) for record in records if record.status == "done")
    timed = [(run, float(seconds)) for run, seconds in costs if isinstance(seconds, int | float)]
    taken = {kind: own[:SAMPLE] for kind, own in grouped(timed, lambda pair: _kind(pair[0])).items()}
    samples: dict[Kind, list[Sample]] = {}
    for run in runs:
        kind = _kind(run)
        if kind not in samples:
            samples[kind] = list(_samples(run, taken))
        yield next((seconds for sample in samples[kind] if (seconds := sample.of(run)) is not None), None)


def duration(seconds: float) -> str:
    """`48 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass
class Sample:
    """Past runs with their durations, to estimate similar runs. For runs of other kinds only `shared` sizes count."""

    taken: Sequence[tuple[Run, float]]
    shared: frozenset[str] | None = None
    _found: dict["Sizes", float | None] = field(default_factory=dict)

    def of(self, run: Run) -> float | None:
        if self.shared is None and (exact := self._by_setting.get(run.setting)) is not None:
            return exact
        sizes = _sizes(run, self.shared)
        if sizes not in self._found:
            own = self._by_size.get(sizes)
            near = list(self._beside(sizes)) if own is None else [own]
            self._found[sizes] = statistics.median(near) if near else None
        return self._found[sizes]

    @cached_property
    def _by_setting(self) -> dict[tuple[str, str], float]:
        return _medians((run.setting, seconds) for run, seconds in self.taken)

    @cached_property
    def _by_size(self) -> dict["Sizes", float]:
        return _medians((_sizes(run, self.shared), seconds) for run, seconds in self.taken)

    @cached_property
    def _sorted(self) -> list[tuple[float, "Sizes"]]:
        return sorted((sum(size for _, size in sizes), sizes) for sizes in self._by_size)

    def _beside(self, sizes: "Sizes") -> Iterator[float]:
        """Yield durations of runs of about these sizes: runs near in every size have a sum that is near."""
        place = bisect.bisect(self._sorted, (sum(size for _, size in sizes), sizes))
        mine = dict(sizes)
        for _, other in self._sorted[max(0, place - COMPARED) : place + COMPARED]:
            if sum(abs(mine[key] - size) for key, size in other if key in mine) <= NEAR:
                yield self._by_size[other]


Sizes = tuple[tuple[str, float], ...]
"""Integers by their dotted names, as logarithms."""


def _samples(run: Run, taken: Mapping[Kind, list[tuple[Run, float]]]) -> Iterator[Sample]:
    """Yield the runs of its kind; then, for each plug-in, those with another in its place; then those with more
    plug-ins, which take longer if anything."""
    kind = _kind(run)
    if kind in taken:
        yield Sample(taken[kind])
    own, sizes = dict(kind.plugins), [key for key, _ in _sizes(run, None)]
    others = [other for other in taken if other[:2] == kind[:2] and other != kind]
    for path in own:
        alike = [o for o in others if path in (theirs := dict(o.plugins)) and theirs | {path: ""} == own | {path: ""}]
        shared = frozenset(key for key in sizes if not key.startswith(f"{path}."))
        if alike:
            yield Sample([pair for other in alike for pair in taken[other]], shared)
    larger = [other for other in others if own.items() < dict(other.plugins).items()]
    if larger:
        yield Sample([pair for other in larger for pair in taken[other]], frozenset(sizes))


def _kind(run: Run) -> Kind:
    return Kind(run.study, run.numerics.device, tuple(sorted(plugins_of(run.options))))


def _sizes(run: Run, shared: frozenset[str] | None) -> Sizes:
    counts = {key: value for key, value in flat(dict(run.options)).items() if isinstance(value, int)}
    kept = sorted(counts) if shared is None else sorted(shared & counts.keys())
    return tuple((key, math.log(max(counts[key], 1))) for key in kept)


def _medians(pairs: Iterable[tuple[Any, float]]) -> dict[Any, float]:
    groups = grouped(pairs, lambda pair: pair[0])
    return {key: statistics.median(seconds for _, seconds in group) for key, group in groups.items()}
