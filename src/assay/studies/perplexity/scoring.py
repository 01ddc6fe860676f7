"""Computes a language model's loss under several attention methods, all lanes of one forward pass.

Lane 0 is always dense: what the others are compared with, and what a lane that keeps everything shares with it.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from assay.attention import attention
from assay.attention.base import Budget, Method, Select
from assay.attention.lanes import Lane, Usage
from assay.models.causal_lm import sparse_lanes
from assay.models.generation import generate
from assay.models.layout import model_layout
from assay.models.reader import Reader
from assay.studies.perplexity.key_tokens import key_tokens
from assay.studies.perplexity.windows import Spans, Window

TOKENS_AT_ONCE = 128
"""Positions of a sequence whose logits are computed at a time: a vocabulary of 50,000 fills memory otherwise."""
LANES_AT_ONCE = 32
PLACES = 32
"""Classes of positions in the curve of the loss: 0, 1, 2-3, 4-7, ..."""
DENSE = Lane(attention["dense"](), Budget(sparsity=0.0))
SUMS = ("tokens", "nll", "kl", "hits", "hit_nll")
ANSWERS = ("right", "exact")
"""More sums, of probes: tokens of the answer that are the likeliest, and texts in which all are."""
DECODED = "decoded"
"""Sum of the texts whose answer was decoded, of lanes that evict: those that select have none."""
KEYS = ("keys", "key_nll")
"""Sums over key tokens, where they are asked for."""
STATE = ("sums", "by_place", "seconds", "windows")
"""Fields of a tally in a checkpoint, besides the usage."""


Losses = Float[Tensor, " time"]
Marks = Bool[Tensor, " time"]
Scored = tuple[int, Window, Tensor, Tensor, Tensor | None]


@dataclass
class Tally:
    """The sums of one lane: by cluster, and by position in the window."""

    clusters: int
    queries: int
    """Queries of a window whose reads are counted: those of a dense prefix are not."""
    more: tuple[str, ...] = ()
    """Sums besides SUMS."""
    sums: dict[str, list[float]] = field(default_factory=dict)
    by_place: dict[str, list[float]] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    windows: int = 0

    def __post_init__(self) -> None:
        self.sums = {key: [0.0] * self.clusters for key in (*SUMS, *self.more)}
        self.by_place = {key: [0.0] * PLACES for key in ("tokens", "nll")}

    def add(
        self, window: Window, nll: Losses, kl: Losses, right: Marks | None = None, keys: Marks | None = None
    ) -> None:
        """Add a window; of probes also the tokens that are right, and where they are asked for the key tokens."""
        self.windows += 1
        asked, hits = window.scored, window.scored & window.hits
        totals = asked.sum(), nll[asked].sum(), kl[asked].sum(), hits.sum(), nll[hits].sum()
        found = dict(zip(SUMS, totals, strict=True))
        if right is not None:
            found |= zip(ANSWERS, (right[asked].sum(), right[asked].all()), strict=True)
        if keys is not None:
            found |= zip(KEYS, ((asked & keys).sum(), nll[asked & keys].sum()), strict=True)
        for key, value in found.items():
            self.sums[key][window.span] += float(value)
        places = torch.arange(len(nll))[asked]
        classes = places.clamp(min=1).log2().floor().long() + (places > 0)
        for key, values in (("tokens", torch.ones_like(nll)[asked]), ("nll", nll[asked])):
            summed = torch.zeros(PLACES, dtype=torch.float64).index_add_(0, classes, values.double()).tolist()
            self.by_place[key] = [one + other for one, other in zip(self.by_place[key], summed, strict=True)]

    def state(self) -> dict[str, Any]:
        """The sums as plain numbers, for a checkpoint."""
        return {key: getattr(self, key) for key in STATE} | {"usage": dict(vars(self.usage))}

    def restore(self, state: Mapping[str, Any]) -> None:
        for name in ("sums", "by_place"):
            if _lengths(state[name]) != _lengths(getattr(self, name)):
                raise ValueError(f"its {name} are of another text, or another version")
        for key in STATE:
            setattr(self, key, state[key])
        self.usage = Usage(**state["usage"])


def _lengths(sums: Mapping[str, Sequence[float]]) -> dict[str, int]:
    return {key: len(values) for key, values in sums.items()}


class Scorer(Reader):
    """A model whose hidden states are turned into losses piece by piece."""

    @torch.no_grad()
    def __call__(self, lanes: Sequence[Lane], windows: Sequence[Window]) -> list[Scored]:
        """(lane, window, nll, KL from dense, for probes whether a token is the likeliest one) for windows of one
        length; lane 0 must be dense. Where no window has a scored token, the numbers are 0."""
        answers = windows[0].answers
        ids, targets = (torch.stack([getattr(w, key) for w in windows]) for key in ("inputs", "targets"))
        ids, targets = ids.to(self.device), targets.to(self.device)
        hidden = self.body(ids.repeat(len(lanes), 1), use_cache=False)[0]
        hidden = rearrange(hidden, "(lane window) t d -> lane window t d", lane=len(lanes))
        nll = torch.zeros(len(lanes), len(windows), ids.shape[1])
        kl, right = torch.zeros_like(nll), torch.zeros_like(nll, dtype=torch.bool)
        for start in range(0, ids.shape[1], TOKENS_AT_ONCE):
            part = slice(start, start + TOKENS_AT_ONCE)
            if not any(window.scored[part].any() for window in windows):
                continue
            dense = self.log_probabilities(hidden[0, :, part])
            chances = dense.exp()
            for lane in range(len(lanes)):
                own = dense if lane == 0 else self.log_probabilities(hidden[lane, :, part])
                nll[lane, :, part] = -own.gather(-1, targets[:, part, None])[..., 0].cpu()
                if lane:
                    kl[lane, :, part] = (chances * (dense - own)).sum(-1).clamp(min=0).cpu()
                if answers:
                    right[lane, :, part] = (own.argmax(-1) == targets[:, part]).cpu()
        return [
            (lane, window, nll[lane, i], kl[lane, i], right[lane, i] if answers else None)
            for lane in range(len(lanes))
            for i, window in enumerate(windows)
        ]


class Pass:
    """Runs lanes through the windows of a text: how many are done, and each lane's tally. Lanes that are dense at this
    context share the dense one's."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        *,
        context: int,
        clusters: int,
        answers: bool = False,
        decode: bool = False,
        short: int = 0,
    ) -> None:
        """`answers` and `decode`: of probes; `short`: the short context of key tokens, if they are asked for."""
        for lane in lanes:
            lane.check(context)
        self.context, self.done, self.short = context, 0, short
        # Under the prefix protocol the dense lane, too, counts what the scored queries read.
        self.dense = replace(DENSE, prefix=next((lane.prefix for lane in lanes), 0))
        self.different = list(dict.fromkeys(lane for lane in lanes if not lane.is_dense(context)))
        self.tallies = dict[Lane, Tally]()
        for lane in (self.dense, *self.different):
            more = [*ANSWERS * answers, *[DECODED] * (decode and decodes(lane)), *KEYS * bool(short)]
            self.tallies[lane] = Tally(clusters, context - lane.first_sparse(context), tuple(more))

    def run(self, scorer: Scorer, windows: Iterable[Window], *, batch: int = 1) -> Iterator[int]:
        """Score what is left of the windows, some at a time; yields how many are done."""
        different = self.different
        parts = [different[i : i + LANES_AT_ONCE] for i in range(0, max(1, len(different)), LANES_AT_ONCE)]
        for group in batched(islice(windows, self.done, None), batch):
            for number, some in enumerate(parts):
                self._score(scorer, [self.dense, *some], group, first=number == 0)
            self.done += len(group)
            yield self.done

    def _score(self, scorer: Scorer, lanes: Sequence[Lane], group: Sequence[Window], *, first: bool) -> None:
        start = time.perf_counter()
        with sparse_lanes(scorer.model, lanes) as usages:
            scored = scorer(lanes, group)
        share = (time.perf_counter() - start) / len(lanes)
        keys = self._keys(scorer, scored)
        # Many lanes take several passes, each with the dense one, which counts once.
        for number, window, nll, kl, right in scored if first else scored[len(group) :]:
            self.tallies[lanes[number]].add(window, nll, kl, right, keys.get(window))
        for number, (lane, usage) in enumerate(zip(lanes, usages, strict=True)):
            if number or first:
                tally = self.tallies[lane]
                tally.seconds += share
                for key, value in vars(usage).items():
                    setattr(tally.usage, key, getattr(tally.usage, key) + value)
        if group[0].decode:
            for lane, window, found in answered(scorer, lanes if first else lanes[1:], group):
                self.tallies[lane].sums[DECODED][window.span] += float(found)

    def _keys(self, scorer: Scorer, scored: Sequence[Scored]) -> dict[Window, Tensor]:
        """The key tokens of each window, by the losses of its dense lane; none where they are not asked for."""
        dense = {window: nll for number, window, nll, *_ in scored if self.short and not number}
        return {window: key_tokens(scorer, window, nll, short=self.short) for window, nll in dense.items()}

    def tally(self, lane: Lane) -> Tally:
        return self.tallies[self.dense if lane.is_dense(self.context) else lane]


