"""A question is a task of the study icl with a model and a recipe around it; a tier has several, for one device."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

SOLVED = 0.99
"""A run stops where its validation is this good: more training would add nothing to a share."""
SQUARES = 16
"""Parameters of a layer, in squares of its width: attention (4) beside a swiglu of four times the width (12). Every
mixer of the field is smaller alone, so all are met by the width of the state mixer."""


@dataclass(frozen=True)
class Question:
    """One line of the card."""

    name: str
    does: str
    """What a model does that reaches the goal: `recalls 16 pairs`; without a goal what is measured: `bits per byte`."""
    task: str
    metric: tuple[str, ...] = ("accuracy",)
    """Where the score stands in a run's metrics."""
    watched: str = "accuracy"
    """The number of a validation by which a rate is chosen."""
    lower: bool = False
    """Whether a smaller score is better. Otherwise it is a share, and a run that diverged scores 0."""
    unit: str = "share of right answers"
    model: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 1500
    batch: int = 8
    """Sequences per step."""
    eval_size: int = 400
    every: int = 100
    """Steps from one validation to the next."""
    curriculum: float = 0.0
    """Accuracy that opens the next larger size of a mixture; 0: all from the first step."""
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2)
    weight_decay: float = 0.1
    goal: float | None = 0.9
    """From here on the question is answered, and longer training would say nothing new; None: it is a matter of more
    or less, and no verdict is given but the order."""
    lost: float = 0.0
    """The score of a run that diverged: of knowing nothing."""
    resolution: float = 0.025
    """No two scores are told apart more finely: the standard error of a share of one half in 400 sequences."""
    margin: float = 0.2
    """How far a score may lie from a shipped one on another machine and count as the same."""

    def options(self, mixer: str, *, rate: float, seed: int, steps: int) -> dict[str, Any]:
        """Return the options of `assay icl` for one run."""
        model = {**self.model, "seq_mixer": mixer}
        if self.layer_params:
            from assay.card.matching import matched

            model["state_mixer"] = matched(self.task, model, self.layer_params)
        return {
            "task": self.task,
            "model": model,
            "train": {
                "max_steps": steps,
                "micro_batch_size": self.batch,
                "validate_every": self.every,
                "curriculum": self.curriculum,
                "stop_at": 0.0 if self.lower else SOLVED,
            },
            "optimizer": {"lr": rate, "weight_decay": self.weight_decay},
            "eval_size": self.eval_size,
            "seeds": [seed],
        }

    @property
    def layer_params(self) -> int:
        """Parameters of each layer, which the width of the state mixer meets; 0: there is none, and nothing is met."""
        return 0 if self.model.get("state_mixer", "none") == "none" else SQUARES * self.model["model_dim"] ** 2

    @property
    def setting(self) -> str:
        """The model and its training, for a sentence: `1 layer, d=32, 1,500 steps`."""
        layers = self.model.get("num_layers", 2)
        return f"{layers} layer{'s'[: layers > 1]}, d={self.model.get('model_dim', 128)}, {self.steps:,} steps"

    @cached_property
    def work(self) -> int:
        """How much a training step computes, to say which run takes longer: tokens times layers times width."""
        from assay.tasks import tasks

        tokens = self.batch * tasks.parse(self.task).shape().length
        return int(tokens * self.model.get("num_layers", 2) * self.model.get("model_dim", 128))

    def loss(self, value: float) -> float:
        """Return a score as something to be small, whatever its direction."""
        return value if self.lower else -value


@dataclass(frozen=True)
class Tier:
    """A battery for one kind of machine."""

    name: str
    says: str
    """What its differences are good for."""
    seeds: tuple[int, ...]
    questions: tuple[Question, ...]
    device: Literal["cpu", "cuda"] = "cpu"
    """Where its records were made, and where it runs unless another is asked for."""
    backend: Literal["torch", "triton"] = "torch"
    """What computes recurrent mixers on that device; on another it is torch."""
    per_gpu: int = 1
    """Processes that share a GPU: small questions wait for kernels to start, and leave room for the language model."""
    more_seeds: Mapping[str, int] = field(default_factory=dict)
    """Mixers that are scored with more seeds than others, as `--seeds` asks for, and with how many."""
    text: str = ""
    """The text of the user's that `language` is asked of, as `--text` names it; empty: the tier's own."""

    def seeds_of(self, mixer: str) -> tuple[int, ...]:
        """Return the seeds with which a mixer is scored."""
        return tuple(range(self.more_seeds[mixer])) if mixer in self.more_seeds else self.seeds

    def question(self, name: str) -> Question:
        return next(question for question in self.questions if question.name == name)
