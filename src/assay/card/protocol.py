"""The protocol says which questions a mixer is asked, at which sizes, for how long. docs/card.md has the sources.

Of each question only the mixer and the rate are left open. A change of any number here makes other runs, so it raises
VERSION: cards of two versions are not compared.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from assay.card.question import Question, Tier

VERSION = 5
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
TOLERANCE = 0.02
"""Layers are matched where their parameters are within this share of the target."""

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
    unit="bits per byte",
    goal=None,
    lost=8.0,
    resolution=0.01,
    margin=0.1,
)
"""A byte-level language model; the tiers say how large, and for how long."""
LIBRARY_TEXT = "text:corpus=library:sha256=b8a37901ae6c68d0:input_seq_len={}"
LIBRARY = replace(
    LANGUAGE,
    does="bits per byte of abstracts and Python source it was not trained on",
    task=LIBRARY_TEXT.format(256),
    model={**WIDE, "model_dim": 256, "num_layers": 5},
    steps=1500,
    every=500,
    eval_size=1000,
    batch=64,
    rates=FINE,
)
"""75 MB of text, a third of it read once; two megabytes of speeches would be read several times."""
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
FUZZY = Question(
    name="fuzzy",
    does="recalls values of 1 to 3 tokens by keys of 1 to 3",
    task="fuzzy_recall:vocab_size=16:input_seq_len=128:k_motif_size=3:v_motif_size=3",
    model=WIDE,
    steps=800,
    batch=32,
    eval_size=1000,
    rates=FINE,
)
COMPRESSION = Question(
    name="compression",
    does="holds 31 tokens in one vector",
    task="compression:vocab_size=16:input_seq_len=32",
    model=WIDE,
    steps=800,
    batch=64,
    eval_size=1000,
    rates=FINE,
)

STANDARD = Tier(
    name="standard",
    says="standard",
    seeds=(0, 1, 2, 3, 4),
    device="cuda",
    per_gpu=2,
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
        FUZZY,
        COMPRESSION,
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
        LIBRARY,
    ),
)
MAD = Question(
    name="noisy",
    does="recalls values among noise",
    task="noisy_recall:vocab_size=32:input_seq_len=128:noise_vocab_size=16:frac_noise=0.2",
    model=WIDE,
    steps=4000,
    batch=128,
    every=200,
    eval_size=2000,
    rates=FINE,
)
"""MAD's cells at its width and depth; `full` asks them all, in a fifth of its 20,000 steps of 128 sequences."""
TRACKING = replace(STANDARD.question("parity"), steps=4000, batch=128, every=200, eval_size=2000)
FULL = Tier(
    name="full",
    says="full",
    seeds=STANDARD.seeds,
    device="cuda",
    backend="triton",
    questions=(
        replace(
            WIDE_RECALL,
            does="recalls 256 pairs",
            task=(
                "mqar:vocab_size=8192:input_seq_len=1024:num_kv_pairs=256:min_kv_pairs=4:power_a=1:filler=no_keys"
                ":values=hidden"
            ),
            metric=("by_size", "256"),
            model={**SMALL, "model_dim": 128},
            steps=6000,
            batch=16,
            every=200,
        ),
        replace(
            STANDARD.question("update"),
            does="keeps the newest of 2 values of 64 keys",
            task=(
                "mqar:vocab_size=8192:input_seq_len=384:num_kv_pairs=64:min_kv_pairs=4:power_a=1:filler=no_keys"
                ":values=hidden:updates=1"
            ),
            metric=("by_size", "64"),
            model={**SMALL, "model_dim": 128},
            steps=6000,
            every=200,
        ),
        MAD,
        *(
            replace(MAD, name=name, does=does, task=task)
            for name, does, task in (
                ("fuzzy", FUZZY.does, FUZZY.task),
                (
                    "copy",
                    "copies 16 tokens in order from among blanks",
                    "selective_copying:vocab_size=16:input_seq_len=256:num_tokens_to_copy=16",
                ),
                ("compression", COMPRESSION.does, COMPRESSION.task),
                (
                    "memorization",
                    "knows the values of 127 keys by heart",
                    "memorization:vocab_size=256:input_seq_len=32",
                ),
                (
                    "hops",
                    "follows up to 4 edges of a cycle of 16",
                    "multi_hop_recall:vocab_size=64:num_nodes=16:max_hops=4:num_queries=8",
                ),
            )
        ),
        TRACKING,
        *(
            replace(
                TRACKING,
                name=group,
                does=f"tracks the permutations of {things} over 40 tokens",
                task=f"state_tracking:group={group}:length=40",
                metric=("by_length", "40"),
                model={**TRACKING.model, "model_dim": 128},
            )
            for group, things in (("s3", "three things"), ("s5", "five things"))
        ),
        replace(
            MAD,
            name="regression",
            does="squared error of y = w.x in 20 dimensions, over 40 pairs",
            task="regression:regression_type=linear:input_dim=20:input_seq_len=40",
            metric=("mse",),
            watched="mse",
            lower=True,
            unit="squared error over the variance",
            goal=None,
            lost=1.0,
            resolution=0.005,
            margin=0.05,
        ),
        replace(
            MAD,
            name="stream",
            does="nats per symbol of a Markov chain that it sees in context alone",
            task="markov:num_symbols=8:input_seq_len=256",
            metric=("loss",),
            watched="loss",
            lower=True,
            unit="nats per symbol",
            goal=None,
            lost=2.08,
            resolution=0.005,
            margin=0.02,
        ),
        replace(
            LIBRARY,
            task=LIBRARY_TEXT.format(512),
            model={**LIBRARY.model, "model_dim": 512},
            steps=4000,
            rates=(3e-4, 1e-3, 3e-3),
        ),
    ),
)
"""Every question, at the sizes that were published; of the mixers beside it none ships yet."""
DEFAULT = SMOKE.name
"""The tier of a card that asks for none."""
TIERS: Mapping[str, Tier] = {tier.name: tier for tier in (SMOKE, STANDARD, FULL)}
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
