"""The field at equal numbers of active units, as docs/findings_sae.py writes it."""

from collections.abc import Mapping, Sequence

from findings_words import ruled, shown, spread, without_equal_n

from assay.metrics.intervals import holm, paired_difference, paired_p, student_t
from assay.report.rows import Row
from assay.studies.sae.curves import TARGETS, WIDEST, at_equal_l0, rate_shown
from assay.studies.sae.report import MEASURES, REFERENCE

TOLD_APART = 0.05
"""Of adjusted p values."""
TIMES = 8
"""Units for each input from which a code is overcomplete."""
HEADLINE = ("dictionary", "activations")
"""Data sets of the overcomplete comparison."""


def against_reference(found: Mapping[str, Mapping[int, float]], measure: str) -> dict[str, str]:
    """Each curve of one L0 against the decoder-free coder's: better, worse or not told apart, by paired t and Holm."""
    if REFERENCE not in found:
        return {}
    own = found[REFERENCE]
    others = {name: values for name, values in found.items() if name != REFERENCE and values.keys() & own.keys()}
    adjusted = holm({name: paired_p(values, own) for name, values in others.items()})
    said = {}
    for name, values in others.items():
        gain = paired_difference(values, own).mean * (-1 if measure == "FVU" else 1)
        said[name] = "not told apart" if adjusted[name] >= TOLD_APART else "better" if gain > 0 else "worse"
    return said


def field_at_equal_l0(points: Sequence[Row]) -> list[str]:
    """Every coder that has a curve, at equal numbers of active units, beside the decoder-free one."""
    reached = _reached(points)
    measured = _measured(reached)
    if not reached:
        return []
    text = (
        f"*The field at equal L0, against `{REFERENCE}`.* Every rate is a curve over the levels that are not "
        f"dominated, read between levels at most a factor of {WIDEST:g} apart, where every seed reaches; each seed "
        "counts at the rate (lr; *: some seed's is at the edge) with the least validation FVU at that L0 over the "
        f"others. Better or worse: paired t over seeds, p below {TOLD_APART:g} after Holm over the coders of one L0; "
        f"not told apart otherwise.{_floor(points, measured)}"
    )
    lines, rows = [text], []
    for target, at in reached.items():
        by_seed = {
            name: {coder: cell.values(metric) for coder, cell in at.items()} for name, metric in measured.items()
        }
        said = {name: against_reference(found, name) for name, found in by_seed.items()}
        lines.append(f"- L0 {target:g}: {_summary(said)}.")
        for coder, cell in at.items():
            cells = [f"{target:g}", f"`{coder}`", rate_shown(cell) or "-", str(len(cell.seeds))]
            for name, found in by_seed.items():
                cells += _compared(found, coder, said[name].get(coder))
            rows.append(cells)
    head = ["L0", "coder", "lr", "n", *(title for name in measured for title in (name, f"minus `{REFERENCE}`"))]
    return ["\n".join(lines), ruled(*without_equal_n(head, rows))]


def _reached(points: Sequence[Row]) -> dict[float, dict[str, Row]]:
    """By L0, the curves that reach it, where there are several."""
    found = {target: at_equal_l0(points, target) for target in TARGETS}
    return {target: at for target, at in found.items() if len(at) > 1}


def _measured(reached: Mapping[float, Mapping[str, Row]]) -> dict[str, str]:
    """The measures that any curve has."""
    every = [cell for at in reached.values() for cell in at.values()]
    metrics = {column.title: str(column.value) for column in MEASURES}
    return {name: metric for name, metric in metrics.items() if any(cell.values(metric) for cell in every)}


def overcomplete(points: Sequence[Row], units: int) -> list[Row]:
    """The points, if they have enough units for each input; how many inputs there are is told by the encoder's size."""
    # units x (inputs + 1): a bias for each unit
    sizes = [row.first["params"] for row in points if row.names["coder"].startswith(REFERENCE) and row.finished]
    return list(points) if sizes and units >= TIMES * (int(sizes[0]) // units - 1) else []


def overcomplete_at_equal_l0(fields: Mapping[str, Sequence[Row]], titles: Mapping[str, str]) -> str:
    """Every coder against the decoder-free one on the data sets with codes of at least 8 units for each input."""
    absent = [kind for kind in HEADLINE if not any(name.partition(" ")[0] == kind for name in fields)]
    parts = [
        f"### Overcomplete codes: at least {TIMES} units for each input\n\n*Each coder minus `{REFERENCE}` at equal "
        "L0*, paired over seeds, 95 %; the rules and the values themselves are in the part of each data set."
    ]
    if absent:
        parts.append("Not run: " + ", ".join(f"{titles[kind]} (`{kind}`)" for kind in absent) + ".")
    for name, points in fields.items():
        kind = name.partition(" ")[0]
        rows, head = _minus_reference(points)
        said = ruled(head, rows) if rows else f"`{REFERENCE}` has no L0 in common with another coder."
        parts += [f"{titles.get(kind, kind)} (`{name}`):", said]
    return "\n\n".join(parts)


def _minus_reference(points: Sequence[Row]) -> tuple[list[list[str]], list[str]]:
    rows, measured = [], _measured(reached := _reached(points))
    for target, at in reached.items():
        by_seed = {
            name: {coder: cell.values(metric) for coder, cell in at.items()} for name, metric in measured.items()
        }
        said = {name: against_reference(found, name) for name, found in by_seed.items()}
        for coder, cell in at.items():
            if coder != REFERENCE and REFERENCE in at:
                cells = [_compared(found, coder, said[name].get(coder))[1] for name, found in by_seed.items()]
                rows.append([f"{target:g}", f"`{coder}`", str(len(cell.seeds)), *cells])
    return rows, ["L0", "coder", "n", *measured]


def _floor(points: Sequence[Row], measured: Mapping[str, str]) -> str:
    """What units that learned nothing score against known atoms."""
    random = next((row for row in points if row.names["coder"] == "random_relu"), None)
    known = [name for name in ("atoms", "firing F1") if name in measured and random and random.values(measured[name])]
    if random is None or not known:
        return ""
    scores = ", ".join(f"{name} {spread(random.interval(measured[name]))}" for name in known)
    return f" The floor, that random units reach (`random_relu`): {scores}."


def _summary(said: Mapping[str, Mapping[str, str]]) -> str:
    if not any(said.values()):
        return f"`{REFERENCE}` does not reach it"
    parts = []
    for measure, verdicts in said.items():
        groups = {
            verdict: ", ".join(f"`{name}`" for name, mine in verdicts.items() if mine == verdict)
            for verdict in ("better", "not told apart", "worse")
        }
        parts.append(f"by {measure} " + "; ".join(f"**{key}** {names}" for key, names in groups.items() if names))
    return ". ".join(part for part in parts if "**" in part)


def _compared(found: Mapping[str, Mapping[int, float]], name: str, said: str | None) -> list[str]:
    """A value, and its difference from the reference."""
    values = found.get(name, {})
    value = spread(student_t(list(values.values()))) if values else "-"
    if said is None:
        return [value, "-"]
    return [value, f"{shown(paired_difference(values, found[REFERENCE]), '+.3f')} {said}"]