def decodes(lane: Lane) -> bool:
    """Return whether the lane has a cache of its own: methods that select evict nothing."""
    return not isinstance(lane.method, Select)


def answered(scorer: Reader, lanes: Sequence[Lane], windows: Sequence[Window]) -> Iterator[tuple[Lane, Window, bool]]:
    """Yield whether each lane that evicts decodes each answer, token for token."""
    evicting = [lane for lane in lanes if decodes(lane)]
    for count, same in groupby(windows, key=lambda window: int(window.scored.sum())):
        some = list(same) if evicting else []
        if not some:
            continue
        inputs, answers = torch.stack([w.inputs for w in some]), torch.stack([w.targets[-count:] for w in some])
        # The last of the prompt is the token before the answer.
        prompt = inputs[:, : inputs.shape[1] - count + 1].to(scorer.device)
        found = generate(scorer, evicting, prompt, tokens=count, total=inputs.shape[1])
        for lane, tokens in zip(evicting, found.tokens.cpu(), strict=True):
            for window, own, answer in zip(some, tokens, answers, strict=True):
                yield lane, window, torch.equal(own, answer)


def batched(windows: Iterable[Window], size: int) -> Iterator[list[Window]]:
    """Batch consecutive windows of one length, so that nothing is padded."""
    for _, same in groupby(windows, key=lambda window: len(window.inputs)):
        while group := list(islice(same, size)):
            yield group


