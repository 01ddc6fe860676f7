"""Generates text with caches from which keys are really evicted, and compares it with what the replay predicts.

    assay perplexity --generate 32 --methods dense h2o window --budgets 64 --context-lengths 512 --no-sparsity-sweep

A run is one method with one budget behind the beginnings of a few documents, alone, so that its speed is its own. The
whole text is then read at once under the exact replay: the agreement is the share of tokens that it would have chosen.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from assay.attention.decoding import check_decodes
from assay.attention.lanes import Lane
from assay.core.errors import UserError
from assay.core.run import REFUSED, Run, canonical
from assay.core.study import Context, Outcome, Report
from assay.models.causal_lm import sparse_lanes
from assay.models.generation import Generated, generate
from assay.report.draw import filled
from assay.report.rows import Row
from assay.studies.perplexity.cells import budget_of, error_of, in_short, is_dense
from assay.studies.perplexity.document import Sweeps
from assay.studies.perplexity.figures import budget_words
from assay.studies.perplexity.scoring import Scorer
from assay.studies.perplexity.windows import Spans, bos_of, windows_of

GENERATE = "generate"
"""Option of a run that generates: so many tokens."""
PROMPTS = 4
"""Beginnings of documents behind which text is generated."""
WARM_UP = 3
"""Tokens that are generated before anything is timed."""
FORMATS = {"Tokens/s": ".1f", "Prompt s": ".2f", "KV kB": ".1f", "Peak MB": ".0f", "Prompt peak MB": ".0f"}
LEAD = ("Method", "Sparsity", "Tokens/s", "KV kB", "Peak MB", "Agreement", "Same as dense")
NOTE = (
    "Greedy, one sequence at a time, with the keys that a method evicts really gone. KV kB: keys and values held per "
    "sequence. Tokens/s: after the prompt, which takes Prompt s. Peak MB: while tokens are generated (on a CPU, of the "
    "whole process so far). Agreement: tokens that the exact replay of the whole text would have chosen. Same as "
    "dense: the part of the text, from its start on, that dense attention generates too."
)


def check_generates(study: Any) -> None:
    """Raise UserError for more tokens than a context has behind a prompt."""
    least = study.fixed // 2 if study.protocol == "prefix" else study.chunk if study.protocol == "chunked" else 1
    if study.generate < 0 or (study.generate and study.fixed - study.generate < least):
        raise UserError(
            f"--generate {study.generate}: a context of {study.fixed} tokens has room for 1 to {study.fixed - least} "
            f"behind a prompt."
        )


def generate_cells(study: Any) -> Iterator[dict[str, Any]]:
    """The options of every run that generates: each method and budget at the fixed context."""
    if not study.generate:
        return
    budgets = [budget for context, budget in study.points() if context == study.fixed]
    for name in study.datasets:
        for budget in budgets:
            for method in study.chosen():
                lane = study.lane(method, budget)
                if method.name == "dense" or budget.sparsity != 0:
                    parts = {"shard": 0, "shards": 1, GENERATE: study.generate}
                    yield {"dataset": study.dataset(name), "context": study.fixed, **lane, **parts}


def generated(run: Run, lane: Lane, scorer: Scorer, spans: Spans, tokenizer: Any, ctx: Context) -> Iterator[Outcome]:
    """Generate behind each prompt, then read the whole under the replay."""
    context, tokens = run.options["context"], run.options[GENERATE]
    try:
        lane.check(context)
        check_decodes(lane, context - tokens)
    except UserError as error:  # a budget that is too small, or nothing is evicted: the table says so
        yield Outcome(run, {REFUSED: str(error)})
        return
    some = list(islice(windows_of(spans.found[:PROMPTS], context=context, bos=bos_of(tokenizer)), PROMPTS))
    found, agreed = list[Generated](), list[int]()
    for number, window in enumerate(some):
        prompt = window.inputs[None, : context - tokens].to(scorer.device)
        if not number:
            generate(scorer, [lane], prompt, tokens=min(WARM_UP, tokens), total=context)
        found.append(generate(scorer, [lane], prompt, tokens=tokens, total=context))
        agreed.append(agreement(scorer, lane, prompt, found[-1].tokens[0]))
        ctx.progress(run, number + 1, len(some))
    words = [one.tokens[0, 0].tolist() for one in found]
    metrics = {
        "agreed": sum(agreed),
        "tokens": tokens * len(found),
        "generated": words,
        "text": tokenizer.decode(words[0]),
        "kv_bytes": found[0].kv_bytes[0],
        "dtype": str(scorer.model.dtype).removeprefix("torch."),
    }
    yield Outcome(run, metrics, cost=_cost(found, tokens))


@torch.no_grad()
def agreement(scorer: Scorer, lane: Lane, prompt: Int[Tensor, "1 time"], tokens: Int[Tensor, "1 new"]) -> int:
    """Return how many of the generated tokens the replay of the whole text would have chosen."""
    whole = torch.cat([prompt, tokens], dim=1)
    with sparse_lanes(scorer.model, [lane], count=False):
        hidden = scorer.body(whole, use_cache=False)[0][:, prompt.shape[1] - 1 : -1]
    return int((scorer.log_probabilities(hidden).argmax(-1) == tokens).sum())


def _cost(found: Sequence[Generated], tokens: int) -> dict[str, float]:
    seconds, prompt = sum(one.seconds for one in found), sum(one.prompt_seconds for one in found)
    cost = {
        "seconds": seconds + prompt,
        "prompt_seconds": prompt / len(found),
        "peak_memory_bytes": max(one.peak_bytes for one in found),
        "prompt_peak_bytes": max(one.prompt_peak_bytes for one in found),
    }
    timed = (tokens - 1) * len(found)  # the first token comes of reading the prompt
    if not timed:
        return cost
    busy = sum(one.cpu_seconds for one in found)
    return cost | {"tokens_per_second": timed / max(seconds, 1e-9), "tokens_per_cpu_second": timed / max(busy, 1e-9)}


def report_generated(found: Sequence[Row], out: Report, *, name: str, sweeps: Sweeps) -> None:
    """Add the table of the runs that generated, if there are any."""
    dense = {_key(row): row for row in found if is_dense(row) and not error_of(row)}
    lines = filled([_line(row, dense.get(_key(row)), sweeps) for row in found])
    if lines:
        several = [key for key in ("Dataset", "Context") if len({line[key] for line in lines}) > 1]
        lead = [*several, *(column for column in LEAD if column in lines[0])]
        out.table(f"{name}_generate", lines, formats=FORMATS, lead=lead, note=NOTE)


def _key(row: Row) -> str:
    options = row.options
    return canonical([options["dataset"], options["context"], options[GENERATE], options["protocol"] == "prefix"])


def _line(row: Row, dense: Row | None, sweeps: Sweeps) -> dict[str, Any]:
    options = row.options
    head = {
        "Dataset": options["dataset"]["name"],
        "Method": sweeps.title(row),
        "Context": options["context"],
        "Sparsity": budget_words(budget_of(row)),
    }
    if reason := error_of(row):
        return head | {"Tokens/s": in_short(reason)}
    record = row.records[0]
    metrics, cost = record.metrics, record.cost
    same = None if dense is None else _same(metrics["generated"], dense.records[0].metrics["generated"])
    return head | {
        "Tokens/s": cost.get("tokens_per_second"),
        "Prompt s": cost.get("prompt_seconds"),
        "KV kB": metrics["kv_bytes"] / 1000,
        "Peak MB": _mega(cost, "peak_memory_bytes"),
        "Prompt peak MB": _mega(cost, "prompt_peak_bytes"),
        "Agreement": metrics["agreed"] / metrics["tokens"],
        "Same as dense": same,
        "Text": metrics["text"],
    }


def _same(own: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> float:
    """The share of tokens up to the first that differs, over all prompts."""
    pairs = [list(zip(one, two, strict=True)) for one, two in zip(own, other, strict=True)]
    alike = sum(len(list(takewhile(lambda pair: pair[0] == pair[1], pair))) for pair in pairs)
    return alike / sum(map(len, pairs))


def _mega(cost: Mapping[str, Any], key: str) -> float | None:
    return None if key not in cost else cost[key] / 1e6
