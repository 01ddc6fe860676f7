"""The study's table and figures: columns and charts as data, drawn from rows."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

from assay.core.run import Record
from assay.core.study import Report
from assay.encoders import encoders
from assay.metrics.information import nce_cap
from assay.report.draw import Column, Points, bars, lines, per_setting, table
from assay.report.rows import Row, by_setting, rows, seeds_of
from assay.report.sentences import Measure, across, groups
from assay.studies.expressivity.references import REFERENCES, is_reference, planted
from assay.studies.expressivity.spec.config import Setup
from assay.studies.expressivity.spec.tester import NCE_BLOCK, SHARES

# Column -> metric, in the spec's order (its AfterTrainR2 is there only when training); ours follow.
SCORES = {
    "R2": "R2", "AfterTrainR2": "AfterTrainR2", "R2_0.75": "R2_0.75", "R2_0.50": "R2_0.50", "R2_0.25": "R2_0.25",
    "NCE(bits)": "NCE_bits", "RetrieveR2": "RetrieveR2", "entropy": "entropy", "sv_min": "sv_min",
    "sv_median": "sv_median", "Gini": "gini", "BA(bits)": "BA_bits", "RetrieveR2_trained": "RetrieveR2_trained",
    "erank": "erank", "logdet(bits)": "logdet_bits",
}  # fmt: skip
OPTIONAL = ("AfterTrainR2", "BA(bits)", "RetrieveR2_trained", "erank", "logdet(bits)")
"""Columns that the spec does not have, dropped where no row has a value."""
BOUNDED = ("R2", "R2_0.75", "R2_0.50", "R2_0.25", "NCE(bits)", "BA(bits)")
"""Scores whose ceiling is the ideal observer's score through the same probe."""
LOOKUPS = ("RetrieveR2", "RetrieveR2_trained")
RANKED = {
    "RetrieveR2_trained": "lookup by content after training (RetrieveR2_trained)",
    "R2": "recovery of the global factors (R2)",
    "NCE(bits)": "information about the global factors (NCE, bits)",
    "RetrieveR2": "lookup by content, untrained (RetrieveR2)",
}
"""Scores that encoders are ranked by, and what they are called in a sentence."""
LEAD = ("R2", "AfterTrainR2", "NCE(bits)", "RetrieveR2_trained")
"""Shown first, and where nothing was trained to look up, RetrieveR2."""
MARGIN = 0.05
FORMATS = {"sv_min": ".2e", "sv_median": ".2e"}
NOTES = {"BA(bits)": "BA(bits) is a lower bound too.", "Gini": "Gini is the diversity 1 - sum p^2."}
SIZE = "enc_params"
NOT_COLUMNS = {SIZE, "flops_per_token", "R2_1.00", "participation"}
"""Metrics that are shown under another name, or not at all."""


def report(records: Sequence[Record], out: Report) -> None:
    found = _rows(records)
    rivals = [row for row in found if not is_reference(_kind(row))]
    settings = {where: [row for row in rivals if row.where == where] for where in by_setting(found)}
    measures = {title: _measure(title, found) for title in RANKED}
    _say(settings, measures, out)
    ranks = {
        (title, series): group
        for title, measure in measures.items()
        for own in settings.values()
        for series, group in groups(own, measure).items()
    }
    note = _note(found, ranked=bool(ranks))
    # `fast` is stored as the options it sets, too.
    table(out, "expressivity", found, _columns(found, ranks), note=note, spread="", unsaid=["fast"])
    for suffix, own in per_setting(found, out):
        lines(
            out, f"r2_by_share{suffix}", own, _by_share, series=attrgetter("label"), y_title="held-out R²",
            x_title="share of the code kept (%)",
            caption="What a random share of the code still says about the global factors.",
        )  # fmt: skip
        lines(
            out, f"r2_by_components{suffix}", own, _by_components, series=attrgetter("label"), log_x=True,
            x_title="principal components k", y_title="held-out R²",
            caption="The same from its top k principal components: free of rotation.",
        )  # fmt: skip
        trained = [row for row in own if row.values("RetrieveR2_trained")]
        if trained:
            ceilings = {f"ceiling, {setup(row).keys} keys": setup(row).lookup().ceiling() for row in trained}
            caption = f"Lookup by content after {setup(trained[0]).end_to_end_steps} end-to-end steps."
            bars(
                out, f"retrieval{suffix}", trained, "RetrieveR2_trained", references=ceilings, caption=caption,
                value_title="RetrieveR2_trained",
            )  # fmt: skip


def _say(settings: Mapping[str, Sequence[Row]], measures: Mapping[str, Measure], out: Report) -> None:
    """Say what trained and untrained encoders score, and on which scores nothing is told apart."""
    rivals = [row for own in settings.values() for row in own]
    if not rivals:
        return
    steps = {setup(row).end_to_end_steps for row in rivals}
    trained = f"{' or '.join(map(str, sorted(steps)))} steps at one learning rate"
    where = {"of": "encoder", "over": "settings"}
    said = across(settings, measures["RetrieveR2_trained"], runs=trained, **where)
    if said:
        out.finding(said, chart="retrieval" if len(settings) == 1 else "retrieval_1")
    chart = "r2_by_share" if len(settings) == 1 else "r2_by_share_1"
    for title in ("R2", "NCE(bits)") if said else ("R2", "NCE(bits)", "RetrieveR2"):
        if sentence := across(settings, measures[title], runs="untrained", **where):
            out.finding(sentence, chart=chart)


def _measure(title: str, found: Sequence[Row]) -> Measure:
    metric = SCORES[title]
    noise = {row.where: score.mean for row in found if _kind(row) == "Noise" and (score := row.interval(metric))}

    def floor(row: Row) -> float:
        return noise.get(row.where, 0.0) + MARGIN

    return Measure(RANKED[title], metric, ceiling=_ceiling(title, found), floor=floor)


