"""Write the tables of docs/capacity.md on longer training, from the records that docs/capacity_icl.py ships.

python docs/longer_icl.py                  # the tables
python docs/longer_icl.py --ship FOLDER    # first add the records of a results folder
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from capacity_icl import PAGE, STATE, STEPS, WIDTHS, Line, grid, last_step, lines_of, ship, stopped
from masks_perplexity import between, written

from assay.metrics.intervals import Interval, holm, paired_difference, paired_p, student_t
from assay.report.text import with_interval
from assay.studies.icl.capacity import BEYOND
from assay.studies.icl.k90 import Capacity, crossing
from assay.studies.icl.learning import curve, has_learned, sizes

TIMES = (STEPS, 2 * STEPS, 4 * STEPS)
LEVEL = 0.05


class Pair(NamedTuple):
    """A mixer at one rate, after STEPS and after twice as many."""

    width: int
    short: Line
    longer: Line
    rate: float

    @property
    def name(self) -> str:
        return self.longer.name

    @property
    def solved(self) -> bool:
        """Whether every seed stopped before the end, since every size was solved."""
        return all(last_step(record) < 2 * STEPS for record in self.longer.row.tried[self.rate].values())

    def gain(self) -> Interval:
        """How far bits beyond the set rise, paired by seed."""
        return paired_difference(*self.bits())

    def bits(self) -> tuple[dict[int, float], dict[int, float]]:
        """Bits beyond the set by seed, of the longer training first."""
        return self.longer.bits_at(self.rate), self.short.bits_at(self.rate)

    def ratio(self) -> Interval | None:
        """How far log2 K90 rises, paired by seed; None where one lies beyond the sizes tried."""
        return paired_difference(*both) if all(both := self.log_k90()) else None

    def log_k90(self) -> tuple[dict[int, float], dict[int, float]]:
        """log2 K90 by seed, of the longer training first; empty where one lies beyond the sizes tried."""
        return self._log_k90(self.longer), self._log_k90(self.short)

    def _log_k90(self, line: Line) -> dict[int, float]:
        found = {seed: crossing(sizes(line.row), curve(record)) for seed, record in line.row.tried[self.rate].items()}
        if any(each.censored != "no" for each in found.values()):
            return {}
        return {seed: math.log2(each.value) for seed, each in found.items()}


def pairs_of(width: int) -> Iterator[Pair]:
    shorter = {line.name: line for line in lines_of(width)}
    for longer in lines_of(width, steps=2 * STEPS):
        yield from (Pair(width, shorter[longer.name], longer, rate) for rate in sorted(longer.row.tried))


def settled(before: Capacity, after: Capacity) -> bool:
    """Whether K90 after twice the training lies within the interval that it had before; beyond the sizes that were
    tried, whether it is still there."""
    if before.point.censored != "no" or before.low is None or before.high is None:
        return before.point == after.point
    low = 0.0 if before.low.censored == "below" else before.low.value
    high = math.inf if before.high.censored == "above" else before.high.value
    return low <= after.point.value <= high


def closely(found: Capacity) -> str:
    """K90 with one decimal, for numbers that differ by less than a pair, where it lies among the sizes tried."""
    places = [found.point, found.low, found.high]
    if any(each is None or each.censored != "no" for each in places):
        return str(found)
    point, low, high = (f"{each.value:.1f}" for each in places if each)
    return f"{point} [{low}, {high}]"


def signed(found: Interval) -> str:
    return f"{found.mean:+z.0f} [{found.low:+z.0f}, {found.high:+z.0f}]"


def rate_of(pair: Pair) -> str:
    chosen = pair.short.row.tuned_value
    return f"{pair.rate:g}" if pair.rate == chosen else f"{pair.rate:g} (chosen: {chosen:g})"


def doubled(pairs: Sequence[Pair]) -> str:
    """K90 of all seeds at one rate, after STEPS and after twice as many, and the gain in bits."""
    adjusted = holm({place: paired_p(*pair.bits()) for place, pair in enumerate(pairs)})
    cells = []
    for place, pair in enumerate(pairs):
        before, after = pair.short.at(pair.rate), pair.longer.at(pair.rate)
        rises = " ↑" if (ratio := pair.ratio()) and ratio.low > 0 else ""
        within = "yes" if settled(before, after) else "no"
        bits = with_interval(student_t(list(pair.longer.bits_at(pair.rate).values())), ".0f")
        gain = f"{signed(pair.gain())}{' *' * (adjusted[place] < LEVEL)}"
        held = [closely(before), f"{closely(after)}{rises}"]
        cells.append([f"`{pair.name}`, {pair.width}", rate_of(pair), *held, within, bits, gain])
    titles = ("K90, 98M tokens", "196M tokens", "within the interval", f"{BEYOND}, 196M", "gain, paired")
    return grid(["mixer, d", "rate", *titles], cells)


def misses(pairs: Sequence[Pair]) -> str:
    """The accuracies at the first sizes of seeds that did not learn, beside those of a model that misses one case."""
    said = [
        f"`{pair.name}`, seed {record.run.seed}: {', '.join(f'{value:.3f}' for value in curve(record)[:4])}"
        for pair in pairs
        for record in pair.longer.row.finished
        if not has_learned(record)
    ]
    first = sizes(pairs[0].longer.row)[:4]
    case = ", ".join(f"{1 - size**-2:.3f}" for size in first)
    told = f"At d = 64 and {', '.join(map(str, first))} pairs, seeds that did not learn: {'; '.join(said)}"
    return f"{told}. 1 - 1/K^2 is {case}."


def order(pairs: Sequence[Pair]) -> str:
    """How far two mixers of one width are apart before and after."""
    one, other = (next(pair for pair in pairs if pair.name == name) for name in ("mamba2", "delta_net"))
    before = paired_difference(one.short.bits_at(one.rate), other.short.bits_at(other.rate))
    after = paired_difference(one.longer.bits_at(one.rate), other.longer.bits_at(other.rate))
    told = f"{signed(before)} after 98M tokens and {signed(after)} after 196M tokens"
    return f"Bits of `mamba2` less those of `delta_net` at d = 64, by the interval of this pair alone: {told}."


def rising(pairs: Sequence[Pair]) -> str:
    """Whose K90 rises, of the rows whose every seed has one among the sizes tried."""
    logs = {place: pair.log_k90() for place, pair in enumerate(pairs)}
    known = {place: both for place, both in logs.items() if all(both)}
    up = [place for place, both in known.items() if (paired_difference(*both).low or 0) > 0]
    adjusted = holm({place: paired_p(*both) for place, both in known.items()})
    sure = ", ".join(f"`{pairs[place].name}` at d = {pairs[place].width}" for place in up if adjusted[place] < LEVEL)
    return (
        f"K90 of {len(known)} rows can be compared seed by seed, being among the sizes that were asked for with every "
        f"seed: it rises in {len(up)}, each by its own interval, and after Holm over all in {sure or 'none'}."
    )


def of_like_state(pairs: Sequence[Pair]) -> str:
    """K90 after twice the training of the rows whose states are nearly equal; those that hold most first."""
    like = [pair for pair in pairs if STATE[0] <= pair.longer.said["state bytes"] <= STATE[1]]
    like.sort(key=lambda pair: -pair.longer.at(pair.rate).point.value)
    said = ", ".join(f"`{pair.name}` (d = {pair.width}) {closely(pair.longer.at(pair.rate))}" for pair in like)
    return f"K90 after 196M tokens at {STATE[0] // 1000} to {STATE[1] // 1000} kB of state, all seeds: {said}."


def fourfold() -> str:
    """K90 of the mixer that was trained four times as long, by rate."""
    found = {steps: next(line for line in lines_of(64, steps=steps) if line.name == "mamba2") for steps in TIMES}
    rates = sorted({rate for line in found.values() for rate in line.row.tried})
    cells = [
        [f"{rate:g}", *(closely(line.at(rate)) if rate in line.row.tried else "-" for line in found.values())]
        for rate in rates
    ]
    tokens = [f"{steps * 16384 // 10**6}M tokens" for steps in found]
    return grid(["rate", *tokens], cells)


def placed(page: str) -> str:
    pairs = [pair for width in WIDTHS for pair in pairs_of(width)]
    trained, solved = [pair for pair in pairs if not pair.solved], [pair for pair in pairs if pair.solved]
    middle = [pair for pair in trained if pair.width == 64]
    said = [doubled(trained), rising(trained), of_like_state(trained), order(middle)]
    runs = ((pair.width, pair.name, list(pair.longer.row.tried[pair.rate].values())) for pair in (*solved, *trained))
    said += [stopped(runs, 2 * STEPS), misses(middle)]
    return between(between(page, "doubled", "\n\n".join(said)), "fourfold", fourfold())


if __name__ == "__main__":
    written(PAGE, placed, ship)
