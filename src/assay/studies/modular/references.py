"""Scores untrained floors and the model of four units built by hand, on the very pairs that models are scored on.

Each seed has its own split, so each reference is scored on the validation and test pairs of every seed, and on all P^2.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from assay.metrics.intervals import share
from assay.studies.modular.bilinear import addition_table, answered, constructive_model
from assay.studies.modular.bilinear_bank import PairSplit
from assay.studies.modular.records import recipe_of

ONE_ANSWER, BY_HEART, BY_HAND = "one answer", "training pairs by heart", "four units by hand"


def pairs_of(options: Mapping[str, Any]) -> tuple[int, int, int]:
    """Count the pairs that a run trains, validates and tests on."""
    return recipe_of(options).sizes(options["P"])


def references(options: Mapping[str, Any], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Score two floors and a ceiling, in the columns of the sweep's table."""
    P, recipe = options["P"], recipe_of(options)
    splits = [PairSplit.of(P, seed, recipe) for seed in seeds]
    by_hand = answered(constructive_model(P))
    kinds = {
        ONE_ANSWER: [_one_answer(P, split) for split in splits],
        BY_HEART: [_one_answer(P, split).index_fill(0, split.train, 1) for split in splits],
        BY_HAND: [by_hand for _ in splits],
    }
    return [{"model": kind, **_scores(right, splits)} for kind, right in kinds.items()]


def _one_answer(P: int, split: PairSplit) -> Tensor:
    """1 where the answer that fewest training pairs have is right: each has P pairs in all, so it is the most common of
    the others."""
    answers = addition_table(P)[2]
    return (answers == answers[split.train].bincount(minlength=P).argmin()).double()


def _scores(right: Sequence[Tensor], splits: Sequence[PairSplit]) -> dict[str, Any]:
    tested = bool(len(splits[0].test))
    val, test = (
        [float(own[getattr(split, part)].mean()) for own, split in zip(right, splits, strict=True)]
        for part in ("val", "test")
    )
    return {
        "val acc": share(val),
        "test acc": share(test) if tested else None,
        "full table": share([float(own.mean()) for own in right]),
    }
