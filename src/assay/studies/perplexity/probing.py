"""Probes are scored as texts are: a sample is a window whose answer alone is scored, and a cluster of the bootstrap.

    assay perplexity --probes passkey needle --probe-depths 0 0.5 1 --methods h2o streaming_llm --budgets 64 --datasets

A probe is the dataset of a run, at each of the study's context lengths and budgets. The same samples without what
answers them, which dense attention alone reads, are the floor.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from assay.attention.base import Budget
from assay.core.errors import UserError
from assay.core.seeds import derive
from assay.probes import probes
from assay.probes.base import chosen, fitted
from assay.studies.perplexity.windows import Span, Spans

PROBE = "probe"
"""Key of a dataset that is a probe."""


def check_probes(study: Any) -> None:
    """Raise UserError for flags of a `Perplexity` that no probe can take."""
    chosen(study.probes)
    if not study.probe_depths or not all(0 <= depth <= 1 for depth in study.probe_depths):
        raise UserError("--probe-depths: give at least one, each from 0 (the start) to 1 (the end).")
    if study.probe_samples < 1:
        raise UserError("--probe-samples is at least 1.")
    shortest = min(study.context_lengths)
    if study.probes and study.protocol == "chunked" and 2 * study.chunk > shortest:
        raise UserError(f"--chunk {study.chunk}: for probes at most half of the shortest context, {shortest}.")


def probe_cells(study: Any) -> Iterator[dict[str, Any]]:
    """The options of every run of a probe, but for its shard."""
    budgets = list(dict.fromkeys(budget for _, budget in study.points() if budget.sparsity != 0))
    dense = Budget(sparsity=0.0)
    for probe in chosen(study.probes):
        drawn = {"depths": sorted(set(study.probe_depths)), "samples": study.probe_samples}
        # Left out where answers are decoded, as they always were: records of before keep their ids.
        scored_alone = {} if study.probe_decode else {"decode": False}
        dataset = {"name": f"{PROBE}:{probe.label}", PROBE: probe, **drawn, **scored_alone}
        for context in sorted(set(study.context_lengths)):
            for method in study.chosen():
                for budget in [dense] if method.name == "dense" else budgets:
                    yield {"dataset": dataset | {"floor": False}, "context": context, **study.lane(method, budget)}
                if method.name == "dense":
                    yield {"dataset": dataset | {"floor": True}, "context": context, **study.lane(method, dense)}


def probe_spans(options: Mapping[str, Any], tokenizer: Any, *, context: int, seed: int) -> Spans:
    """Write the samples of a probe: so many at each depth, each a window of its own."""
    probe = probes.load(options[PROBE])

    def encode(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    decode = options.get("decode", True) and not options["floor"]
    found, tail = list[Span](), 0
    for depth in options["depths"]:
        for _ in range(options["samples"]):
            own = derive(seed, PROBE, probe.label, len(found))
            sample = fitted(probe, encode, length=context, depth=depth, seed=own, floor=options["floor"])
            scored = torch.arange(context) >= context - sample.answer
            tokens, place = torch.tensor(sample.tokens), depth if probe.placed else None
            found.append(Span(len(found), tokens, 0, 0, 0, scored, answers=True, decode=decode, depth=place))
            tail = max(tail, sample.tail)
    return Spans(tuple(found), prefix=context - tail)
