"""Key tokens are those that a long context makes likelier (Fang et al. 2024, arXiv 2410.23771: LongPPL).

    log p(token | all before it) - log p(token | the last K to 5K/4) > 2      and      log p(token | all before it) > -2

Both are of dense attention, and the thresholds are the paper's, as is moving the short context on by a quarter of its
length. The tokens are the same for every method: how much of what the long context gives is left shows in their loss.

Differs from the paper: the model that is measured finds its own key tokens, where the paper asks a stronger one; and K
is given (`--key-tokens K`), where the paper has 4096.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.models.reader import Reader
from assay.studies.perplexity.windows import Window

GAIN, LIKELY = 2.0, -2.0
"""Nats by which the long context makes a key token likelier, and its log-probability there, as published."""
ROWS_AT_ONCE = 8


def key_tokens(scorer: Reader, window: Window, dense: Float[Tensor, " time"], *, short: int) -> Bool[Tensor, " time"]:
    """Mark the tokens of a window that its context beyond the last `short` tokens or so makes likelier, given their
    loss under dense attention. The first `short` tokens have no longer context, and are none."""
    found, step = torch.zeros_like(dense, dtype=torch.bool), max(1, short // 4)
    starts = [place for place in range(short, len(window.targets), step) if window.scored[place : place + step].any()]
    whole = [place for place in starts if place + step <= len(window.targets)]
    rows = [whole[i : i + ROWS_AT_ONCE] for i in range(0, len(whole), ROWS_AT_ONCE)]
    for some in [*rows, *([place] for place in starts if place not in whole)]:
        for place, loss in zip(some, _losses(scorer, window, some, short, step), strict=True):
            long = dense[place : place + step]
            found[place : place + step] = (loss - long > GAIN) & (-long > LIKELY)
    return found


@torch.no_grad()
def _losses(
    scorer: Reader, window: Window, places: Sequence[int], short: int, step: int
) -> Float[Tensor, "places new"]:
    """Return the losses of the tokens from each place on, given a beginning and the `short` tokens before it."""
    texts = torch.stack([window.targets[place - short : place + step] for place in places]).to(scorer.device)
    begin = window.inputs[:1].to(scorer.device).expand(len(places), 1)
    hidden = scorer.body(torch.cat([begin, texts[:, :-1]], dim=1), use_cache=False)[0][:, short:]
    return -scorer.log_probabilities(hidden).gather(-1, texts[:, short:, None])[..., 0].cpu()
