"""What the spec says of its scores and of itself, asked of codes whose content is known and of its encoders."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.core.grouping import grouped
from assay.core.run import Record, canonical
from assay.metrics.ranks import spearman
from assay.report.claims import Check, Claim, has_options

Number = Callable[[Sequence[Record]], float]
Of = Callable[[Mapping[str, Any]], float]
SPEC = "the spec of the expressivity benchmark"
METRICS = f"{SPEC}, What the Metrics Mean"
SCORES = ("R2", "NCE_bits", "RetrieveR2", "gini")
OWN: Any = {"study": "expressivity", "preset": "planted", "exempt": "untrained codes, or the benchmark's own steps"}
FACTORS, BINS = ({"model": "planted_factors", "model.bins": bins} for bins in (0, 8))


def _check(what: str, number: Number, rows: Any, short: str = "", **wanted: Any) -> Check:
    """A number for each seed, from all of its chosen runs."""

    def measure(records: Sequence[Record]) -> Mapping[int, float]:
        return {seed: float(number(own)) for seed, own in grouped(records, lambda record: record.run.seed).items()}

    return Check(what=what, short=short, measure=measure, rows=rows, **wanted)


def _ranked(score: Of, known: Of) -> Number:
    """The rank correlation of a score with what is known of the codes."""
    return lambda own: spearman([round(score(r.metrics), 6) for r in own], [known(r.run.options["model"]) for r in own])


def _less(score: Of, one: Any, other: Any) -> Number:
    """The score of one code less that of another."""
    signs = ((1, one), (-1, other))
    return lambda own: sum(sign * score(r.metrics) for sign, code in signs for r in own if has_options(r.run, code))


def _tolerance(metrics: Mapping[str, Any]) -> float:
    return float(metrics["R2_0.25"] / metrics["R2"])


def _moved(own: Sequence[Record]) -> float:
    one, other = (record.metrics for record in own)
    return max(abs(one[name] - other[name]) for name in (*SCORES, "R2_0.75", "R2_0.50", "R2_0.25", "entropy"))


def _scored(own: Sequence[Record]) -> float:
    """How many encoders have a finite number for every score; references have none for some."""
    asked = [r.metrics for r in own if not r.run.options["model"]["name"].startswith("planted")]
    return sum(all(math.isfinite(found.get(name, math.nan)) for name in SCORES) for found in asked)


CLAIMS = {
    "expressivity-drop": Claim(
        claim="High drop tolerance (R2_0.25 over R2) means strong compression, many factors in few units.",
        short="High drop tolerance means strong compression.",
        source=METRICS,
        **OWN,
        checks=(
            _check(
                "drop tolerance against factors held per unit in use, rank correlation over six planted codes",
                _ranked(_tolerance, lambda code: 1 / code["copies"]),
                FACTORS,
                "correlation with factors per unit",
                at_least=0.8,
            ),
            _check(
                "drop tolerance of one factor in 32 units less that of four factors in four units",
                _less(_tolerance, {"model.factors": 1, "model.copies": 32}, {"model.factors": 4, "model.copies": 1}),
                FACTORS,
                at_most=0,
            ),
        ),
    ),
    "expressivity-nce": Claim(
        claim="NCE(bits) is a mutual-information proxy between latent and global factors: higher is better.",
        short="NCE(bits) is a proxy of mutual information: higher is better.",
        source=METRICS,
        **OWN,
        checks=tuple(
            _check(
                f"NCE against known bits, rank correlation over {what}",
                _ranked(lambda scores: scores["NCE_bits"], lambda code: code["factors"] * math.log2(code["bins"])),
                rows,
                "its rank correlation with known bits",
                at_least=0.8,
            )
            for what, rows in (
                ("four codes that number the bins of their factors in order", BINS | {"model.numbered": "in_order"}),
                ("those and four of the same bits, numbered at random", BINS),
            )
        ),
    ),
    "expressivity-lookup": Claim(
        claim="RetrieveR2 measures practical token-token interaction.",
        source=METRICS,
        **OWN,
        checks=(
            _check(
                "largest distance of RetrieveR2 from the share of keys that four planted codes look up",
                lambda own: max(abs(r.metrics["RetrieveR2"] - r.run.options["model"]["share"]) for r in own),
                {"model": "planted_lookup"},
                at_most=0.05,
            ),
            _check(
                "RetrieveR2 of attention as built, which reaches 0.99 in 300 steps end to end, over what it reaches",
                lambda own: sum(r.metrics["RetrieveR2"] / r.metrics["RetrieveR2_trained"] for r in own),
                {"model": "self_attn"},
                "attention as built over trained",
                at_least=0.5,
            ),
        ),
    ),
    "expressivity-spectra": Claim(
        claim="Flat spectra and high gini mean richer representations.",
        source=METRICS,
        **OWN,
        checks=(
            _check(
                "gini against how flat a map is, and so how much it carries at one power, rank correlation",
                _ranked(lambda scores: scores["gini"], lambda code: code["ratio"]),
                {"model": "planted_map", "model.factors": False},
                at_least=0.8,
            ),
            _check(
                "R2 of a flat map that reads no factor less that of a steep one that reads all four",
                _less(
                    lambda scores: scores["R2"],
                    {"model.ratio": 1.0, "model.factors": False},
                    {"model.ratio": 0.7, "model.factors": True},
                ),
                {"model": "planted_map"},
                "R2 of a flat map less a steep one",
                at_least=0,
            ),
        ),
    ),
    "expressivity-properties": Claim(
        claim="The benchmark is data-free and architecture-agnostic, has both kinds of metric, and takes seconds.",
        short="The benchmark needs no data, takes any encoder, and seconds.",
        source=f"{SPEC}, Key Properties",
        **OWN,
        checks=(
            _check(
                "encoders with a finite number for every score, of seven (attention, convolution, recurrence, maps)",
                _scored,
                {},
                "encoders of seven with every score",
                over="min",
                at_least=7,
            ),
            _check(
                "runs that name a file of data",
                lambda own: sum("sha256" in canonical(r.run.options) for r in own),
                {},
                over="max",
                at_most=0,
            ),
            _check(
                "CPU seconds of a whole evaluation on one core, slowest of seven encoders",
                lambda own: max(float(r.cost["cpu_seconds"]) for r in own),
                {},
                at_most=60,
            ),
        ),
    ),
    "expressivity-reproducible": Claim(
        claim="The benchmark is deterministic: two evaluations of one encoder give the same scores.",
        short="Two evaluations of one encoder give the same scores.",
        source=f"{SPEC}, Key Properties; one evaluation has 300 steps of training end to end after it",
        **OWN,
        options={"models": ["self_attn"], "planted": []},
        grid={"retr_train_steps": [0, 300]},
        checks=(_check("largest difference of a score", _moved, {"model": "self_attn"}, over="max", at_most=0),),
    ),
}
