"""Decodes the answers of probes with caches from which keys are really evicted."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch

from assay.attention.base import Select
from assay.attention.lanes import Lane
from assay.models.generation import Reader, generate
from assay.studies.perplexity.windows import Window


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
