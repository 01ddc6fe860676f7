"""The key findings of the spec on modular addition, and what has to come out here.

The spec trains 64 models, one per width, stops each at its first epoch without a wrong validation pair, and reports
those pairs. Here rate and decay are chosen on the validation pairs of seeds 0 to 9, the rate falls to 0 over the last
half of the epochs, no model stops early, and other seeds are reported, by their test pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from assay.core.run import Record
from assay.metrics.intervals import Interval, student_t, wilson
from assay.report.claims import Certificate, Check, Claim

if TYPE_CHECKING:
    import numpy as np

    from assay.studies.modular.bilinear import Model
    from assay.studies.modular.files import SweepResults
    from assay.studies.modular.metrics.frequency_law import Kind
    from assay.studies.modular.metrics.permutation import Step
    from assay.studies.modular.metrics.tensor_similarity import Weights

WIDE = 10
"""The width from which on models are perfect, by the spec."""
MOST = 60
"""Perfect models that are compared with each other, evenly chosen."""
SIDE = 8
"""Of how many widths a side of a border between blocks has one: eight of 64."""
SETS, LOUDNESS = 16, (0.5, 1.5)
"""Planted models, and how loud a planted frequency is: from, to."""


def share_perfect(records: Sequence[Record], *, widths: Sequence[int] = ()) -> Interval:
    """The share of the runs of these widths (by default, of 10 or more) that answer every test pair at the end, with
    Wilson's interval."""
    asked = [r for r in records if (d := r.run.options["d_hidden"]) in widths or (not widths and d >= WIDE)]
    return replace(wilson(sum(map(_is_perfect, asked)), len(asked)), n=_seeds(records))


def half_perfect(records: Sequence[Record]) -> Interval:
    """The width at which half of the runs are perfect, by a logistic fit, with its interval over resampled seeds."""
    from assay.studies.modular.thresholds import half_pass

    passed: dict[int, dict[int, bool]] = {}
    for record in records:
        passed.setdefault(record.run.options["d_hidden"], {})[record.run.seed] = _is_perfect(record)
    found = half_pass(passed)
    return Interval(found.width, found.low, found.high, _seeds(records))


def blocks(records: Sequence[Record]) -> Interval:
    """The largest step of the similarity between neighbouring blocks of widths, among the models of a seed."""
    return student_t(_step(records, permutations=1).sizes)


def blocks_by_chance(records: Sequence[Record]) -> Interval:
    """How often permuted widths have so large a step, all seeds together."""
    return Interval(_step(records, permutations=999).p, None, None, _seeds(records))


