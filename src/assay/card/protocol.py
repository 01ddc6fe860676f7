"""The protocol says which questions a mixer is asked, at which sizes, for how long. docs/card.md has the sources.

A question is a task of the study icl with a model and a recipe around it; only the mixer and the rate are left open. A
change of any number here makes other runs, so it raises VERSION: cards of two versions are not compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION = 1
SCREENING_SEED = 100
"""Rates are chosen with this seed; the scores come from others."""
SCREENING = 3
"""Every rate is tried at a third of the steps first."""
KEPT = 2
"""The best rates of the screening are trained in full before one is chosen."""
SLACK = 0.1
"""A rate works if, at the screening's length, its validation is at most this much below the best rate's. Where all lie
so close, the screening has told nothing, and every rate is trained in full."""
STILL = 0.05
"""Twice the training has changed nothing where no seed gained more than this, and none came this near to the goal."""


@dataclass(frozen=True)
class Question:
    """One line of the card."""

    name: str
    does: str
    """What a model does that reaches the goal: `recalls 16 pairs`."""
    task: str
    metric: tuple[str, ...] = ("accuracy",)
    """Where the score stands in a run's metrics: a share, larger is better."""
    model: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 1500
    batch: int = 8
    """Sequences per step."""
    eval_size: int = 400
    validations: int = 3
    """How often a model is validated on the way."""
    curriculum: float = 0.0
    """Accuracy that opens the next larger size of a mixture; 0: all from the first step."""
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2)
    weight_decay: float = 0.1
    goal: float = 0.9
    """From here on the question is answered, and longer training would say nothing new."""

    def options(self, mixer: str, *, rate: float, seed: int, steps: int) -> dict[str, Any]:
        """Return the options of `assay icl` for one run."""
        return {
            "task": self.task,
            "model": {**self.model, "seq_mixer": mixer},
            "train": {
                "max_steps": steps,
                "micro_batch_size": self.batch,
                "validate_every": max(1, steps // self.validations),
                "curriculum": self.curriculum,
            },
            "optimizer": {"lr": rate, "weight_decay": self.weight_decay},
            "eval_size": self.eval_size,
            "seeds": [seed],
        }

    @property
    def setting(self) -> str:
        """The model and its training, for a sentence: `1 layer, d=32, 1,500 steps`."""
        layers = self.model.get("num_layers", 2)
        return f"{layers} layer{'s'[: layers > 1]}, d={self.model.get('model_dim', 128)}, {self.steps:,} steps"

    @property
    def resolution(self) -> float:
        """The standard error of a score of one half: no two scores are told apart more finely."""
        return 0.5 * float(self.eval_size) ** -0.5


@dataclass(frozen=True)
class Tier:
    """A battery for one kind of machine."""

    name: str
    says: str
    """What its differences are good for."""
    seeds: tuple[int, ...]
    questions: tuple[Question, ...]

    def question(self, name: str) -> Question:
        return next(question for question in self.questions if question.name == name)


SMALL = {"model_dim": 32, "num_layers": 1, "state_mixer": "none", "positions": "auto", "tied": True}
"""One layer of memory, so that what is recalled went through the mixer's state."""
TWO = {"model_dim": 32, "num_layers": 2, "state_mixer": "swiglu", "positions": "auto"}

SMOKE = Tier(
    name="smoke",
    says="smoke: large differences only",
    seeds=(0, 1),
    questions=(
        Question(
            name="recall",
            does="recalls 16 pairs",
            task=(
                "mqar:vocab_size=256:input_seq_len=64:num_kv_pairs=16:min_kv_pairs=4:power_a=1:filler=no_keys"
                ":values=hidden"
            ),
            metric=("by_size", "16"),
            model=SMALL,
            validations=15,
            curriculum=0.9,
        ),
        Question(
            name="parity",
            does="tracks parity at three times the length it was trained at",
            task="state_tracking:group=parity:length=3..40",
            metric=("by_length", "128"),
            model={**SMALL, "positions": "none", "tied": False},
            batch=64,
            weight_decay=0.0,
        ),
        Question(
            name="copy",
            does="copies 8 tokens in order from among blanks",
            task="selective_copying:vocab_size=16:input_seq_len=64:num_tokens_to_copy=8",
            model=TWO,
        ),
    ),
)
TIERS: Mapping[str, Tier] = {"smoke": SMOKE}
ANCHORS = ("attention:conv=4", "delta_net")
"""The field where none is named; both have a convolution, so that no difference is about having one."""
