"""What others published about learning in context, and what has to come out here."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from assay.core.run import Record
from assay.report.claims import Certificate, Check, Claim
from assay.studies.icl.presets import IN_ZOOLOGY, RATES, ZOOLOGY

WORST = Check(
    what="query accuracy of the worst seed",
    metric="accuracy",
    rows={"model.seq_mixer": "attention"},
    over="min",
    at_least=0.99,
)
BETA = "delta_net:num_heads=4:beta_max={}"
END, AT_256 = "accuracy at the end of 256 tokens", "by_length.256"
SHRINKS, FLIPS = {"model.seq_mixer.beta_max": 1}, {"model.seq_mixer.beta_max": 2}
PARITY = {  # by name, the runs and whether they solve it
    "beta_max=2": (FLIPS, True),
    "beta_max=1": (SHRINKS, False),
    "gru": ({"model.seq_mixer": "gru"}, True),
}
ATTENTION = {"model.seq_mixer": "attention"}
EVERY_SEED = Check(what=f"beta_max=2, {END}, worst seed", metric=AT_256, rows=FLIPS, over="min", at_least=0.99)
GRAZZI = "Grazzi et al., ICLR 2025 (arXiv 2411.12537), table of parity: trained at 3 to 40, tested at 40 to 256"
REFLECTIONS = (4, 1, 2, 3)
ALONG = "mean accuracy over the positions of 256 tokens"


def _reflecting(count: int) -> dict[str, Any]:
    """The runs with so many reflections per token."""
    return {"model.seq_mixer.num_householder": count}


def best_of_fewer(records: Sequence[Record]) -> Mapping[int, float]:
    """Return by seed the best accuracy over 256 tokens of those with fewer than four reflections per token."""
    found: dict[int, float] = {}
    for record in records:
        model = record.run.options["model"]
        if model is not None and model["seq_mixer"]["num_householder"] < 4 and record.status == "done":
            found[record.run.seed] = max(found.get(record.run.seed, 0.0), record.metrics["by_length"]["256"])
    return found


PUBLISHED = {
    "delta_net": (128, 0.96),
    "gated_delta_net": (64, 0.89),
    "based": (128, 0.84),
    "gated_linear_attn": (128, 0.77),
    "mamba2": (64, 0.69),
    "sliding_window": (128, 0.31),
}
"""Zoology's recall with a state of 16 to 34 kB: the width of the model, and its accuracy (anchors.json)."""


def order_agreement(records: Sequence[Record]) -> Mapping[int, float] | None:
    """Return Kendall's tau between the mixers' published accuracies and ours by seed: each seed ranks its own models,
    at the rates that the other seeds chose. None where a mixer is missing or a seed of it diverged."""
    from assay.studies.icl.learning import measured
    from assay.studies.icl.report import trained

    ours = {measured(row): row.values("accuracy") for row in trained(records)}
    seeds = sorted(set.intersection(*map(set, ours.values()))) if ours.keys() == PUBLISHED.keys() else []
    if not seeds or any(len(values) > len(seeds) for values in ours.values()):
        return None
    return {seed: kendall_tau([(PUBLISHED[name][1], ours[name][seed]) for name in PUBLISHED]) for seed in seeds}


