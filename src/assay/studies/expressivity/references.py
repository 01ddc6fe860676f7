"""Codes that are no encoder's: they know the task, or nothing at all, and go through the same probes.

Two bracket every score: the ideal observer of the noisy input above, noise below. The planted ones, of which it is
known by construction what they hold, ask what a score means (claims.py).
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.core.errors import UserError
from assay.core.plugin import Plugin, Registry
from assay.nn.random import stream
from assay.studies.expressivity.spec.config import Config
from assay.tasks.base import Batch, Task
from assay.tasks.hybrid import Hybrid
from assay.tasks.retrieval import Retrieval

REFERENCES = ("Oracle", "Noise")
planted: Registry["Planted"] = Registry("planted code", "")


class Planted(Plugin):
    """A code of known content; by default it holds nothing."""

    registry: ClassVar = planted

    def code(self, task: Task, batch: Batch, rng: torch.Generator) -> Float[Tensor, "batch units"]:
        return batch.targets[:, :0]


@planted.register("planted_factors")
@dataclass(frozen=True, kw_only=True)
class PlantedFactors(Planted):
    """The first global factors, each in `copies` units, or the number of the one of `bins` equally likely bins that it
    lies in: log2(bins) bits. All other units are silent."""

    factors: int = 4
    copies: int = 1
    bins: int = 0
    numbered: Literal["in_order", "at_random"] = "in_order"

    def code(self, task: Task, batch: Batch, rng: torch.Generator) -> Float[Tensor, "batch units"]:
        held = batch.targets[:, : self.factors if isinstance(task, Hybrid) else 0]
        if self.bins:
            random = torch.randperm(self.bins, generator=rng)
            number = (random if self.numbered == "at_random" else random.sort().values).to(held)
            held = number[(torch.special.ndtr(held) * self.bins).long().clamp(max=self.bins - 1)]
        return held.repeat(1, self.copies)


@planted.register("planted_lookup")
@dataclass(frozen=True, kw_only=True)
class PlantedLookup(Planted):
    """The value of the queried key, exactly, for a share of the keys; nothing for the others."""

    share: float = 1.0

    def code(self, task: Task, batch: Batch, rng: torch.Generator) -> Float[Tensor, "batch units"]:
        if not isinstance(task, Retrieval):
            return super().code(task, batch, rng)
        return batch.targets * (batch.inputs[:, -1:, task.key].argmax(dim=-1) < self.share * task.K_keys)


@planted.register("planted_map")
@dataclass(frozen=True, kw_only=True)
class PlantedMap(Planted):
    """A linear map of the sequence with singular values 1, ratio, ratio^2, ..., whose first directions read all global
    factors, or none of which reads any."""

    ratio: float = 1.0
    factors: bool = False

    def build(self, cfg: Config) -> nn.Module:
        world = cfg.context(0, seed=cfg.seed)
        rows = torch.randn(cfg.D_z, cfg.L, cfg.D_in, generator=stream(cfg.seed, "planted map"))
        rows[..., world.global_feature] = 0
        if self.factors:
            rows[: cfg.r_global] = 0
            mixing = world.weights(torch.device("cpu"))[0]
            rows[: cfg.r_global, :, world.global_feature] = torch.linalg.pinv(mixing).mT[:, None]
        turned = torch.linalg.qr(rows.flatten(1).mT.double())[0]  # its first columns span the first rows
        linear = nn.Linear(cfg.L * cfg.D_in, cfg.D_z, bias=False)
        linear.weight.data = (turned * self.ratio ** torch.arange(cfg.D_z)).mT.float().contiguous()
        return nn.Sequential(nn.Flatten(), linear)


@dataclass(frozen=True)
class Reference:
    name: str
    d_code: int
    seed: int
    planted: Planted = Planted()

    def code(self, task: Task, batch: Batch, part: str) -> Float[Tensor, "batch d_code"]:
        if self.name == "Noise":
            rng = stream(self.seed, "noise code", task.name, part)
            return torch.randn(len(batch.inputs), self.d_code, generator=rng).to(batch.inputs.device)
        if self.name != "Oracle":
            held = self.planted.code(task, batch, stream(self.seed, "planted"))
            if held.shape[1] > self.d_code:
                raise UserError(f"{self.planted.label} needs {held.shape[1]} units: --D_z {self.d_code} is too small.")
            return nn.functional.pad(held, (0, self.d_code - held.shape[1]))
        answer = task.oracle(batch)
        assert answer is not None, "tasks for encoders have an oracle"
        # A random rotation of the answer over all units: any r of them hold all of it, as in the best redundant code.
        spread = torch.randn(answer.shape[1], self.d_code, generator=stream(self.seed, "spread", task.name))
        return answer @ spread.to(answer)


def is_reference(name: str) -> bool:
    return name in REFERENCES or name in planted.names()


def reference(model: dict[str, Any], cfg: Config) -> Reference | nn.Module:
    """The reference of a run's model."""
    if model["name"] in REFERENCES:
        return Reference(model["name"], cfg.D_z, cfg.seed)
    held = planted.load(model)
    return held.build(cfg) if isinstance(held, PlantedMap) else Reference(held.name, cfg.D_z, cfg.seed, held)