def metrics(tally: Tally, spans: Spans, *, only: Sequence[int], model: nn.Module, method: Method) -> dict[str, Any]:
    """The metrics of a lane's record: plain sums over the clusters of its shard, so that shards can be pooled."""
    found = [spans.found[number] for number in only]
    sums = {key: [values[number] for number in only] for key, values in tally.sums.items()}
    sums |= {key: [float(getattr(span, key)) for span in found] for key in ("chars", "bytes", "words")}
    tokens, nll = sum(sums["tokens"]), sum(sums["nll"])
    width, usage = model_layout(model).vector, tally.usage
    dtype: Any = model.dtype
    return {
        "cross_entropy": nll / tokens if tokens else None,
        "perplexity": math.exp(min(nll / tokens, 700.0)) if tokens else None,
        "sums": sums,
        "clusters": list(only),
        "documents": [span.document for span in found],
        "distances": [span.distance for span in found],
        "by_place": tally.by_place,
        # No pair is hidden on most models, and their records have no such number.
        "usage": {key: value for key, value in vars(usage).items() if value or key != "hidden"}
        | {
            # Each vector read costs a product with a query, or an addition to its output, for each query head.
            "attention_flops": 2 * width * method.vectors_read(usage.visible, usage.attended),
            "windows": tally.windows,
            "tokens": tally.windows * tally.queries,
        },
        "vector_bytes": width * dtype.itemsize,
        "dtype": str(dtype).removeprefix("torch."),
    }