def kendall_tau(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the share of pairs of points that are in the same order less that of those in the opposite one."""
    signs = [(x > a) - (x < a) if y > b else (x < a) - (x > a) for (x, y), (a, b) in combinations(pairs, 2) if y != b]
    return sum(signs) / (len(pairs) * (len(pairs) - 1) / 2)


ORDER = Check(
    what="Kendall's tau between the published order of six mixers and ours, worst seed",
    short="Kendall's tau with the published order, worst seed",
    measure=order_agreement,
    over="min",
    at_least=0.7,
)


def _of_parity(
    *, claim: str, short: str, mixers: list[str], about: str, arms: tuple[Any, ...], number: Check,
    checks: tuple[Check, ...], source: str = GRAZZI,
) -> Claim:  # fmt: skip
    """Return a claim about parity. Its certificate tries three rates and twice the steps. Rates are compared by the
    number that is claimed, at 256 tokens: at the trained lengths all seeds with beta_max=2 are perfect at two rates."""
    return Claim(
        claim=claim,
        short=short,
        source=source,
        study="icl",
        series=("curve",),
        options={
            "task": "state_tracking:group=parity:length=3..40",
            "model": {"state_mixer": "swiglu", "model_dim": 16, "num_layers": 1, "positions": "none"},
            "train": {"max_steps": 20000, "micro_batch_size": 256, "validate_every": 2000, "warmup_ratio": 0.1},
            "optimizer": {"lr": 0.003, "weight_decay": 0},
            "eval_size": 1000,
            "seeds": [0, 1, 2],
        },
        grid={"model.seq_mixer": mixers},
        certificate=Certificate(
            about=about,
            metric=AT_256,
            tried={"optimizer.lr": (0.001, 0.003, 0.01)},
            arms=arms,
            longer={"train.max_steps": 40000},
            number=number,
            goal=False,
        ),
        checks=checks,
    )


CLAIMS = {
    "icl-default": Claim(
        claim="The model should reach close to ~98% accuracy after ~1500 steps.",
        source="the spec of the in-context benchmark: its default run, attention and an MLP on MQAR",
        study="icl",
        series=("curve",),
        preset="spec",
        options={"seeds": [0, 1, 2]},
        exempt="it is about the spec's own recipe",
        checks=(
            Check(
                what="held-out accuracy after 1500 steps of 3000",
                metric="curve.14.accuracy",
                rows={"model.seq_mixer": "attention"},
                at_least=0.97,
            ),
        ),
    ),
    "mqar-zoology": Claim(
        claim=(
            "Attention recalls 4 key-value pairs in 64 tokens of a vocabulary of 8192, with d=64, one head and no "
            "state mixer."
        ),
        short="Attention recalls 4 key-value pairs in 64 tokens (vocabulary 8192, d=64).",
        source="Arora et al., Zoology, ICLR 2024 (arXiv 2312.04927), Figure 2, its easiest cell",
        study="icl",
        series=("curve",),
        options={
            "task": "mqar:input_seq_len=64:num_kv_pairs=4:vocab_size=8192:filler=zero",
            "model": {
                "seq_mixer": "attention:num_heads=1",
                "state_mixer": "none",
                "model_dim": 64,
                "num_layers": 2,
                "tied": True,
            },
            "train": {"max_steps": 12500, "micro_batch_size": 512, "validate_every": 500},
            "optimizer": {"lr": 0.004, "weight_decay": 0.1},
            "eval_size": 3000,
            "seeds": [0, 1, 2],
        },
        certificate=Certificate(
            about="whether attention recalls this much",
            metric="accuracy",
            tried={"optimizer.lr": (0.001, 0.004, 0.01)},
            arms=({"model.seq_mixer": "attention"},),
            longer={"train.max_steps": 25000},
            number=WORST,
        ),
        checks=(WORST,),
    ),
    "zoology-recall": Claim(
        claim=(
            "Of six points of one figure, at states of 16 to 34 kB by its count, recall falls from DeltaNet over gated "
            "DeltaNet, Based, gated linear attention and Mamba-2 to a sliding window: the order comes out with a tau "
            "of at least 0.7 (a fifth of the authors' training)."
        ),
        short="Six mixers, each at one published point, recall in the published order.",
        source=(
            "zoology (github.com/HazyResearch/zoology at d88d6f5), the README's figure of recall against state; "
            "taken to be of one seed at the best of four rates"
        ),
        study="icl",
        series=("curve",),
        preset="zoology",
        grid={
            "model": [
                {**IN_ZOOLOGY, "seq_mixer": ZOOLOGY[name], "model_dim": width} for name, (width, _) in PUBLISHED.items()
            ],
            # A fifth of the authors' steps: data is new at every step here, where theirs comes 32 times.
            "train.max_steps": [4500],
            "optimizer.lr": list(map(float, RATES)),
        },
        tables=("capacity_conv",),
        certificate=Certificate(
            about="the order of these mixers",
            metric="accuracy",
            tried={"optimizer.lr": tuple(map(float, RATES))},
            arms=tuple({"model.seq_mixer.pattern.1": name} for name in PUBLISHED),
            longer={"train.max_steps": 9000},
            number=ORDER,
            goal=False,  # models that are trained too little have an order too
        ),
        checks=(ORDER,),
    ),
    "parity-eigenvalues": _of_parity(
        claim=(
            "Trained on parity at 3 to 40 tokens (one layer, d=16), the delta rule can learn to answer at 256 if its "
            "eigenvalues may be negative (beta_max=2), as a nonlinear recurrence can; it guesses there if they may "
            "not (beta_max=1): the best of three seeds."
        ),
        short="A delta rule (d=16) can learn parity with negative eigenvalues; else it guesses.",
        source=f"{GRAZZI}; here 2 of 3 seeds with beta_max=2 reach 0.99 at a rate of 0.003, and none at 0.001 or 0.01",
        mixers=[BETA.format(1), BETA.format(2), "gru"],
        about="whether negative eigenvalues decide about parity",
        arms=(SHRINKS, FLIPS),
        # What is said not to be learnt is what more training must not change.
        number=Check(what=f"beta_max=1, {END}, best seed", metric=AT_256, rows=SHRINKS, over="max", at_most=0.6),
        checks=tuple(
            Check(
                what=f"{name}, {END}, best seed",
                metric=AT_256,
                rows=rows,
                over="max",
                at_least=0.99 if solves else None,
                at_most=None if solves else 0.6,
            )
            for name, (rows, solves) in PARITY.items()
        ),
    ),
    "parity-every-seed": _of_parity(
        claim=(
            "The delta rule with beta_max=2 (one layer, d=16), trained on parity at 3 to 40 tokens, answers at 256 "
            "with every seed."
        ),
        short="A delta rule (d=16) with negative eigenvalues learns parity with every seed.",
        source=f"not published: what a reader may take from {GRAZZI}",
        mixers=[BETA.format(2)],
        about="whether every seed learns parity at all lengths",
        arms=(FLIPS,),
        number=EVERY_SEED,
        checks=(EVERY_SEED,),
    ),
    "parity-attention": _of_parity(
        claim="Attention, trained on parity at 3 to 40 tokens (one layer, d=16), guesses at best, at 256 as at 40.",
        short="One layer of attention (d=16), trained at 3 to 40 tokens, guesses at parity.",
        mixers=["attention:num_heads=4"],
        about="what attention can learn of parity",
        arms=(ATTENTION,),
        number=Check(what=f"attention, {END}, best seed", metric=AT_256, rows=ATTENTION, over="max", at_most=0.6),
        checks=tuple(
            Check(
                what=f"attention, accuracy at the end of {length} tokens, best seed",
                metric=f"by_length.{length}",
                rows=ATTENTION,
                over="max",
                at_most=0.6,
            )
            for length in (256, 40)
        ),
    ),
    "s5-reflections": Claim(
        claim=(
            "Trained on words of S5 in two generators, a swap and a five-cycle, of 32 tokens, one layer of the delta "
            "rule with four reflections per token (d=64, 8 heads, no forget gate, no convolution) can learn to give "
            "the product so far all along 256 tokens; with one, two or three it does not: the best of five seeds."
        ),
        short="With four reflections a token one layer (d=64) can learn S5; with one to three not.",
        source=(
            "Siems et al., DeltaProduct, NeurIPS 2025 (arXiv 2502.10297), of which the theorem is that n - 1 "
            "reflections per token are enough for the permutations of n things in one layer; it trains on words in "
            "all 120 elements, of which no run ships"
        ),
        study="icl",
        series=("curve",),
        options={
            "task": "state_tracking:group=s5:length=32:tokens=generators",
            "model": {"state_mixer": "swiglu", "model_dim": 64, "num_layers": 1, "positions": "none"},
            "train": {"max_steps": 3000, "micro_batch_size": 64, "validate_every": 300, "warmup_ratio": 0.05},
            "optimizer": {"lr": 0.003, "weight_decay": 0},
            "eval_size": 500,
            "seeds": [0, 1, 2, 3, 4],
        },
        grid={
            "model.seq_mixer": [
                f"delta_product:num_heads=8:num_householder={count}:forget=false:conv=0" for count in REFLECTIONS
            ]
        },
        certificate=Certificate(
            about="how many reflections per token S5 takes",
            metric=AT_256,
            tried={"optimizer.lr": (0.001, 0.003, 0.01, 0.03)},
            arms=tuple(map(_reflecting, REFLECTIONS)),
            longer={"train.max_steps": 6000},
            # What is said not to be learnt is what more training must not change.
            number=Check(
                what=f"best of num_householder 1 to 3, {ALONG}, best seed",
                measure=best_of_fewer,
                over="max",
                at_most=0.6,
            ),
            goal=False,
        ),
        checks=tuple(
            Check(
                what=f"num_householder {count}, {ALONG}, best seed",
                short=f"num_householder {count}, accuracy over 256 tokens, best seed",
                metric=AT_256,
                rows=_reflecting(count),
                over="max",
                at_least=0.99 if count == 4 else None,
                at_most=None if count == 4 else 0.6,
            )
            for count in REFLECTIONS
        ),
    ),
    "regression-ols": Claim(
        claim=(
            "Minimum-norm least squares in context errs by 1 - n/d of the variance after n < d examples, and by "
            "nothing once n is above d."
        ),
        short="Least squares in context errs by 1 - n/d of the variance after n < d examples.",
        source=(
            "Garg et al., NeurIPS 2022 (arXiv 2208.01066): linear functions of d=20, the least-squares line of their "
            "figures"
        ),
        study="icl",
        series=("curve",),
        options={
            "task": "regression:regression_type=linear:input_dim=20:input_seq_len=26",
            "references_only": True,
            "eval_size": 1000,
            "seeds": list(range(16)),
        },
        exempt="nothing is trained",
        checks=(
            *(
                Check(
                    what=f"error over variance after {n} examples",
                    metric=f"references.ols.by_answer.{n}",
                    rows={"model": None},
                    target=1 - n / 20,
                    tolerance=tolerance,
                )
                for n, tolerance in ((5, 0.065), (10, 0.045), (15, 0.025))
            ),
            Check(
                what="error over variance after 25 examples",
                metric="references.ols.by_answer.25",
                rows={"model": None},
                over="max",
                at_most=0.001,
            ),
        ),
    ),
}
