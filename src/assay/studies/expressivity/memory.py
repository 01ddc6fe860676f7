"""Estimates the peak memory of a run of `expressivity` from the sizes of its setup and its encoder."""

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache

import torch
from torch import nn

from assay.core.run import Run, canonical
from assay.encoders import encoders
from assay.metrics.probes import PENALTIES
from assay.nn.shapes import built_for_shapes
from assay.studies.expressivity.references import is_reference
from assay.studies.expressivity.spec.config import CACHED_LOOKUPS, Config, Setup
from assay.studies.expressivity.spec.registration import ModuleEncoder
from assay.train.footprint import TRAINED, passing, stored

COPIES = 2
"""Copies of an encoder beside the one that a probe trains."""
SHORT = 32
"""Sequence length at which an encoder's memory per token is measured."""


def memory(run: Run) -> Mapping[str, int]:
    options = {f.name: run.options[f.name] for f in fields(Setup)}
    return _memory(canonical([run.options["model"], options]))


@lru_cache(maxsize=4096)
def _memory(text: str) -> Mapping[str, int]:
    """Count the encoder and the largest of the probes, which take turns."""
    model, options = json.loads(text)
    cfg = Config(**options)
    tokens = CACHED_LOOKUPS * cfg.batch_eval * cfg.L
    code = cfg.D_z
    probes = [
        # In float64, three at a time: Gram matrices by mask, and shrinkages by prefix of the code and penalty.
        {
            "readers of the code": 8 * (3 * max(cfg.masks, len(PENALTIES)) * code**2),
            "the law of the local factors": 12 * cfg.L**2,
        },
        {
            "sequences to look things up in": 4 * tokens * (cfg.D_in + cfg.V_dim),
            "the activations of their encoding": tokens * _per_token(canonical(model), cfg.D_in, code),
        },
        {
            "the head's weights and optimizer state": TRAINED * 2 * cfg.retr_hid * (code + cfg.V_dim),
            "the head's order of rows": 4 * cfg.head_steps * cfg.batch_train,
        },
        {"the batch of a step": 4 * 2 * cfg.batch_train * cfg.L * cfg.D_in},
    ]
    if cfg.jac_points and not is_reference(model["name"]):
        probes += [{"Jacobians": (4 + 8) * cfg.jac_points * code * cfg.L * cfg.D_in}]
    return _encoder(model, cfg) | max(probes, key=lambda need: sum(need.values()))


def _encoder(model: Mapping[str, object], cfg: Config) -> dict[str, int]:
    """Count the encoder's weights, and those of the copy that is trained."""
    if (module := _built(model, cfg.L, cfg.D_in, cfg.D_z)) is None:
        return {}
    return {"the encoder's weights, gradients and optimizer state": (TRAINED + 4 * COPIES) * stored(module)}


@lru_cache(maxsize=4096)
def _per_token(model: str, d_in: int, d_code: int) -> int:
    """Bytes per token in the encoder's largest operation: all sequences are one batch."""
    if (module := _built(json.loads(model), SHORT, d_in, d_code)) is None:
        return 0
    few, many = (passing(module, torch.empty(batch, SHORT, d_in, device="meta")) for batch in (64, 128))
    return (many - few) // (64 * SHORT)  # weights, which are in both, do not grow with the batch


def _built(model: Mapping[str, object], *sizes: int) -> nn.Module | None:
    """The encoder for its shapes alone; None for a reference, and for a user's own class: building it may do
    anything."""
    if is_reference(str(model["name"])) or isinstance(encoder := encoders.load(model), ModuleEncoder):
        return None
    return built_for_shapes(lambda: encoder.build(*sizes))
