"""A calibration pass tells the retrieval heads of a language model from those that could do with sinks and recent keys.

Random tokens are read twice in a row. What a head gives for the second reading is compared with what it would give if
it saw no more than the first SINKS and the latest RECENT keys:

    score = sum over queries of the second reading, and query heads of the group, of |o - o_streaming|^2
            / the same sum of |o|^2

0 is a head that loses nothing. The scores are stored as JSON in assay's cache, in the folder `heads`, under a hash of
the model's config and of a part of each of its weights; other precisions and devices have files of their own.
"""

import hashlib
import json
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from assay.attention.layer import Layer, masked_attention
from assay.core.errors import UserError
from assay.core.files import read_file, write_file
from assay.data import places
from assay.models.layout import evaluated
from assay.models.taking_over import own_mask, taking_over
from assay.nn.random import stream

VERSION, TOKENS, SINKS, RECENT = 1, 128, 4, 32
"""Another version is another file. So many tokens are read twice."""
SAMPLED = 1024
"""Numbers of each weight in the hash."""

_SCORES: WeakKeyDictionary[nn.Module, Tensor] = WeakKeyDictionary()


def head_scores(model: nn.Module) -> Float[Tensor, "layers kv_heads"]:
    """Return the scores of a model's KV heads, measured or as they are stored."""
    if model not in _SCORES:
        path = places.cache() / "heads" / f"{identity(model)}.json"
        if (found := stored(path)) is None:
            found = measured(model)
            said = {"version": VERSION, "tokens": TOKENS, "sinks": SINKS, "recent": RECENT}
            write_file(path, json.dumps({"model": type(model).__name__, **said, "scores": found}).encode())
        _SCORES[model] = torch.tensor(found)
    return _SCORES[model]


def stored(path: Path) -> list[list[float]] | None:
    """Return the scores in a file; None if there are none, or none that can be read, and they are measured again."""
    try:
        found = json.loads(read_file(path))["scores"]
        return found if torch.tensor(found).ndim == 2 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


@torch.no_grad()
def measured(model: Any) -> list[list[float]]:
    """Run the calibration pass."""
    scores: dict[int, list[float]] = {}

    def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **how: Any) -> Tensor:
        layer = Layer(q, k, v, own_mask(mask, len(q)), **how)
        whole = masked_attention(layer, layer.visible[:, None])
        place = torch.arange(layer.time, device=q.device)
        near = (place < SINKS) | (place[:, None] - place <= RECENT)
        short = masked_attention(layer, (layer.visible & near)[:, None])
        lost, all_ = (x[:, :, TOKENS:].float().square().sum((0, 2, 3)) for x in (whole - short, whole))
        lost, all_ = (rearrange(x, "(h g) -> h g", h=k.shape[1]).sum(1) for x in (lost, all_))
        scores[int(module.layer_idx)] = (lost / all_.clamp(min=torch.finfo(all_.dtype).tiny)).tolist()
        return whole

    embedding = model.get_input_embeddings().weight
    once = torch.randint(len(embedding), (1, TOKENS), generator=stream(0, "calibration"))
    with taking_over(model, attend), evaluated(model):
        model.base_model(once.repeat(1, 2).to(embedding.device), use_cache=False)
    found = [scores[index] for index in sorted(scores)]
    if len({len(heads) for heads in found}) != 1:
        raise UserError(f"{type(model).__name__} has no attention layers, or layers of different numbers of heads.")
    return found


def identity(model: Any) -> str:
    """Return a hash of what the scores depend on."""
    device = next(model.parameters()).device.type
    found = hashlib.sha256(f"{VERSION} {device} {model.config.to_json_string()}".encode())
    for name, weight in model.state_dict().items():
        part = weight.flatten()[:: max(1, weight.numel() // SAMPLED)].detach().cpu().contiguous()
        found.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        found.update(part.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:32]
