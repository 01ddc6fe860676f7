"""The key findings of the spec on modular addition, and what has to come out here.

The spec trains 64 models, one per width, stops each at its first epoch without a wrong validation pair, and reports
those pairs. Here rate and decay are chosen on the validation pairs of seeds 0 to 9, the rate falls to 0 over the last
half of the epochs, no model stops early, and other seeds are reported, by their test pairs at the end: a stricter
criterion, which no run of width 10 meets at P = 64, where 7 of 10 have an epoch without a wrong validation pair. What
is measured from weights is in evidence.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from assay.core.on_use import Later
from assay.core.run import Record
from assay.metrics.intervals import Interval, wilson
from assay.report.claims import Certificate, Check, Claim

evidence: Any = Later("assay.studies.modular.evidence")  # torch, which only a number that is asked for needs
thresholds: Any = Later("assay.studies.modular.thresholds")
WIDE = 10
"""The width from which on models are perfect, by the spec."""


def share_perfect(records: Sequence[Record], *, widths: Sequence[int] = ()) -> Interval:
    """The share of the runs of these widths (by default, of 10 or more) that answer every test pair at the end, with
    Wilson's interval."""
    asked = [r for r in records if (d := r.run.options["d_hidden"]) in widths or (not widths and d >= WIDE)]
    return replace(wilson(sum(map(thresholds.is_perfect, asked)), len(asked)), n=thresholds.seeds_of(records))


def all_perfect(records: Sequence[Record]) -> Interval | None:
    """The narrowest width from which on every run of every width is perfect; None where one of the widest is not."""
    every: dict[int, bool] = {}
    for record in records:
        width = record.run.options["d_hidden"]
        every[width] = every.get(width, True) and thresholds.is_perfect(record)
    found = thresholds.from_here_on(every)
    return None if found is None else Interval(float(found), None, None, thresholds.seeds_of(records))


def half_perfect(records: Sequence[Record]) -> Interval:
    """The width at which half of the runs are perfect, by a logistic fit, with its interval over resampled seeds."""
    passed: dict[int, dict[int, bool]] = {}
    for record in records:
        passed.setdefault(record.run.options["d_hidden"], {})[record.run.seed] = thresholds.is_perfect(record)
    found = thresholds.half_pass(passed)
    return Interval(found.width, found.low, found.high, thresholds.seeds_of(records))


Measure = Callable[[Sequence[Record]], Interval | None]


def _width(P: int) -> tuple[Check, ...]:
    """The first check speaks for the claim: a width says more than that no run of width 10 is perfect."""
    tried, wide = ", ".join(map(str, WIDTHS)), sum(d >= WIDE for d in WIDTHS)
    asked: Sequence[tuple[str, Measure, Mapping[str, Any]]] = (
        ("width where half of the runs answer every test pair", half_perfect, {"at_most": WIDE}),
        (f"narrowest of the widths {tried} from which on all runs do", all_perfect, {"at_most": WIDE}),
        (f"share of the runs with d = {WIDE} that do", partial(share_perfect, widths=(WIDE,)), {"at_least": 0.95}),
        (f"share of the runs of the {wide} widths tried from {WIDE} on", share_perfect, {"at_least": 0.95}),
    )
    return tuple(
        Check(what=f"{what}, P = {P}", measure=measure, rows={"P": P}, **limit) for what, measure, limit in asked
    )


def _trained(
    P: int,
    *,
    number: Check | None = None,
    rates: Sequence[float] = (0.01, 0.03, 0.1, 0.3),
    decays: Sequence[float] = (0.01, 0.1, 0.3),
) -> Certificate:
    """Recipes are compared at the width of the first claim, by how accurate its runs are at the end, on validation
    pairs. Accuracy, since of runs that are hardly trained none is perfect, by any recipe and twice as long. Without
    a number of its own a claim is about that width."""
    at_width = {"P": P, "d_hidden": WIDE}
    what = f"test accuracy of the runs with d = {WIDE}, P = {P}"
    return Certificate(
        about=f"what these widths can learn (P = {P})",
        metric="val_acc",
        tried={"lr": tuple(rates), "weight_decay": tuple(decays)},
        on={"dimensions": [WIDE], "seeds": list(range(10))},
        longer={"epochs": 2 * EPOCHS} if number else {"epochs": 2 * EPOCHS, "dimensions": [WIDE]},
        number=number or Check(what=what, metric="test_acc", rows=at_width, at_least=1),
        goal=False,
    )


