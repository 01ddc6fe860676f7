"""Write what the records that ship with assay say of the spec's key findings into docs/modular.md.

    python docs/widths_modular.py

Which width is enough comes from the runs of the claims `modular-width`, `modular-width-61` and `modular-width-113`:
their own, and those that chose their recipe. The other claims have a line each.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from masks_perplexity import between

from assay.command.findings import Sources, judged, planned
from assay.core.run import Record
from assay.metrics.intervals import Interval, share
from assay.report.certificate import Finding
from assay.report.claims import Judged
from assay.studies.modular.claims import CLAIMS, share_perfect
from assay.studies.modular.thresholds import is_perfect, was_perfect

PAGE = Path(__file__).parent / "modular.md"


def findings() -> dict[str, Finding]:
    sources = Sources(Path("none"))
    return {name: judged(name, claim, sources) for name, claim in CLAIMS.items()}


def by_width(records: Sequence[Record]) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.run.options["d_hidden"]):
        found.setdefault(record.run.options["d_hidden"], []).append(record)
    return found


def held_out(record: Record) -> bool:
    """Whether it answers the validation pairs at the end too."""
    return is_perfect(record) and record.metrics["val_acc"] == 1


def row(P: int, width: int, runs: Sequence[Record]) -> str:
    accuracy = share([record.metrics["test_acc"] for record in runs])
    epochs = [record.metrics["epochs_to_perfect"] for record in runs if record.metrics["epochs_to_perfect"] is not None]
    first = f"{median(epochs):.0f} ({len(epochs)}/{len(runs)})" if epochs else "-"
    perfect, all_pairs, spec = (sum(map(told, runs)) for told in (is_perfect, held_out, was_perfect))
    n, bounds = len(runs), f"[{accuracy.low:.4f}, {accuracy.high:.4f}]"
    return f"| {P} | {width} | {perfect}/{n} | {all_pairs}/{n} | {accuracy.mean:.4f} {bounds} | {spec}/{n} | {first} |"


def table(found: Mapping[str, Finding]) -> str:
    head = [
        "| P | d | answer all test pairs | and all validation pairs | test accuracy | validation perfect at an epoch "
        "| from epoch |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = [
        row(one.claim.options["P"], width, runs)
        for one in found.values()
        for width, runs in by_width(one.records).items()
    ]
    return "\n".join([*head, *rows])


def thresholds(found: Mapping[str, Finding]) -> str:
    head = [
        "| P | rate, decay | d = 10: all test pairs at the end | d = 10: all validation pairs at an epoch "
        "| half of the runs by that, from width | verdict | why |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = []
    for one in found.values():
        at_end = share_perfect(one.records, widths=(10,))
        numbers = " | ".join([_share(at_end), *(check.number for check in one.judged)])  # in the order of claims.py
        failed = [f"{part.name}: {part.said}" for part in one.parts if not part.holds]
        why, asked = "; ".join(failed) or "the certificate is whole", one.claim.options
        recipe = f"{asked['lr']:g}, {asked['weight_decay']:g}"
        rows.append(f"| {asked['P']} | {recipe} | {numbers} | {one.verdict.word} | {why} |")
    return "\n".join([*head, *rows])


def _share(found: Interval) -> str:
    return f"{found.mean:.4g} [{found.low:.4g}, {found.high:.4g}]"


def recipes(found: Mapping[str, Finding]) -> str:
    """How many of the runs of width 10 are perfect by each recipe that was compared, on seeds 0 to 9."""
    head = ["| rate | decay | " + " | ".join(f"P = {one.claim.options['P']}" for one in found.values()) + " |"]
    tried: dict[tuple[float, float], dict[str, list[Record]]] = {}
    for name, one in found.items():
        own = {run.seed for run in planned(one.claim)}
        for record in (record for record in one.behind if record.run.seed not in own):
            recipe = record.run.options["lr"], record.run.options["weight_decay"]
            tried.setdefault(recipe, {}).setdefault(name, []).append(record)
    rows = [f"| {rate:g} | {decay:g} | " + " | ".join(_cell(by_name.get(name, ())) for name in found) + " |"
            for (rate, decay), by_name in sorted(tried.items())]  # fmt: skip
    return "\n".join([*head, "|---|---|---|---|---|", *rows])


def _cell(runs: Sequence[Record]) -> str:
    if not runs:
        return "-"  # a recipe of another P's grid
    accuracy = share([record.metrics["val_acc"] for record in runs])
    return f"{sum(map(is_perfect, runs))}/{len(runs)}, {accuracy.mean:.4f}"


def verdicts(found: Mapping[str, Finding]) -> str:
    """The other claims, with every number that was asked for."""
    rows = [
        f"| `{name}` | {one.claim.claim} | **{one.verdict}** | {'; '.join(map(_number, one.judged))} |"
        for name, one in found.items()
    ]
    return "\n".join(["| claim | it says | verdict | found |", "|---|---|---|---|", *rows])


def _number(judged: Judged) -> str:
    return f"{judged.check.what}: {judged.number} (wanted {judged.check.wanted})"


def placed(page: str) -> str:
    found = findings()
    widths = {name: found[name] for name in ("modular-width", "modular-width-61", "modular-width-113")}
    others = {name: one for name, one in found.items() if name not in widths}
    texts = {
        "thresholds": thresholds(widths),
        "widths": table(widths),
        "recipes": recipes(widths),
        "verdicts": verdicts(others),
    }
    for name, text in texts.items():
        page = between(page, name, text)
    return page


if __name__ == "__main__":
    PAGE.write_text(placed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
