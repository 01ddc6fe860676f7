"""A language model generates greedily here with caches from which keys are really evicted.

    found = generate(Reader(model), [Lane(attention.parse("h2o"), Budget(slots=64))], prompt, tokens=32)
    found.tokens[0, 0]                the tokens of the first lane, after the first prompt

The prompt is read in one pass, its evictions replayed; then one token at a time, without the history: the model is
given the token and its position, and attention finds the rest in the caches (attention/decoding.py).
"""

import inspect
import math
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Int
from torch import Tensor, nn

from assay.attention.decoding import Decoding, check_decodes, decoding
from assay.attention.lanes import Lane
from assay.core.errors import UserError
from assay.models.causal_lm import sparse_lanes
from assay.models.layout import model_layout
from assay.models.reader import Reader


@dataclass(frozen=True)
class Generated:
    """What was generated, how fast, and what was held for it."""

    tokens: Int[Tensor, "lanes prompts time"]
    prompt_seconds: float
    seconds: float
    """Of all tokens but the first, which reading the prompt gives."""
    cpu_seconds: float
    """The same in CPU time of this process: on a CPU, what others run beside it does not change it much."""
    kv_bytes: tuple[int, ...]
    """Keys and values held per sequence, by lane."""
    prompt_peak_bytes: int
    """Memory while the prompt was read; on a CPU, of the process so far."""
    peak_bytes: int
    """Memory while tokens were generated; on a CPU, of the process so far."""


@torch.no_grad()
def generate(
    reader: Reader, lanes: Sequence[Lane], prompt: Int[Tensor, "prompts time"], *, tokens: int, total: int = 0
) -> Generated:
    """Generate so many tokens behind each prompt, in every lane. `total`: length of the sequence that sparsities are
    of, if longer."""
    length, model, body = prompt.shape[1], reader.model, reader.body

    def likeliest(ids: Tensor, whole: int = 1) -> Int[Tensor, " rows"]:
        return reader.log_probabilities(_read(body, held, ids, whole=whole))[:, -1].argmax(-1)

    for lane in lanes:
        check_decodes(lane, length)
    if "position_ids" not in inspect.signature(body.forward).parameters:
        raise UserError(f"{type(model).__name__} takes no positions: it cannot read one token without those before it.")
    config: Any = model.config
    layers, attending = config.get_text_config().num_hidden_layers, len(model_layout(model).turns)
    if attending < layers:
        raise UserError(
            f"{type(model).__name__}: {attending} of its {layers} layers attend; what the others carry "
            "from token to token is not kept here, so it cannot generate."
        )
    with (
        sparse_lanes(model, lanes, count=False),
        decoding(total=max(total, length + tokens), windows=own_windows(model)) as held,
    ):
        ids, device = prompt.repeat(len(lanes), 1), prompt.device
        start, _ = _clock(device)
        found = [likeliest(ids, math.lcm(*(lane.chunk for lane in lanes)))]
        between, prompt_peak = _clock(device)
        before = time.process_time()
        while len(found) < tokens:
            found.append(likeliest(found[-1][:, None]))
        end, peak = _clock(device)
        spent = time.process_time() - before
        sizes = tuple(held.bytes(number) for number in range(len(lanes)))
    every = rearrange(torch.stack(found, dim=1), "(lane prompt) t -> lane prompt t", lane=len(lanes))
    return Generated(every, between - start, end - between, spent, sizes, prompt_peak, peak)


def _read(body: nn.Module, held: Decoding, ids: Int[Tensor, "rows time"], *, whole: int = 1) -> Tensor:
    """Read tokens and return the last one's hidden state: a prompt in one pass up to a multiple of `whole`, and what is
    left token by token."""
    at_once, hidden = ids.shape[1] - ids.shape[1] % whole, ids.new_zeros(0)
    for part in ids.split([at_once, *[1] * (ids.shape[1] - at_once)], dim=1):
        places = torch.arange(held.time, held.time + part.shape[1], device=ids.device).expand(len(ids), -1)
        hidden = body(part, position_ids=places, use_cache=False)[0][:, -1:]
        held.time += part.shape[1]
    return hidden


def own_windows(model: nn.Module) -> list[int | None]:
    """Return the sliding window of each attention layer, in order; None where it has none."""
    found: dict[int, int | None] = {}
    for part in model.modules():
        if hasattr(part, "layer_idx") and hasattr(part, "is_causal"):
            found[int(part.layer_idx)] = _window(part)  # type: ignore[arg-type]
    return [found[index] for index in sorted(found)]


def _window(part: Any) -> int | None:
    if hasattr(part, "sliding_window"):
        return part.sliding_window or None
    config = part.config
    types = getattr(config, "layer_types", None)
    slides = getattr(config, "use_sliding_window", True) and (
        types is None or types[part.layer_idx] == "sliding_attention"
    )
    return (getattr(config, "sliding_window", None) or None) if slides else None


def _clock(device: torch.device) -> tuple[float, int]:
    """Return the time, and the most memory that was in use since the last call."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    peak = peak_memory(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    return time.perf_counter(), peak


def peak_memory(device: torch.device) -> int:
    """Return the most bytes in use on a GPU since they were last counted; on a CPU, the most of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