SPEC = (
    "the spec of modular addition, Key Findings of its compression experiments (P = 64, widths 1 to 64, one model each)"
)
P64 = {"P": 64}
EPOCHS = 400
"""Of 10 runs with d = 10 none was perfect after 200 epochs, and 3 after 400: too few to say that training is over."""
WIDTHS = (8, 10, 12, 14, 16, 24)
ASKED: Mapping[str, Any] = {"study": "modular.sweep", "preset": "findings"}
MANY: Mapping[str, Any] = {"dimensions": WIDTHS, "seeds": tuple(range(10, 20))}
"""Fewer widths and more seeds than the preset has, to tell how many runs of one width are perfect."""
PRIMES: tuple[tuple[int, Mapping[str, Any], Mapping[str, Any]], ...] = (
    # Where .1, the preset's decay, trains less well.
    (61, {"weight_decay": 0.3}, {"rates": (0.01, 0.03, 0.1), "decays": (0.1, 0.3, 1.0)}),
    (113, {}, {"decays": (0.003, 0.01, 0.1, 0.3)}),
)
"""Remainders, what their recipe has other than the preset's, and the grid that it was chosen from."""


def _of_models(what: str, measure: Measure, **limit: Any) -> Check:
    """A number that is measured from the weights of models at P = 64."""
    return Check(what=f"{what}, P = 64", measure=measure, rows=P64, **limit)


def _of_weights(claim: str, number: Check, *more: Check, source: str = SPEC) -> Claim:
    """A claim about the weights of models at P = 64, of which the first number must not move with more training."""
    certificate = _trained(64, number=number)
    return Claim(claim=claim, source=source, **ASKED, options=P64, certificate=certificate, checks=(number, *more))


CLAIMS = {
    "modular-width": Claim(
        claim="Models with `d_hidden >= 10` achieve 100% accuracy.",
        source=f"{SPEC}; by its criterion, an epoch without a wrong validation pair, 7 of the 10 runs with d = 10 pass",
        **ASKED,
        options={**P64, **MANY},
        certificate=_trained(64),
        checks=_width(64),
    ),
    **{
        f"modular-width-{P}": Claim(
            claim=f"Models with `d_hidden >= 10` achieve 100% accuracy at P = {P} too.",
            source="not published: the spec's first key finding, asked at a prime",
            **ASKED,
            options={"P": P, **MANY, **recipe},
            certificate=_trained(P, **grid),
            checks=_width(P),
        )
        for P, recipe, grid in PRIMES
    },
    "modular-blocks": _of_weights(
        "TN similarity shows clear block structure based on bottleneck size.",
        _of_models(
            "largest step of TN similarity between blocks of widths (mean within eight widths and within the next "
            "eight, less the mean across)",
            lambda records: evidence.blocks(records),
            at_least=0.1,
        ),
        _of_models(
            "how often permuted widths have so large a step",
            lambda records: evidence.blocks_by_chance(records),
            at_most=0.05,
        ),
    ),
    "modular-answers": _of_weights(
        "Activation similarity is high across all models that achieve perfect accuracy.",
        _of_models(
            "mean cosine of the logits of two perfect models",
            lambda records: evidence.alike_answers(records),
            at_least=0.8,
        ),
    ),
    "modular-frequencies": _of_weights(
        "JS divergence reveals which models use similar frequency structures.",
        _of_models(
            "JS against unlike use of frequencies, rank correlation over pairs of perfect models",
            lambda records: evidence.divergence_follows_use(records),
            at_least=0.8,
        ),
        _of_models(
            "JS against the number of frequencies that two models do not share, rank correlation over pairs of models "
            "built by hand, of as many frequencies as perfect models use",
            lambda records: evidence.divergence_follows_overlap(records),
            at_least=0.8,
        ),
    ),
    "modular-power": _of_weights(
        "Of perfect models, JS divergence of the power of whole forms tells which use similar frequencies.",
        _of_models(
            "JS of power against unlike use of frequencies, rank correlation over pairs of perfect models",
            lambda records: evidence.divergence_follows_use(records, kind="power"),
            at_least=0.8,
        ),
        source="not published: the spec's fourth key finding, asked of a law that sees all frequencies",
    ),
}
