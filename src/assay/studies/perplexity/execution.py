"""Scores the runs of one cohort as lanes of one forward pass."""

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch

from assay.attention import attention
from assay.attention.base import Budget, BudgetTooSmall
from assay.attention.lanes import Lane
from assay.core.errors import UserError
from assay.core.run import REFUSED, Run, canonical
from assay.core.study import Context, Outcome
from assay.data.text import load_corpus
from assay.models.causal_lm import fingerprint, load_model, load_tokenizer, refusal
from assay.models.generation import peak_memory
from assay.models.layout import model_layout
from assay.studies.perplexity.generating import GENERATE, generated
from assay.studies.perplexity.probing import PROBE, probe_spans
from assay.studies.perplexity.scoring import Pass, Scorer, Tally, metrics
from assay.studies.perplexity.windows import Spans, bos_of, copy_spans, spans_of, windows_of
from assay.train.checkpoint import Checkpoint, Keeper, resumed, unfinished

COPY = "copy"
"""The dataset of the copy probe."""
TOKENS_AT_ONCE = 1024
"""Tokens of short windows per forward pass, so that they share the replay's steps. Few, since an interrupted process
loses the windows in progress."""
ON_CUDA = 8
"""So many times more on CUDA, where a step of the replay takes as long for eight windows as for one."""


def located(name: str, revision: str | None) -> dict[str, Any]:
    """Describe a model as an option of a run, with the hash of a local folder."""
    return {"name": name, "sha256": fingerprint(name), "revision": revision}


def execute(runs: Sequence[Run], ctx: Context, device: torch.device) -> Iterator[Outcome]:
    """Score all lanes and yield an outcome per run; a method whose budget is too small gets its reason instead of
    numbers. Lanes with a checkpoint in the middle of the text resume from there together."""
    options, model = runs[0].options, canonical(runs[0].options["model"])
    spans = spans_for(canonical(options["dataset"]), model, options["context"], runs[0].seed)
    if GENERATE in options:
        tokenizer = tokenizer_for(options["model"]["name"], options["model"]["revision"])
        for run in runs:
            scorer = scorer_for(model, options["dtype"], device)
            yield from generated(run, lane_of(run.options, spans.prefix), scorer, spans, tokenizer, ctx)
        return
    only = range(options["shard"], len(spans.found), options["shards"])
    lanes, refused = dict[Run, Lane](), dict[Run, str]()
    for run in runs:
        lane = lane_of(run.options, spans.prefix)
        try:
            lane.check(options["context"])
            lanes[run] = lane
        except BudgetTooSmall as error:
            refused[run] = str(error)
    yield from (Outcome(run, {REFUSED: reason}) for run, reason in refused.items())
    scorer = scorer_for(model, options["dtype"], device)
    layout, time = model_layout(scorer.model), options["context"]
    impossible = {run: reason for run, lane in lanes.items() if (reason := refusal(layout, lane, time))}
    lanes = {run: lane for run, lane in lanes.items() if run not in impossible}
    for some, saved in unfinished(list(lanes), ctx, whole=False):
        yield from _scored({run: lanes[run] for run in some}, spans, only, ctx, scorer, saved)
    if impossible:  # the others are stored by now; these fail, and are tried again another time
        raise UserError(next(iter(impossible.values())))


def lane_of(options: Any, prefix: int | None = None) -> Lane:
    """The lane of a run, fitted to its budget; a prefix is half of the window, unless its length is given."""
    prefix = (prefix or options["context"] // 2) if options["protocol"] == "prefix" else 0
    method, budget = attention.load(options["method"]), Budget(**options["budget"])
    return Lane(method, budget, options["positions"], options["chunk"], prefix).fitted(options["context"])


def _scored(
    lanes: dict[Run, Lane], spans: Spans, only: Sequence[int], ctx: Context, scorer: Scorer, saved: Checkpoint | None
) -> Iterator[Outcome]:
    """Score all lanes in one pass, resuming from their checkpoint."""
    first, device = next(iter(lanes)), scorer.device
    options, context, spec = first.options, first.options["context"], first.options["model"]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    bos = bos_of(tokenizer_for(spec["name"], spec["revision"]))
    windows = list(windows_of(spans.found, context=context, bos=bos, only=only, skip=lanes[first].prefix))

    def start() -> Pass:
        probe = {key: getattr(spans.found[0], key) for key in ("answers", "decode")}
        short = options.get("key_tokens", 0)
        return Pass(list(lanes.values()), context=context, clusters=len(spans.found), short=short, **probe)

    def take_up(fresh: Pass, saved: Checkpoint) -> None:
        for run, lane in lanes.items():
            fresh.tally(lane).restore(saved.runs[run.id])
        fresh.done = saved.done

    def checkpoint() -> Checkpoint:
        return Checkpoint(going.done, None, {run.id: going.tally(lane).state() for run, lane in lanes.items()})

    going, keeper, last = resumed(saved, start, take_up), Keeper(ctx), list(lanes)[-1]
    at_once = TOKENS_AT_ONCE * (ON_CUDA if device.type == "cuda" else 1)
    for done in going.run(scorer, windows, batch=max(1, at_once // context)):
        # Always at the end, so that lanes which are not stored yet need no pass of their own.
        keeper.keep(last, checkpoint, now=done == len(windows))
        for run in lanes:
            ctx.progress(run, done, len(windows))
    for run, lane in lanes.items():
        tally = going.tally(lane)
        found = metrics(tally, spans, only=only, model=scorer.model, method=lane.method)
        yield Outcome(run, found | _texts(run, spans, only), cost=_cost(tally, device))


@lru_cache(maxsize=1)
def scorer_for(model: str, dtype: str, device: torch.device) -> Scorer:
    """Load a model (its options as JSON) once per worker; a hash is among them, as a folder's content may change."""
    spec = json.loads(model)
    return Scorer(load_model(spec["name"], dtype=dtype, device=device, revision=spec["revision"]))


@lru_cache(maxsize=2)
def tokenizer_for(name: str, revision: str | None) -> Any:
    return load_tokenizer(name, revision=revision)


@lru_cache(maxsize=4)
def spans_for(dataset: str, model: str, context: int, seed: int) -> Spans:
    """Cut a text (its options as JSON) into the spans that are scored, with the model's tokenizer."""
    options, spec = json.loads(dataset), json.loads(model)
    tokenizer = tokenizer_for(spec["name"], spec["revision"])
    if options["name"] == COPY:
        return copy_spans(tokenizer, context=context, seed=seed)
    if PROBE in options:
        return probe_spans(options, tokenizer, context=context, seed=seed)
    corpus = load_corpus(options["name"], limit=options["max_samples"])
    chosen = {key: options[key] for key in ("longest", "max_samples", "max_windows")}
    return spans_of(corpus, tokenizer, **chosen)


def _texts(run: Run, spans: Spans, only: Sequence[int]) -> dict[str, Any]:
    """Describe the texts that were scored."""
    options = run.options["dataset"]
    if PROBE in options:
        return {"depths": [spans.found[number].depth for number in only]}
    copies = options["name"] == COPY
    sha256 = None if copies else load_corpus(options["name"], limit=options["max_samples"]).sha256
    return {"dataset_sha256": sha256, "documents_used": spans.documents, "documents_too_short": spans.too_short}


def _cost(tally: Tally, device: torch.device) -> dict[str, float]:
    """The cost of a lane: its share of the seconds of the pass."""
    tokens = sum(tally.by_place["tokens"])
    peak = peak_memory(device)
    return {"seconds": tally.seconds, "tokens_per_second": tokens / max(tally.seconds, 1e-9), "peak_memory_bytes": peak}
