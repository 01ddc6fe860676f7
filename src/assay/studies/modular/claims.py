"""The key findings of the spec on modular addition, and what has to come out here.

The spec trains 64 models, one per width, stops each at its first epoch without a wrong validation pair, and reports
those pairs. Here rate and decay are chosen on the validation pairs of seeds 0 to 4, and other seeds are reported, by
their test pairs, after training has gone on for ten epochs without a wrong validation pair.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from assay.core.run import Record
from assay.metrics.intervals import Interval, student_t, wilson
from assay.report.claims import Certificate, Check, Claim

if TYPE_CHECKING:
    import numpy as np

    from assay.studies.modular.bilinear import Model
    from assay.studies.modular.files import SweepResults

WIDE = 10
"""The width from which on models are perfect, by the spec."""
MOST = 60
"""Perfect models that are compared with each other, evenly chosen."""
SETS, SIZE, POOL = 16, 4, 8
"""Planted models, frequencies of each, and frequencies that they are drawn from."""
DECAYS = (0.01, 0.1, 0.3, 1.0)
LOUDNESS = (0.5, 1.5)
"""How loud a planted frequency is: from, to."""


def share_perfect(records: Sequence[Record], *, widths: Sequence[int] = (), at_some_epoch: bool = False) -> Interval:
    """The share of the runs of these widths (by default, of 10 or more) that answer every test pair at the end, or
    every validation pair at some epoch, with Wilson's interval."""
    asked = [r for r in records if (d := r.run.options["d_hidden"]) in widths or (not widths and d >= WIDE)]
    share = wilson(sum(map(_was_perfect if at_some_epoch else _is_perfect, asked)), len(asked))
    return Interval(share.mean, share.low, share.high, len({record.run.seed for record in records}))


def half_perfect(records: Sequence[Record]) -> Interval:
    """The width at which half of the runs are perfect, by a logistic fit, with its interval over resampled seeds."""
    from assay.studies.modular.thresholds import half_pass

    passed: dict[int, dict[int, bool]] = {}
    for record in records:
        passed.setdefault(record.run.options["d_hidden"], {})[record.run.seed] = _is_perfect(record)
    found = half_pass(passed)
    return Interval(found.width, found.low, found.high, len({record.run.seed for record in records}))


def blocks(records: Sequence[Record]) -> Interval:
    """How much more alike two models are if their widths lie in one quarter of the widths, beyond how alike each of the
    two is to any other; seed by seed, among the models of a seed."""
    import numpy as np

    from assay.studies.modular.files import width_of
    from assay.studies.modular.matrices import weights_of
    from assay.studies.modular.measures import BANDS, bands
    from assay.studies.modular.metrics.permutation import contrast
    from assay.studies.modular.metrics.tensor_similarity import symmetric_similarity_matrix

    found = []
    for sweep in _by_seed(records):
        matrix = symmetric_similarity_matrix(weights_of(sweep.models, sweep.P))
        parts = bands([width_of(key) for key in sweep.models], BANDS)
        apart = contrast(matrix, parts, rng=np.random.default_rng(0), permutations=1)
        found += [apart.beyond] if apart else []
    return student_t(found)


def alike_answers(records: Sequence[Record]) -> Interval | None:
    """The mean cosine of the logits over pairs of perfect models, with the interval of leaving out one at a time."""
    from assay.studies.modular.matrices import weights_of
    from assay.studies.modular.measures import mean_over_pairs
    from assay.studies.modular.metrics.tensor_similarity import activation_similarity_matrix
    from assay.studies.modular.records import saved_sweep

    perfect = [record for record in records if _is_perfect(record)]
    if len(perfect) < 3:
        return None
    count = min(MOST, len(perfect))
    sweep = saved_sweep([perfect[round(i * (len(perfect) - 1) / (count - 1))] for i in range(count)])
    found = mean_over_pairs(activation_similarity_matrix(weights_of(sweep.models, sweep.P)))
    return replace(found, n=len({record.run.seed for record in perfect}))