def _kind(row: Row) -> str:
    return str(row.options["model"]["name"])


def _ceiling(title: str, found: Sequence[Row]) -> Callable[[Row], float | None] | None:
    """The best score possible: what the ideal observer reaches through the same probe, or a lookup without error."""
    if title in LOOKUPS:
        return lambda row: setup(row).lookup().ceiling()
    if title not in BOUNDED:
        return None
    best = {row.where: row.interval(SCORES[title]) for row in found if _kind(row) == "Oracle"}

    def ideal(row: Row) -> float | None:
        oracle = best.get(row.where)
        return oracle.mean if oracle else None

    return ideal


def _rows(records: Sequence[Record]) -> list[Row]:
    """Pool records into rows by setting; in each, encoders come first, then the references."""
    found = rows(records, names={"Model": _name}, ignore=["model"])
    found = [_with_version(row) for row in found]
    order = {where: place for place, where in enumerate(by_setting(found))}
    last = {name: place for place, name in enumerate(REFERENCES, start=1)}
    return sorted(found, key=lambda row: (order[row.where], last.get(row.options["model"]["name"], 0), row.label))


def _name(record: Record) -> str:
    """Label an encoder by its spec name, its changed options, and how a code per token was pooled."""
    spec, pooled = record.run.options["model"], record.metrics.get("pool")
    kind = planted if is_reference(spec["name"]) else encoders
    name = spec["name"] if spec["name"] in REFERENCES else kind.label_of(spec)
    return f"{name} [{pooled}]" if pooled else str(name)


def _with_version(row: Row) -> Row:
    version = row.setting.get("version")
    name = row.names["Model"] + (f" @{version}" if version else "")
    setting = {key: value for key, value in row.setting.items() if key != "version"}
    return replace(row, names={"Model": name}, label=name, setting=setting)


def setup(row: Row) -> Setup:
    """The options of the row, as far as this version knows them."""
    known = {f.name for f in fields(Setup)}
    return Setup(**{key: value for key, value in row.options.items() if key in known})


def _columns(found: Sequence[Row], ranks: Mapping[tuple[str, str], str]) -> list[Column]:
    trained = any(row.values("RetrieveR2_trained") for row in found)

    def column(title: str, metric: str) -> Column:
        group = (lambda row: ranks.get((title, row.series))) if title in RANKED else None
        return Column(
            title,
            metric,
            FORMATS.get(title, ""),
            ceiling=_ceiling(title, found),
            group=group,
            note=NOTES.get(title, ""),
            always=title not in OPTIONAL,
            lead=title in LEAD or (title == "RetrieveR2" and not trained),
        )

    return [
        Column(
            "k-params",
            lambda row: row.first["enc_params"] / 1000 if "enc_params" in row.first else None,
            ".1f",
            always=True,
            lead=True,
        ),
        Column("sec/run", _seconds, ".2f", always=True),
        *(column(title, metric) for title, metric in SCORES.items()),
        Column("FLOPs/token", lambda row: row.first.get("flops_per_token"), ".0f"),
        *(Column(name, name, lead=True) for name in _extra_metrics(found)),
    ]


def _seconds(row: Row) -> float | None:
    """The median CPU time: the first run of a worker pays for its imports, and wall time depends on other processes."""
    return statistics.median(record.cost["cpu_seconds"] for record in row.finished) if row.finished else None


def _extra_metrics(found: Sequence[Row]) -> list[str]:
    """List the metrics that a subclass of the tester added: a column each."""
    known = set(SCORES.values()) | NOT_COLUMNS
    by_context = tuple(f"R2_{share:.2f}_ctx" for share in SHARES)
    names = dict.fromkeys(key for row in found for record in row.records for key in record.metrics)
    mine = [name for name in names if name not in known and not name.startswith(by_context)]
    return [name for name in mine if any(row.values(name) for row in found)]


def _note(found: Sequence[Row], *, ranked: bool) -> str:
    caps = {row.series: nce_cap(setup(row).batch_eval, NCE_BLOCK) for row in found}
    near = [row.series for row in found if (bits := row.interval("NCE_bits")) and bits.mean > 0.9 * caps[row.series]]
    saturated = f" Saturated (over 90 % of it): {', '.join(near)}." if near else ""
    spread = f" ± half the 95 % Student t interval over {seeds_of(found)}" if any(row.n > 1 for row in found) else ""
    shared = (
        "Encoders that share a letter are not told apart by these seeds (paired t, Holm); a is the best group. Where "
        f"no encoder is {MARGIN:g} above Noise there is nothing to rank.\n"
    )
    return (
        "Encoders are untrained, random features of each architecture, but in AfterTrainR2 and RetrieveR2_trained.\n"
        f"score{spread} / ceiling: what the ideal observer of the noisy input reaches.\n{shared if ranked else ''}"
        f"NCE(bits) is a lower bound and cannot exceed log2 n = "
        f"{' or '.join(f'{cap:.2f}' for cap in sorted(set(caps.values())))}.{saturated}"
    )


def _by_share(row: Row) -> Points:
    return [(100 * share, row.values(f"R2_{share:.2f}")) for share in SHARES]


def _by_components(row: Row) -> Points:
    """R2 from the top k components against k."""
    curves: dict[int, Any] = {record.run.seed: record.metrics.get("R2_pc") or [] for record in row.finished}
    longest = max(map(len, curves.values()), default=0)
    return [
        (k, {seed: curve[k - 1] for seed, curve in curves.items() if len(curve) >= k}) for k in range(1, longest + 1)
    ]
