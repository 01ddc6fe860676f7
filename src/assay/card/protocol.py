"""The protocol says which questions a mixer is asked, at which sizes, for how long. docs/card.md has the sources.

A question is a task of the study icl with a model and a recipe around it; only the mixer and the rate are left open. A
change of any number here makes other runs, so it raises VERSION: cards of two versions are not compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, Literal

VERSION = 4
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
SOLVED = 0.99
"""A run stops where its validation is this good: more training would add nothing to a share."""
SQUARES = 16
"""Parameters of a layer, in squares of its width: attention (4) beside a swiglu of four times the width (12). Every
mixer of the field is smaller alone, so all are met by the width of the state mixer."""
TOLERANCE = 0.02
"""Layers are matched where their parameters are within this share of the target."""


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
    more_seeds: Mapping[str, int] = field(default_factory=dict)
    """Mixers that are scored with more seeds than others, as `--seeds` asks for, and with how many."""

    def seeds_of(self, mixer: str) -> tuple[int, ...]:
        """Return the seeds with which a mixer is scored."""
        return tuple(range(self.more_seeds[mixer])) if mixer in self.more_seeds else self.seeds

    def question(self, name: str) -> Question:
        return next(question for question in self.questions if question.name == name)


SMALL = {"model_dim": 32, "num_layers": 1, "state_mixer": "none", "positions": "auto", "tied": True}
"""One layer of memory, so that what is recalled went through the mixer's state."""
TWO = {"model_dim": 32, "num_layers": 2, "state_mixer": "swiglu", "positions": "auto"}

WIDE = {**TWO, "model_dim": 128}
"""MAD's width and depth: two layers of 128, each with a swiglu."""
FINE = (3e-4, 1e-3, 3e-3, 1e-2)
"""Rates of wider models: MAD's 1e-4 to 1e-3 and zoology's 1e-3 to 3e-2, where the two meet."""
LANGUAGE = Question(
    name="language",
    does="bits per byte of speeches it was not trained on",
    task="text:corpus=speeches:input_seq_len=256",
    metric=("bits_per_byte",),
    watched="bits_per_byte",
    lower=True,
    goal=None,
    lost=8.0,
    resolution=0.01,
    margin=0.1,
)
"""A byte-level language model; the tiers say how large, and for how long."""
RECALL = Question(
    name="recall",
    does="recalls 16 pairs",
    task="mqar:vocab_size=256:input_seq_len=64:num_kv_pairs=16:min_kv_pairs=4:power_a=1:filler=no_keys:values=hidden",
    metric=("by_size", "16"),
    model=SMALL,
    curriculum=0.9,
)
WIDE_RECALL = replace(
    RECALL,
    does="recalls 64 pairs",
    task="mqar:vocab_size=8192:input_seq_len=256:num_kv_pairs=64:min_kv_pairs=4:power_a=1:filler=no_keys:values=hidden",
    metric=("by_size", "64"),
    model={**SMALL, "model_dim": 64},
    steps=1000,
    batch=32,
    every=50,
    eval_size=1000,
)

SMOKE = Tier(
    name="smoke",
    says="smoke: large differences only",
    seeds=(0, 1),
    questions=(
        RECALL,
        replace(
            RECALL,
            name="update",
            does="keeps the newest of 2 values of 4 keys",
            task=(
                "mqar:vocab_size=256:input_seq_len=24:num_kv_pairs=4:min_kv_pairs=2:power_a=1:filler=no_keys"
                ":values=hidden:updates=1"
            ),
            metric=("by_size", "4"),
            batch=16,
        ),
        Question(
            name="parity",
            does="tracks parity over 64 tokens",
            task="state_tracking:group=parity:length=24",
            metric=("by_length", "64"),
            model={**SMALL, "positions": "none", "tied": False},
            batch=16,
            weight_decay=0.0,
        ),
        Question(
            name="copy",
            does="copies 4 tokens in order from among blanks",
            task="selective_copying:vocab_size=16:input_seq_len=32:num_tokens_to_copy=4",
            model=TWO,
            batch=16,
        ),
        replace(LANGUAGE, model={**TWO, "model_dim": 64}, steps=1200, every=400, eval_size=200, batch=2),
    ),
)
STANDARD = Tier(
    name="standard",
    says="standard",
    seeds=(0, 1, 2, 3, 4),
    device="cuda",
    backend="triton",
    questions=(
        WIDE_RECALL,
        replace(
            WIDE_RECALL,
            name="update",
            does="keeps the newest of 2 values of 16 keys",
            task=(
                "mqar:vocab_size=8192:input_seq_len=96:num_kv_pairs=16:min_kv_pairs=4:power_a=1:filler=no_keys"
                ":values=hidden:updates=1"
            ),
            metric=("by_size", "16"),
            batch=64,
        ),
        Question(
            name="fuzzy",
            does="recalls values of 1 to 3 tokens by keys of 1 to 3",
            task="fuzzy_recall:vocab_size=16:input_seq_len=128:k_motif_size=3:v_motif_size=3",
            model=WIDE,
            steps=800,
            batch=32,
            eval_size=1000,
            rates=FINE,
        ),
        Question(
            name="compression",
            does="holds 31 tokens in one vector",
            task="compression:vocab_size=16:input_seq_len=32",
            model=WIDE,
            steps=800,
            batch=64,
            eval_size=1000,
            rates=FINE,
        ),
        Question(
            name="parity",
            does="tracks parity over 256 tokens",
            task="state_tracking:group=parity:length=40",
            metric=("by_length", "256"),
            model={**SMALL, "model_dim": 64, "positions": "none", "tied": False},
            steps=1200,
            batch=64,
            eval_size=1000,
            weight_decay=0.0,
        ),
        replace(LANGUAGE, model={**WIDE, "model_dim": 256}, steps=600, every=200, eval_size=400, batch=32, rates=FINE),
    ),
)
DEFAULT = SMOKE.name
"""The tier of a card that asks for none."""
TIERS: Mapping[str, Tier] = {tier.name: tier for tier in (SMOKE, STANDARD)}
ANCHORS = ("attention:conv=4", "delta_net")
"""Trained again on the user's machine: shipped records are compared only where these come out the same."""
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "attention": ("attention:conv=4", "attention", "sliding_window:conv=4"),
    "linear": (
        "linear_attention:conv=4", "based:conv=4", "retention:conv=4", "gated_linear_attn:conv=4", "mamba2", "mlstm",
    ),
    "delta": (
        "delta_net", "delta_net:beta_max=2", "gated_delta_net", "delta_product", "kda", "rwkv7", "mesa",
    ),
    "other": ("gru", "hyena", "base_conv"),
}  # fmt: skip
"""The mixers whose records ship, by family: each as published, with a convolution of four tokens where it is an option,
so that few differences are about having one."""
FIELD = tuple(chain(*FAMILIES.values()))
