"""Sizes and laws of the expressivity study, under the spec's names."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from assay.core.errors import UserError
from assay.tasks.hybrid import Hybrid
from assay.tasks.retrieval import Retrieval
from assay.train.numerics import numerics_for

CACHED_LOOKUPS = 8
"""Sequences, in units of batch_eval, whose frozen codes are computed once for the lookup head to train on."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The options that every encoder of one table shares."""

    L: int = 32
    """Sequence length; more than twice K_keys."""
    K_keys: int = 8
    """Keys of the lookup probe."""
    V_dim: int = 4
    """Width of the values to look up."""
    F_feat: int = 12
    """Feature channels: half carry the global factors, half the local ones."""
    D_z: int = 32
    """Width of the code."""
    r_global: int = 4
    """Global factors, which a code should keep."""
    r_local: int = 8
    """Local factors, which a code may drop."""
    ar_coeff: float = 0.8
    """Autoregression coefficient of the local factors: larger is slower."""
    noise: float = 0.03
    """Standard deviation of the input noise."""
    batch_eval: int = 2048
    """Sequences to fit a probe on, and as many others to score it on."""
    batch_train: int = 256
    """Sequences per training step."""
    train_steps: int = 0
    """Train a copy of the encoder with a linear decoder for so many steps, and add AfterTrainR2."""
    lr: float = 3e-3
    """Learning rate of the probes that train the encoder."""
    retr_hid: int = 64
    """Half the hidden width of the lookup head."""
    retr_steps: int = 1200
    """Steps of the lookup head on the frozen encoder."""
    retr_train_steps: int = 300
    """End-to-end steps on a copy of the encoder, for RetrieveR2_trained; 0 leaves it out."""
    keys: Literal["unique", "ambiguous"] = "unique"
    """Lookup with one value per key, or the earlier form in which keys repeat and no encoder can pass K_keys/(L-1)."""
    masks: int = 16
    """Random subsets of the code per kept share."""
    jac_points: int = 64
    """Inputs at which the Jacobian is taken; 0 leaves it out."""
    pool: Literal["last", "mean"] = "last"
    """How a code per token becomes one code, for encoders that return (B, L, D_z); the row says so."""
    fast: bool = False
    """No Jacobians, and 200 and 100 steps for the two lookup probes."""

    def __post_init__(self) -> None:
        for name in ("D_z", "batch_train", "masks", "retr_hid"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)}: it must be at least 1.")
        for name in ("train_steps", "retr_steps", "retr_train_steps", "jac_points"):
            if getattr(self, name) < 0:
                raise UserError(f"{name}={getattr(self, name)}: it cannot be negative.")
        if self.batch_eval < 64:
            raise UserError(f"batch_eval={self.batch_eval}: a held-out probe needs at least 64 sequences.")
        if not 0 < self.lr < math.inf:
            raise UserError(f"lr={self.lr}: it must be a number above 0.")
        most = (CACHED_LOOKUPS - 1) * self.batch_eval  # an eighth calibrates the head
        if self.batch_train > most:
            raise UserError(f"batch_train={self.batch_train}: at most {most} with batch_eval={self.batch_eval}.")
        self.context(0, seed=0), self.lookup()  # the tasks check their sizes

    def context(self, context: Literal[0, 1, 2], *, seed: int) -> Hybrid:
        """The task of one context; the seed draws its mixing weights."""
        laws = {name: getattr(self, name) for name in ("r_global", "r_local", "ar_coeff", "noise")}
        return Hybrid(context=context, weights_seed=seed, **laws, **self._blocks())

    def lookup(self) -> Retrieval:
        return Retrieval(keys=self.keys, **self._blocks())

    def _blocks(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("L", "K_keys", "V_dim", "F_feat")}

    @property
    def D_in(self) -> int:
        return self.K_keys + self.V_dim + self.F_feat

    @property
    def head_steps(self) -> int:
        return min(self.retr_steps, 200) if self.fast else self.retr_steps

    @property
    def end_to_end_steps(self) -> int:
        return min(self.retr_train_steps, 100) if self.fast else self.retr_train_steps


@dataclass(frozen=True, kw_only=True)
class Config(Setup):
    """The argument of an encoder's constructor and of `ExpressivityTester`: a setup with its seed."""

    seed: int = 42
    cpu_only: bool = False
    device: str = "auto"

    @property
    def torch_device(self) -> str:
        """The device to compute on; sequences are always drawn on the CPU."""
        return "cpu" if self.cpu_only else numerics_for(self.device).device
