"""Write what docs/capacity.md says of runs that were made again by mended kernels, from records that ship.

    python docs/mended_icl.py

The records of before lie in src/assay/shipped/icl.faulty.jsonl.xz, and no other page and no claim reads them.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from capacity_icl import NAME, PAGE
from masks_perplexity import between

from assay.core import shipped
from assay.core.run import Record
from assay.metrics.intervals import student_t
from assay.report.text import with_interval
from assay.studies.icl.capacity import has_convolution
from assay.studies.icl.k90 import capacity_interval
from assay.studies.icl.learning import has_learned

MUCH = 0.05
"""A change of accuracy that is told one by one."""


class Pair(NamedTuple):
    before: Record
    after: Record

    @property
    def moved(self) -> float:
        return self.after.metrics["accuracy"] - self.before.metrics["accuracy"]

    @property
    def turned(self) -> bool:
        """Whether one of the two learned 4 pairs, and the other did not."""
        return has_learned(self.before) != has_learned(self.after)

    @property
    def in_zoology(self) -> bool:
        """Whether it is in zoology's layout, whose sequences are others."""
        return self.after.run.options["task"].get("cells") == "zoology"

    @property
    def mixer(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.after.run.options["model"]["seq_mixer"]
        last: Mapping[str, Any] = found["pattern"][-1] if found["name"] == "hybrid" else found
        return last

    def is_of(self, name: str, **options: object) -> bool:
        model, lr = self.after.run.options["model"], self.after.run.options["optimizer"]["lr"]
        own = {"width": model["model_dim"], "rate": lr, "steps": self.after.run.options["train"]["max_steps"]}
        return self.mixer["name"] == name and all(own[key] == value for key, value in options.items())


def pairs() -> list[Pair]:
    after = {record.run.id: record for name in (NAME, "icl") for record in shipped.records(name)}
    return [Pair(record, after[record.run.id]) for record in shipped.records("icl.faulty")]


def k90(found: Sequence[Record]) -> str:
    sizes = sorted(map(int, found[0].metrics["by_size"]))
    return f"{capacity_interval(sizes, [[r.metrics['by_size'][str(size)] for size in sizes] for r in found])}"


def moves(found: Sequence[Pair]) -> str:
    mean = student_t([pair.moved for pair in found])
    assert mean is not None
    typical = median(abs(pair.moved) for pair in found)
    return f"{len(found)} runs moved by {typical:.3f} in the median, and by {with_interval(mean, 'z.3f')} on average"


def much(found: Sequence[Pair]) -> list[Pair]:
    return [pair for pair in found if abs(pair.moved) > MUCH]


def block() -> str:
    every = pairs()
    convolved = [pair for pair in every if has_convolution(pair.mixer)]
    bare = [pair for pair in every if pair not in convolved]
    others = sum(pair.before.cost["trained_together"] != pair.after.cost["trained_together"] for pair in every)
    mamba = [pair for pair in convolved if pair.is_of("mamba2")]
    lines = [
        f"Of {len(every)} runs that were made again, {others} had another number of models trained beside them.",
        "",
        f"- `mamba2` with a convolution, accuracy over all sizes: {moves([p for p in mamba if not p.in_zoology])}; in "
        f"zoology's layout {moves([p for p in mamba if p.in_zoology])}.",
        f"- {len(convolved)} runs with a convolution: {len(much(convolved))} moved by more than {MUCH}.",
    ]
    for pair in sorted(much(convolved), key=lambda pair: pair.moved):
        options = pair.after.run.options
        lines.append(
            f"  - `{pair.mixer['name']}`, d = {options['model']['model_dim']}, rate {options['optimizer']['lr']}, "
            f"{options['train']['max_steps']} steps{' in zoology' * pair.in_zoology}, seed {pair.after.run.seed}: from "
            f"{pair.before.metrics['accuracy']:.2f} to {pair.after.metrics['accuracy']:.2f}"
        )
    lines += [
        f"- {len(bare)} runs without a convolution: {len(much(bare))} moved by more than {MUCH}, "
        f"{sum(pair.turned for pair in bare)} of them from learned to not learned or back.",
        "",
        "| `mamba2`, all seeds at one rate | K90 before | K90 now |",
        "|---|---|---|",
    ]
    doubled = [pair for pair in mamba if pair.is_of("mamba2", width=32, steps=12000)]
    shown = {"d = 32, 196M tokens, 0.01": doubled} | {
        f"without a convolution, d = 64, {rate}": [pair for pair in bare if pair.is_of("mamba2", rate=rate)]
        for rate in (0.01, 0.03)
    }
    for name, own in shown.items():
        lines.append(f"| {name} | {k90([pair.before for pair in own])} | {k90([pair.after for pair in own])} |")
    return "\n".join(lines)


def placed(page: str) -> str:
    return between(page, "mended", block())


if __name__ == "__main__":
    PAGE.write_text(placed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