def _step(records: Sequence[Record], permutations: int) -> "Step":
    import numpy as np

    from assay.studies.modular.matrices import weights_of
    from assay.studies.modular.metrics.permutation import largest_step
    from assay.studies.modular.metrics.tensor_similarity import symmetric_similarity_matrix

    sweeps = _by_seed(records)
    widths = sorted(set.intersection(*(set(sweep.models) for sweep in sweeps)))  # those where no seed diverged
    chosen = (sweep.only(widths) for sweep in sweeps)
    matrices = [symmetric_similarity_matrix(weights_of(sweep.models, sweep.P)) for sweep in chosen]
    window = max(2, len(widths) // SIDE)
    return largest_step(matrices, window=window, rng=np.random.default_rng(0), permutations=permutations)


def alike_answers(records: Sequence[Record]) -> Interval | None:
    """The mean cosine of the logits over pairs of perfect models, with the interval of leaving out one at a time."""
    from assay.studies.modular.measures import mean_over_pairs
    from assay.studies.modular.metrics.tensor_similarity import activation_similarity_matrix

    models = _perfect(records)
    if models is None:
        return None
    return replace(mean_over_pairs(activation_similarity_matrix(models)), n=_seeds(records))


def divergence_follows_use(records: Sequence[Record], *, kind: "Kind" = "eigen") -> Interval | None:
    """The rank correlation, over pairs of perfect models, of the divergence with how differently they use frequencies:
    half the difference of the shares of the right answer's logit that each frequency gives."""
    import numpy as np

    from assay.studies.modular.measures import js_per_remainder

    models = _perfect(records)
    if models is None:
        return None
    shares = np.stack([_use(model) for model in models])
    apart = np.abs(shares[:, None] - shares).sum(axis=-1) / 2
    return replace(_ranked(js_per_remainder(kind)(models), apart), n=_seeds(records))


def divergence_follows_overlap(records: Sequence[Record]) -> Interval | None:
    """Build models that add with known sets of frequencies, as many as the perfect models use, and return the rank
    correlation of the spec's divergence with the number of frequencies that two sets do not share."""
    import numpy as np

    from assay.studies.modular.measures import js_per_remainder

    used = frequencies_used(records)
    if used is None:
        return None
    P, size, rng = records[0].run.options["P"], round(used.mean), np.random.default_rng(0)
    pool = rng.permutation(np.arange(1, (P + 1) // 2)).tolist()
    # Stretches of one circle of frequencies: near ones share nearly all, far ones few or none.
    starts = [place * len(pool) // SETS for place in range(SETS)]
    sets = [{pool[(start + i) % len(pool)]: rng.uniform(*LOUDNESS) for i in range(size)} for start in starts]
    matrix = js_per_remainder("eigen")([planted(P, chosen) for chosen in sets])  # type: ignore[misc]
    return _ranked(matrix, np.array([[size - len(one.keys() & other.keys()) for other in sets] for one in sets]))


def frequencies_used(records: Sequence[Record]) -> Interval | None:
    """How many frequencies give 90 % of the right answer's logit, on average over perfect models."""
    import numpy as np

    from assay.studies.modular.metrics.frequency_law import dominant_frequencies

    models = _perfect(records)
    if models is None:
        return None
    counts = dominant_frequencies(np.stack([_use(model) for model in models]))
    return replace(student_t(counts.astype(float).tolist()), n=_seeds(records))


def _use(model: "Weights | Model") -> "np.ndarray":
    """The shares of the right answer's logit that frequencies give; one that takes some away gives none."""
    import numpy as np

    from assay.studies.modular.metrics.frequency_law import frequency_use
    from assay.studies.modular.metrics.spectra import shares_of

    found: np.ndarray = shares_of(np.maximum(frequency_use(model), 0))
    return found


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


def _ranked(matrix: "np.ndarray", apart: "np.ndarray") -> Interval:
    """The rank correlation of two matrices over pairs, with its interval of leaving out a model at a time."""
    import numpy as np
    from scipy.stats import rankdata

    from assay.studies.modular.measures import jackknife
    from assay.studies.modular.metrics.distances import correlation, get_upper_triangular

    def agreement(kept: "np.ndarray") -> float:
        # Values that differ by rounding alone are one rank.
        one, other = (get_upper_triangular(of[np.ix_(kept, kept)]).round(6) for of in (matrix, apart))
        return correlation(rankdata(one), rankdata(other))

    every = np.arange(len(matrix))
    return jackknife(agreement(every), [agreement(np.delete(every, i)) for i in every], n=len(every))


def _is_perfect(record: Record) -> bool:
    """Whether it answers every test pair, which neither its training nor its recipe has seen."""
    return record.status == "done" and record.metrics["test_acc"] == 1


def _perfect(records: Sequence[Record]) -> "list[Weights] | None":
    """Some of the perfect models, evenly chosen over widths and seeds; None where there are fewer than three."""
    from assay.studies.modular.matrices import weights_of
    from assay.studies.modular.records import saved_sweep

    found = [record for record in records if _is_perfect(record)]
    if len(found) < 3:
        return None
    count = min(MOST, len(found))
    sweep = saved_sweep([found[round(i * (len(found) - 1) / (count - 1))] for i in range(count)])
    return weights_of(sweep.models, sweep.P)


def _by_seed(records: Sequence[Record]) -> "list[SweepResults]":
    from assay.studies.modular.records import saved_sweep

    seeds: Mapping[int, list[Record]] = {record.run.seed: [] for record in records}
    for record in records:
        seeds[record.run.seed].append(record)
    return [saved_sweep(own) for own in seeds.values()]


def _seeds(records: Sequence[Record]) -> int:
    return len({record.run.seed for record in records})


def _width(P: int) -> tuple[Check, ...]:
    return (
        Check(
            what=f"share of the runs with d = {WIDE} that answer every test pair, P = {P}",
            measure=partial(share_perfect, widths=(WIDE,)),
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


def _trained(P: int, *, number: Check | None = None) -> Certificate:
    """Recipes are compared as the first claim is judged: by the runs of width 10 that are perfect at the end, there on
    validation pairs. At P = 64 the grid is the wide one."""
    rates, decays = (0.01, 0.03, 0.1), (0.01, 0.1, 0.3)
    return Certificate(
        about=f"what these widths can learn (P = {P})",
        metric="perfect",
        tried={
            "lr": (0.003, *rates) if P == 64 else rates,
            "weight_decay": (0.0001, *decays, 1.0) if P == 64 else decays,
        },
        on={"dimensions": [WIDE], "seeds": list(range(10))},
        longer={"epochs": 2 * EPOCHS},
        number=number or _width(P)[0],
        goal=number is None,
    )


SPEC = (
    "the spec of modular addition, Key Findings of its compression experiments (P = 64, widths 1 to 64, one model each)"
)
P64 = {"P": 64}
EPOCHS = 200
WIDTHS = (8, 9, 10, 11, 12, 14, 16, 24, 32, 64)
ASKED: Mapping[str, Any] = {
    "study": "modular.sweep",
    "preset": "findings",
}
MANY: Mapping[str, Any] = {"dimensions": WIDTHS, "seeds": tuple(range(10, 30))}
"""Fewer widths and more seeds than the preset has, to tell how many runs of one width are perfect."""
BLOCKS = Check(
    what=(
        "largest step of the similarity between neighbouring blocks of widths (within the eight widths before a border "
        "and the eight after it, over across it), P = 64"
    ),
    measure=blocks,
    rows=P64,
    at_least=0.1,
)
ANSWERS = Check(
    what="mean cosine of the logits of two perfect models, P = 64", measure=alike_answers, rows=P64, at_least=0.8
)
USE = Check(
    what=(
        "rank correlation, over pairs of perfect models, of the divergence with the difference of what frequencies "
        "give to the right answer's logit, P = 64"
    ),
    measure=divergence_follows_use,
    rows=P64,
    at_least=0.8,
)
POWER = replace(
    USE,
    what=USE.what.replace("the divergence", "the divergence of power"),
    measure=partial(divergence_follows_use, kind="power"),
)

CLAIMS = {
    "modular-width": Claim(
        claim="Models with `d_hidden >= 10` achieve 100% accuracy.",
        source=SPEC,
        **ASKED,
        options={**P64, **MANY},
        certificate=_trained(64),
        tables=("smallest_width",),
        checks=_width(64),
    ),
    **{
        f"modular-width-{P}": Claim(
            claim=f"Models with `d_hidden >= 10` achieve 100% accuracy at P = {P} too.",
            source="not published: the spec's first key finding, asked at a prime",
            **ASKED,
            options={"P": P, **MANY},
            certificate=_trained(P),
            tables=("smallest_width",),
            checks=_width(P),
        )
        for P in (61, 113)
    },
    "modular-blocks": Claim(
        claim="TN similarity shows clear block structure based on bottleneck size.",
        source=SPEC,
        **ASKED,
        options=P64,
        certificate=_trained(64, number=BLOCKS),
        checks=(
            BLOCKS,
            Check(
                what="how often permuted widths have so large a step, P = 64",
                measure=blocks_by_chance,
                rows=P64,
                at_most=0.05,
            ),
        ),
    ),
    "modular-answers": Claim(
        claim="Activation similarity is high across all models that achieve perfect accuracy.",
        source=SPEC,
        **ASKED,
        options=P64,
        certificate=_trained(64, number=ANSWERS),
        checks=(ANSWERS,),
    ),
    "modular-frequencies": Claim(
        claim="JS divergence reveals which models use similar frequency structures.",
        source=SPEC,
        **ASKED,
        options=P64,
        certificate=_trained(64, number=USE),
        checks=(
            USE,
            Check(
                what=(
                    "the same of models built by hand from known sets of frequencies, as many as perfect models use, "
                    "with the number that two do not share, P = 64"
                ),
                measure=divergence_follows_overlap,
                rows=P64,
                at_least=0.8,
            ),
        ),
    ),
    "modular-power": Claim(
        claim="The divergence of the power of whole forms reveals which models use similar frequencies.",
        source="not published: the spec's fourth key finding, asked of a law that sees all frequencies",
        **ASKED,
        options=P64,
        certificate=_trained(64, number=POWER),
        checks=(POWER,),
    ),
}
