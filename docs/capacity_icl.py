"""Write the capacity tables of docs/capacity.md, from the records that ship with assay.

    python docs/capacity_icl.py                  # the tables
    python docs/capacity_icl.py --ship FOLDER    # first add the records of both presets in a results folder

The records lie in src/assay/shipped/icl.capacity.jsonl.xz. Of a learning curve they keep the last validation, which the
rate of a row is chosen by. The tables are of runs with `--backend triton`; one line is of runs with `--backend torch`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from masks_perplexity import between, written

from assay.core import shipped
from assay.core.run import Record
from assay.core.store import Store
from assay.report.rows import Row
from assay.report.section import Section, Table
from assay.report.text import shown
from assay.studies.icl.capacity import BASELINE, BEYOND, capacity, has_convolution, missing_rates, with_all
from assay.studies.icl.k90 import Capacity, Crossing, capacity_interval, crossing
from assay.studies.icl.learning import best_of, bits_of, compared, curve, has_learned, holds_all, learned, sizes
from assay.studies.icl.memories import MemoryShape, Rule, memory_curve, memory_shape
from assay.studies.icl.report import trained

PAGE = Path(__file__).parent / "capacity.md"
NAME = "icl.capacity"
WIDTHS = (32, 64, 128)
STEPS = 6000
RULES: tuple[Rule, ...] = ("hebbian", "least squares")
VALUES = 4096
"""Tokens that can be a value."""
STATE = (16_000, 25_000)
"""Bytes of state between which most mixers have a row."""
WINDOW = 64
"""Tokens that the mixer with a window sees."""


@dataclass(frozen=True)
class Line:
    """A trained mixer at one width: its row, and what the report's table says of it."""

    row: Row
    table: Table
    said: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.row.options["model"]["seq_mixer"]["name"])

    @property
    def label(self) -> str:
        return str(self.said["seq_mixer"])

    @property
    def every_seed_learned(self) -> bool:
        return len(learned(self.row)) == self.row.n

    @property
    def of_all_seeds(self) -> Capacity:
        return capacity_interval(sizes(self.row), [curve(record) for record in self.row.finished])

    def at(self, rate: float) -> Capacity:
        """K90 of all seeds at one rate."""
        return capacity_interval(sizes(self.row), [curve(record) for record in self.row.tried[rate].values()])

    def bits_at(self, rate: float) -> dict[int, float]:
        """Bits beyond the set of all seeds at one rate."""
        return {seed: bits_of(record, beyond=True) for seed, record in self.row.tried[rate].items()}

    def held(self) -> str:
        """K90 of the seeds that learned; where not all did, also of all; and whether the rate is at an edge."""
        share = f", {len(learned(self.row))} of {self.row.n} seeds" if learned(self.row) else ""
        some = "" if self.every_seed_learned else f"{share} (all: {self.of_all_seeds})"
        return f"{self.said['K90']}{some}{', edge' * self.row.at_the_edge}"

    def memories(self) -> str:
        """K90 of untrained memories of the mixer's size: Hebbian, least squares."""
        shape = memory_shape(self.row.options["model"]["seq_mixer"], self.row.options["model"]["model_dim"])
        if shape is None:
            return "-"
        return ", ".join(str(untrained(rule, shape, sizes(self.row))) for rule in RULES)

    def rate(self) -> str:
        rates = sorted(self.row.tried)
        chosen = str(self.row.tuned_words).removesuffix(" edge")
        return f"{chosen} of {rates[0]:g} to {rates[-1]:g}{', edge' * self.row.at_the_edge}"

    def shown(self, key: str) -> str:
        return str(shown(self.table, self.said, key))


def untrained(rule: Rule, shape: MemoryShape, pairs: Sequence[int]) -> Crossing:
    """K90 of an untrained memory, from its accuracy at these sizes."""
    return crossing(pairs, memory_curve(rule, shape, tuple(pairs), VALUES))


def thin(record: Record) -> Record:
    """The record with the last point of its curve; one that diverged has none."""
    last = {"curve": record.metrics["curve"][-1:]} if "curve" in record.metrics else {}
    return replace(record, metrics={**record.metrics, **last})


def ship(folder: Path) -> None:
    of_models = [record for record in Store(folder).records("icl") if record.run.options["model"] is not None]
    shipped.add(NAME, shipped.FOLDER, map(thin, of_models))