def divergence_follows_overlap(records: Sequence[Record], *, vectors: int) -> Interval:
    """Build models that add with known sets of frequencies, and return the rank correlation over pairs of the spec's
    divergence with the frequencies that the two sets do not share, with its interval of leaving out one at a time."""
    import numpy as np
    from scipy.stats import rankdata

    from assay.studies.modular.measures import js_per_remainder
    from assay.studies.modular.metrics.distances import correlation

    rng = np.random.default_rng(0)
    P = records[0].run.options["P"]
    pool = rng.permutation(np.arange(1, (P + 1) // 2))[:POOL]
    sets = [
        dict(zip(rng.choice(pool, SIZE, replace=False).tolist(), rng.uniform(*LOUDNESS, SIZE), strict=True))
        for _ in range(SETS)
    ]
    matrix = js_per_remainder("eigen", vectors)([planted(P, chosen) for chosen in sets])  # type: ignore[misc]
    apart = np.array([[SIZE - len(one.keys() & other.keys()) for other in sets] for one in sets], dtype=float)

    def agreement(kept: "np.ndarray") -> float:
        pairs = np.triu_indices(len(kept), k=1)
        # Divergences that differ by rounding alone are one rank.
        one, other = (of[np.ix_(kept, kept)][pairs].round(6) for of in (matrix, apart))
        return correlation(rankdata(one), rankdata(other))

    return _jackknife(agreement(np.arange(SETS)), [agreement(np.delete(np.arange(SETS), i)) for i in range(SETS)])


def planted(P: int, loudness: Mapping[int, float]) -> "Model":
    """A model that adds with these frequencies, each as loud as told: the four units of `constructive_model`, turned to
    every frequency. Equally loud ones would have equal eigenvalues, and any solver its own vectors for them."""
    import torch

    from assay.studies.modular.bilinear import constructive_model, init_model

    one, model = constructive_model(P), init_model(P, 4 * len(loudness))
    turned = [f * torch.arange(P) % P for f in loudness]
    with torch.no_grad():
        sides = [side.unflatten(1, (2, P)) for side in (one.bi_linear.w_l, one.bi_linear.w_r)]
        inputs = [torch.cat([side[..., turn].flatten(1) for turn in turned]) for side in sides]
        model.bi_linear.weight.copy_(torch.cat(inputs))
        readouts = [loud * one.projection.weight[turn] for loud, turn in zip(loudness.values(), turned, strict=True)]
        model.projection.weight.copy_(torch.cat(readouts, dim=1))
    return model


def _jackknife(whole: float, without: Sequence[float]) -> Interval:
    from scipy.special import stdtrit

    n, mean = len(without), fmean(without)
    half = float(stdtrit(n - 1, 0.975)) * ((n - 1) / n * sum((value - mean) ** 2 for value in without)) ** 0.5
    return Interval(whole, whole - half, whole + half, n)


def _is_perfect(record: Record) -> bool:
    """Whether it answers every test pair, which neither its training nor its recipe has seen."""
    return record.status == "done" and record.metrics["test_acc"] == 1


def _was_perfect(record: Record) -> bool:
    """Whether it answered every validation pair at some epoch, which is where the spec stops and reports."""
    return record.status == "done" and record.metrics["best_val_acc"] == 1


def _by_seed(records: Sequence[Record]) -> "list[SweepResults]":
    from assay.studies.modular.records import saved_sweep

    seeds: Mapping[int, list[Record]] = {record.run.seed: [] for record in records}
    for record in records:
        seeds[record.run.seed].append(record)
    return [saved_sweep(own) for own in seeds.values()]


def _width(P: int) -> tuple[Check, ...]:
    return (
        Check(
            what=f"share of the runs with d = {WIDE} that answer every test pair, P = {P}",
            measure=partial(share_perfect, widths=(WIDE,)),
            rows={"P": P},
            at_least=0.95,
        ),
        Check(
            what=f"share of the runs with d = {WIDE} that answer every validation pair at some epoch, P = {P}",
            measure=partial(share_perfect, widths=(WIDE,), at_some_epoch=True),
            rows={"P": P},
            at_least=0.95,
        ),
        Check(
            what=f"share of the runs of the {sum(d >= WIDE for d in WIDTHS)} widths tried from {WIDE} on, P = {P}",
            measure=share_perfect,
            rows={"P": P},
            at_least=0.95,
        ),
    )


def _trained(
    P: int, *, decays: Sequence[float] = DECAYS, epochs: int = 400, number: Check | None = None
) -> Certificate:
    """Recipes are compared as the spec trains: by the runs that stop at perfect validation, of eight widths."""
    half = Check(
        what=f"width at which half of the runs are perfect, P = {P}", measure=half_perfect, rows={"P": P}, at_most=WIDE
    )
    return Certificate(
        about=f"what these widths can learn (P = {P})",
        metric="perfect",
        tried={"lr": (0.003, 0.01, 0.03, 0.1), "weight_decay": decays},
        on={"dimensions": [6, 8, 10, 12, 16, 24, 32, 64], "seeds": [0, 1, 2, 3, 4], "epochs": 300, "settle": 1},
        longer={"epochs": 2 * epochs},
        number=number or half,
        goal=number is None,
    )


def _unsettled(P: int) -> str:
    return (
        f"what these widths can learn (P = {P}): at d = 10 runs that answer every validation pair at some epoch, the "
        "spec's rule, seldom keep doing so at a constant rate, and recipes were compared by that rule, too"
    )


SPEC = (
    "the spec of modular addition, Key Findings of its compression experiments (P = 64, widths 1 to 64, one model each)"
)
P64 = {"P": 64}
WIDTHS = (4, 6, 8, 9, 10, 11, 12, 14, 16, 20, 24, 32, 48, 64)
ASKED: Mapping[str, Any] = {
    "study": "modular.sweep",
    "preset": "findings",
}
MANY: Mapping[str, Any] = {"dimensions": WIDTHS, "seeds": tuple(range(5, 25))}
"""Fewer widths and more seeds than the preset has, to tell how many runs of one width are perfect."""
BLOCKS = Check(
    what=(
        "similarity of two models from one quarter of the widths over that from different quarters, beyond each "
        "model's own strength, P = 64"
    ),
    measure=blocks,
    rows=P64,
    at_least=0.1,
)
ANSWERS = Check(
    what="mean cosine of the logits of two perfect models, P = 64", measure=alike_answers, rows=P64, at_least=0.8
)

CLAIMS = {
    "modular-width": Claim(
        claim="Models with `d_hidden >= 10` achieve 100% accuracy.",
        source=SPEC,
        **ASKED,
        options={**P64, **MANY},
        certificate=_trained(64, decays=(0.0001, *DECAYS, 3.0)),
        uncertified=_unsettled(64),
        tables=("smallest_width",),
        checks=_width(64),
    ),
    **{
        f"modular-width-{P}": Claim(
            claim=f"Models with `d_hidden >= 10` achieve 100% accuracy at P = {P} too.",
            source="not published: the spec's first key finding, asked at a prime",
            **ASKED,
            options={"P": P, **MANY, "epochs": epochs},
            certificate=_trained(P, decays=decays, epochs=epochs),
            uncertified=_unsettled(P),
            tables=("smallest_width",),
            checks=_width(P),
        )
        # An epoch of 113 has three times the steps.
        for P, decays, epochs in ((61, DECAYS, 400), (113, DECAYS[:3], 300))
    },
    "modular-blocks": Claim(
        claim="TN similarity shows clear block structure based on bottleneck size.",
        source=SPEC,
        **ASKED,
        options=P64,
        certificate=_trained(64, number=BLOCKS),
        uncertified=(
            "blocks by width: the number takes off each model's own strength, and with it a block of wide models, and "
            "four models in five stop at the same epoch however long they may train"
        ),
        checks=(BLOCKS,),
    ),
    "modular-answers": Claim(
        claim="Activation similarity is high across all models that achieve perfect accuracy.",
        source=SPEC,
        **ASKED,
        options=P64,
        certificate=_trained(64, number=ANSWERS),
        uncertified=(
            "how alike perfect models become: nearly all of them stop at the same epoch however long they may train"
        ),
        checks=(ANSWERS,),
    ),
    "modular-frequencies": Claim(
        claim="JS divergence reveals which models use similar frequency structures.",
        source=SPEC,
        study="modular.sweep",
        options={**P64, "dimensions": (4,), "epochs": 1, "seeds": (0, 1, 2)},
        uncertified=(
            "trained models: these are built by hand, four frequencies of four eigenvectors each, so that four "
            "eigenvectors show one frequency; how many a trained model uses was not measured"
        ),
        checks=tuple(
            Check(
                what=(
                    "models built by hand from known sets of four frequencies: rank correlation of the divergence, by "
                    f"{count}, with the number of frequencies that two do not share, P = 64"
                ),
                measure=partial(divergence_follows_overlap, vectors=vectors),
                rows=P64,
                at_least=0.8,
            )
            for vectors, count in ((4, "the spec's 4 eigenvectors"), (16, "16 eigenvectors instead"))
        ),
    ),
}
