"""Write the tables of docs/speed.md from docs/speed.json, where one run of the benchmarks on a GPU lies.

    python docs/speed_icl.py                                 # the tables
    python docs/speed_icl.py --take LAYERS.json STEPS.json   # first take the files of another run
    python docs/speed_icl.py --language FILE.json ...        # of `benchmarks/language_cuda.py --json`, one per length

LAYERS.json is of `benchmarks/mixers_cuda.py --check --json`, STEPS.json of `benchmarks/training_cuda.py steps --json`.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from masks_perplexity import between

PAGE, MEASURED = Path(__file__).parent / "speed.md", Path(__file__).parent / "speed.json"
LANGUAGE = PAGE.with_name("speed_language.json")
LENGTHS = (256, 1024, 4096)
PARTS = ("products", "heads", "scan", "norm and gate", "decays", "rest")
ALLOWED = 2.0
"""The speed over attention's that is our goal at the largest length."""
Measured = Mapping[str, Any]


def take(layers: Path, steps: Path) -> None:
    """Keep what the page shows of a run, with as many digits as mean something."""
    told, trained = json.loads(layers.read_text()), json.loads(steps.read_text())
    for part in told["parts"]:
        del part["kernels"]
    told["steps"] = trained["steps"]
    rounded = json.loads(json.dumps(told), parse_float=lambda word: float(f"{float(word):.4g}"))
    MEASURED.write_text(_lines(rounded), encoding="utf-8")


def _lines(told: Measured) -> str:
    """JSON with one line per row of a table."""
    said = []
    for key, value in told.items():
        rows = ",\n  ".join(json.dumps(row) for row in value) if isinstance(value, list) else ""
        said.append(f" {json.dumps(key)}: " + (f"[\n  {rows}\n ]" if rows else json.dumps(value)))
    return "{\n" + ",\n".join(said) + "\n}\n"


def take_language(paths: Sequence[Path]) -> None:
    """Keep the steps of a token language model, without their kernels."""
    found = [json.loads(path.read_text()) for path in paths]
    told = {key: found[0][key] for key in ("device", "torch", "source", "date")}
    assert all(each["source"] == told["source"] for each in found), "measured with several versions"
    rows = [{k: v for k, v in row.items() if k not in ("parts", "calls")} for each in found for row in each["steps"]]
    told |= {"steps": rows, "check": [row for each in found for row in each["check"]]}
    rounded = json.loads(json.dumps(told), parse_float=lambda word: float(f"{float(word):.4g}"))
    LANGUAGE.write_text(_lines(rounded), encoding="utf-8")


def language() -> str:
    """The steps at each length, beside attention's, and how near fast steps come to the plain loop."""
    told = json.loads(LANGUAGE.read_text(encoding="utf-8"))
    by = {(row["mixer"], row["length"]): row for row in told["steps"]}
    first = told["steps"][0]["mixer"]

    def cells(mixer: str) -> Iterator[str]:
        for length in dict.fromkeys(length for _, length in by):
            row = by.get((mixer, length))
            over = row["tokens/s"] / by[first, length]["tokens/s"] if row else 0.0
            yield f"{row['tokens/s'] / 1e6:.2f}M ({over:.2f})" if row else "-"
        row = by[mixer, told["steps"][0]["length"]]
        yield from (f"{row['share']:.0%}".replace("%", " %"), f"{row['GB']:.1f} GB")

    lengths = (f"L = {length:,}" for length in dict.fromkeys(length for _, length in by))
    mixers = dict.fromkeys(mixer for mixer, _ in by)
    off = "; ".join(f"`{row['mixer']}` {row['off plain']:+.4f}" for row in told["check"])
    return (
        f"{table(['mixer', *lengths, 'of 989 TFLOP/s', 'memory'], ((f'`{m}`', *cells(m)) for m in mixers))}\n\n"
        f"Loss after 50 steps less that of the plain loop in float32, in nats: {off}."
    )


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)])


def layers(told: Measured) -> str:
    worst: dict[str, dict[str, list[float]]] = {}
    for row in told["check"]:
        by = worst.setdefault(row["mixer"], {"kernels": [0, 0], "torch": [0, 0]})
        for whose, found in by.items():
            found[:] = map(max, found, row[whose])
        assert row["right"], row

    def rows() -> Iterator[Sequence[str]]:
        for row in told["train"]:
            speeds = (row[f"L = {length}"] for length in LENGTHS)
            cells = (f"{cell['tokens/s'] / 1e6:.1f}M ({cell['over attention']:.2f})" for cell in speeds)
            ours, torch = worst[row["mixer"]].values()
            errors = "; ".join(f"{a:.2g} / {b:.2g}" for a, b in zip(ours, torch, strict=True))
            yield f"`{row['mixer']}`", *cells, row["goals"], errors

    return table(
        ["mixer", *(f"L = {length}" for length in LENGTHS), "goals", "errors: outputs; worst gradient"], rows()
    )


def parts(told: Measured) -> str:
    shown = ((f"`{row['mixer']}`, {row['length']}", *_milliseconds(row)) for row in told["parts"])
    long = [row for row in told["parts"] if row["length"] == LENGTHS[-1] and "window" not in row["mixer"]]
    around = {row["mixer"].partition(":")[0]: sum(row["ms"].values()) - row["ms"]["scan"] for row in long}
    attention = told["train"][0][f"L = {LENGTHS[-1]}"]["tokens/s"]
    allowed = told["tokens"] / attention * 1e3 / ALLOWED
    said = ", ".join(f"`{name}` {took:.2f}" for name, took in sorted(around.items(), key=lambda item: item[1]))
    over = sum(took > allowed for took in around.values())
    return (
        f"{table(['mixer, L', *PARTS], shown)}\n\n"
        f"The goal at {LENGTHS[-1]} tokens allows {allowed:.2f} ms for a whole step. What stands around the scan takes "
        f"so many ms: {said}. For {over} of {len(around)} this alone is more than is allowed."
    )


def _milliseconds(row: Measured) -> list[str]:
    return [f"{row['ms'][part]:.3f}" for part in PARTS]


def steps(told: Measured) -> str:
    speeds: dict[str, dict[int, float]] = {}
    for row in told["steps"]:
        speeds.setdefault(row["mixer"], {})[row["layers"]] = row["tokens/s"]
    ordered = sorted(speeds.items(), key=lambda item: -item[1][1])
    return table(
        ["mixer", "one layer, tokens/s", "two layers"],
        ((f"`{mixer}`", *(f"{by[count] / 1e6:.1f}M" for count in (1, 2))) for mixer, by in ordered),
    )


def decoding(told: Measured) -> str:
    def cells(row: Measured) -> Iterator[str]:
        for length in LENGTHS:
            cell = row[f"L = {length}"]
            yield f"{cell['us']:.0f} us, {cell['bytes'] / 1e3:.1f} kB"

    return table(
        ["mixer", *(f"L = {length}" for length in LENGTHS)],
        ((f"`{row['mixer']}`", *cells(row)) for row in told["decode"]),
    )


BLOCKS = {"layers": layers, "parts": parts, "steps": steps, "decoding": decoding}


def placed(page: str) -> str:
    told = json.loads(MEASURED.read_text(encoding="utf-8"))
    for name, block in BLOCKS.items():
        page = between(page, name, block(told))
    return between(page, "language", language())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--take"]:
        take(*map(Path, sys.argv[2:4]))
    if sys.argv[1:2] == ["--language"]:
        take_language(list(map(Path, sys.argv[2:])))
    PAGE.write_text(placed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