def lines_of(width: int, backend: str = "triton", *, steps: int = STEPS, convolved: bool = True) -> list[Line]:
    """The mixers of one width, in one layer with a short convolution or in two without, as their report orders them."""
    layers = 1 if convolved else 2

    def wanted(record: Record) -> bool:
        model, train = record.run.options["model"], record.run.options["train"]
        mixer = model["seq_mixer"]
        asked = (model["model_dim"], model["num_layers"], train["max_steps"], has_convolution(mixer))
        return record.run.numerics.backend == backend and asked == (width, layers, steps, convolved)

    rows = trained(filter(wanted, shipped.records(NAME)))
    out = Section("icl")
    capacity(rows, out)
    (table,) = out.tables
    by_label = {str(said["seq_mixer"]): said for said in table.rows}
    lines = {row.options["model"]["seq_mixer"]["name"]: row for row in rows}
    assert len(lines) == len(rows), "the tables tell mixers apart by their names"
    found_by_name = {label.partition(":")[0]: said for label, said in by_label.items() if not label.startswith("(")}
    return [Line(lines[name], table, said) for name, said in found_by_name.items()]


def grid(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    return "\n".join(head + [f"| {' | '.join(cells)} |" for cells in lines])


def overview(lines: Mapping[int, list[Line]]) -> str:
    """K90 by mixer and width; most bits at d = 64 first."""
    by_name = {width: {line.name: line for line in own} for width, own in lines.items()}

    def held(name: str, width: int) -> str:
        return by_name[width][name].held() if name in by_name[width] else "-"

    cells = [[f"`{one.name}`", *(held(one.name, width) for width in lines)] for one in lines[64]]
    return grid(["mixer", *(f"d = {width}" for width in lines)], cells)


def of_like_state(lines: Mapping[int, list[Line]]) -> str:
    """The rows whose state is in STATE; those that hold most first."""
    flat = [(width, line) for width, own in lines.items() for line in own]
    like = [each for each in flat if STATE[0] <= each[1].said["state bytes"] <= STATE[1]]
    like.sort(key=lambda each: -each[1].of_all_seeds.point.value)
    cells = [
        [f"`{line.name}`", str(width), f"{line.said['state bytes'] / 1000:.1f}", line.held(), line.shown(BEYOND)]
        for width, line in like
    ]
    return grid(["mixer", "d", "state, kB", "K90", BEYOND], cells)


def whole(lines: Sequence[Line], *, memories: bool = True) -> str:
    cells = []
    for line in lines:
        learnt, held, bits, state = map(line.shown, ("learned", "K90", BEYOND, "state bytes"))
        beside = [line.memories()] if memories else []
        cells.append([line.label, learnt, held, *beside, bits, state, line.rate()])
    titles = ["K90 of memories"] if memories else []
    return grid(["mixer", "learned", "K90", *titles, BEYOND, "state bytes", "rate"], cells)


def below_the_best(own: Sequence[Line]) -> tuple[str, dict[str, str]]:
    """The mixer that has most bits of one width, and by how many bits each of the others has fewer: with a star where
    told apart, in parentheses where not tested. Attention is a ceiling, and left out. Of five seeds, some of which did
    not learn, the bootstrap's p is at least 1/16: no test."""
    ranked = [line for line in own if learned(line.row) and not line.row.at_the_edge and line.name != "attention"]
    top = best_of([line.row for line in ranked])
    best = next(line for line in ranked if line.row is top)

    def said(line: Line) -> str:
        if line is best:
            return "most"
        if holds_all(line.row) and holds_all(best.row):
            return "not compared"
        tested = line.every_seed_learned and best.every_seed_learned
        return str(line.said["vs best"]) if tested else f"({line.said['vs best']})"

    return best.name, {line.name: said(line) for line in ranked}


def ranks(lines: Mapping[int, list[Line]]) -> str:
    """The bits of every mixer less those of the best of its width; those that have most at d = 64 first."""
    found = {width: below_the_best(own) for width, own in lines.items()}
    names = [line.name for line in lines[64] if any(line.name in cells for _, cells in found.values())]
    cells = [[f"`{name}`", *(own.get(name, "-") for _, own in found.values())] for name in names]
    return grid(["mixer", *(f"d = {width}, less `{best}`" for width, (best, _) in found.items())], cells)


def tests(lines: Mapping[int, list[Line]]) -> str:
    """How many comparisons Holm counts at each width: those of seeds that all learned, with the baseline too."""
    counts = []
    for width, own in lines.items():
        rows = [line.row for line in own]
        others = with_all(rows)
        found = compared([row for row in rows if not row.at_the_edge], others)
        both = {frozenset((series, others[name].series)) for (series, name), one in found.items() if one.p is not None}
        counts.append(f"{len(both)} at d = {width}")
    return (
        f"Comparisons that are tested, those with plain `{BASELINE}` and of `attention` included: {', '.join(counts)}."
    )


def to_add(lines: Mapping[int, list[Line]]) -> str:
    """The rates that rows at an edge still want."""
    wanted = [
        f"`{line.name}` at d = {width} {' and '.join(f'{rate:g}' for rate in missing)}"
        for width, own in lines.items()
        for line in sorted(own, key=lambda line: line.name)
        if (missing := missing_rates(line.row))
    ]
    if not wanted:
        return "No chosen rate of a row that learned is at an edge of those tried."
    return f"Not ranked, since a rate beyond may be better, with the rates to add: {'; '.join(wanted)}."


def left_out(lines: Mapping[int, list[Line]]) -> str:
    """The accuracy at the smallest size of seeds that did not learn."""
    said = []
    for width, own in lines.items():
        for line in own:
            if short := sorted(curve(record)[0] for record in line.row.finished if not has_learned(record)):
                said.append(f"`{line.name}` at d = {width} {', '.join(f'{value:.2f}' for value in short)}")
    if not said:
        return "Every seed learned."
    return f"Seeds that did not learn, by their accuracy at 4 pairs: {'; '.join(said)}."


def by_rate(line: Line) -> str:
    """K90 of all seeds at each rate, and the largest of a single run."""
    found = {rate: line.at(rate) for rate in sorted(line.row.tried)}
    largest = max((seed for each in found.values() for seed in each.seeds), key=lambda seed: seed.value)
    said, width = (
        ", ".join(f"{each} at {rate:g}" for rate, each in found.items()),
        line.row.options["model"]["model_dim"],
    )
    return f"K90 of `{line.name}` at d = {width}, all seeds at one rate: {said}; of a single run at most {largest}."


def in_number(lines: Sequence[Line]) -> str:
    """How many pairs of the two largest sizes are recalled, on average over seeds."""
    said = []
    for line in lines:
        means = [fmean(column) for column in zip(*(curve(record) for record in line.row.finished), strict=True)]
        counts = [size * mean for size, mean in zip(sizes(line.row), means, strict=True)]
        said.append(f"`{line.name}` {counts[-2]:.0f} and {counts[-1]:.0f}")
    *_, one, other = sizes(lines[0].row)
    return f"Of {one} and of {other} pairs, recalled on average over all seeds: {', '.join(said)}."


def by_every_rate(lines: Sequence[Line]) -> str:
    """How many seeds learn at each rate, and K90 of those."""
    rates, cells = sorted({rate for line in lines for rate in line.row.tried}), []
    for line in lines:
        said = [f"`{line.name}`, {line.row.options['model']['model_dim']}"]
        for own in (line.row.tried.get(rate, {}).values() for rate in rates):
            curves = [curve(record) for record in own if has_learned(record)]
            held = f", {capacity_interval(sizes(line.row), curves).point}" if curves else ""
            said.append(f"{len(curves)}/{len(own)}{held}" if own else "-")
        cells.append(said)
    return grid(["mixer, d", *map("{:g}".format, rates)], cells)


def again() -> str:
    """How many pairs the rows that learned hold whose recurrences torch computed."""
    found = [line for line in lines_of(64, "torch") if learned(line.row)]
    said = ", ".join(f"`{line.label}` {line.held()}" for line in found)
    count = sum(len(by_seed) for line in found for by_seed in line.row.tried.values())
    return f"K90 at d = 64 with `--backend torch`, {count} runs: {said}."


def block(lines: Mapping[int, list[Line]]) -> str:
    """The finding: K90 by width and at nearly equal state, and who has significantly fewer bits."""
    early = stopped((width, line.name, line.row.finished) for width, own in lines.items() for line in own)
    mesa = beside_memories(next(line for line in lines[64] if line.name == "mesa"))
    said = [ranks(lines), tests(lines), to_add(lines), early, mesa, between_sizes(lines[64])]
    return "\n\n".join([overview(lines), of_like_state(lines), *said])


def stopped(rows: Iterable[tuple[int, str, Sequence[Record]]], steps: int = STEPS) -> str:
    """Which runs stopped before the end because they had solved every size, and when."""
    said = []
    for width, name, finished in rows:
        if early := sorted({last_step(record) for record in finished if last_step(record) < steps}):
            count = sum(last_step(record) < steps for record in finished)
            some = f"{count} of {len(finished)} seeds of " if count < len(finished) else ""
            when = f"{early[0]} to {early[-1]}" if len(early) > 1 else str(early[0])
            said.append(f"{some}`{name}` at d = {width}, step {when}")
    return f"Stopped early, since every size was solved: {'; '.join(said)}."


def last_step(record: Record) -> int:
    return int(record.metrics["curve"][-1]["step"])


def details(lines: Mapping[int, list[Line]]) -> str:
    seeds = {line.row.n for own in lines.values() for line in own}
    known = {str(said["seq_mixer"]): said for said in lines[64][0].table.rows}
    floor, ceiling = known["(1/K, a guess)"]["K90"], known["(oracle)"]
    bounds = f"A guess (1/K) has a K90 of {floor}; the exact lookup {ceiling['K90']}, and {ceiling[BEYOND]:.0f} bits."
    unsteady = by_rate(next(line for line in lines[128] if line.name == "linear_attention"))
    some_fail = [line for own in lines.values() for line in own if line.name in ("gated_delta_net", "kda")]
    by_seed = f"Seeds of two mixers that learn at each rate, and K90 of those:\n\n{by_every_rate(some_fail)}"
    tables = [part for width, own in lines.items() for part in (f"d = {width}:", whole(own))]
    setup = f"{setup_of(lines[64])}; {', '.join(map(str, seeds))} seeds."
    return "\n\n".join([*tables, bounds, left_out(lines), unsteady, by_seed, again(), setup])


def setup_of(lines: Sequence[Line]) -> str:
    """What the rows of a table have in common."""
    note = lines[0].table.note
    setup = next(line for line in note.splitlines() if line.startswith("Setup: ")).partition("; lr tried")[0]
    return setup.replace(" model_dim=64", "")


def without_convolution() -> str:
    """The mixers of preset `capacity-no-conv`, at the width that was trained."""
    lines = lines_of(64, convolved=False)
    rates = f"Seeds that learn at each rate, and K90 of those:\n\n{by_every_rate(lines)}"
    said = [left_out({64: lines}), in_number(lines), to_add({64: lines})]
    return "\n\n".join([whole(lines, memories=False), rates, *said, f"{setup_of(lines)}."])


def beside_memories(line: Line) -> str:
    """How far K90 of all its runs goes, and that of untrained memories: of its value matrix, and of all that it has."""
    runs = sorted((seed for rate in line.row.tried for seed in line.at(rate).seeds), key=lambda seed: seed.value)
    shape = memory_shape(line.row.options["model"]["seq_mixer"], line.row.options["model"]["model_dim"])
    assert shape is not None

    def held(rule: Rule, own: MemoryShape) -> str:
        return f"{untrained(rule, own, sizes(line.row))} ({own}, {4 * own.scalars(rule) / 1000:.0f} kB)"

    whole_state = replace(shape, d_v=shape.d_v + shape.d_k)
    state = f"{line.said['state bytes'] / 1000:.0f} kB"
    return (
        f"K90 of single runs of `{line.name}` ({state}): {runs[0]} to {runs[-1]}. Of untrained memories: "
        f"least squares with its Gram matrix {held('least squares', shape)}; Hebbian {held('hebbian', shape)} and "
        f"{held('hebbian', whole_state)}."
    )


def between_sizes(lines: Sequence[Line]) -> str:
    """How far K90 by the sizes asked for lies from K90 by more sizes, where recall is known without training."""
    asked = sizes(lines[0].row)
    every = range(asked[0], asked[-1] + 1)
    few, many = (crossing(pairs, [in_window(size) for size in pairs]) for pairs in (asked, every))
    said = [f"a window of {WINDOW} tokens {few} and {many}"]
    shape, dense = MemoryShape(1, 64, 64), sorted({*asked, *range(96, 256, 8)})
    for rule in RULES:
        said.append(f"the memory {rule}, {shape}, {untrained(rule, shape, asked)} and {untrained(rule, shape, dense)}")
    return f"K90 by the sizes asked for, and by sizes between them too: {'; '.join(said)}."


def in_window(pairs: int) -> float:
    """The share of questions whose value is in the window: pair i stands 2 (K - i) tokens before the first question,
    and each question takes two."""
    near = sum(pairs + asked - shown <= WINDOW // 2 for asked in range(pairs) for shown in range(pairs))
    return near / pairs**2


def placed(page: str) -> str:
    lines = {width: lines_of(width, "triton") for width in WIDTHS}
    page = between(between(page, "capacity", block(lines)), "all-numbers", details(lines))
    return between(page, "no-convolution", without_convolution())


if __name__ == "__main__":
    written(PAGE, placed, ship)
