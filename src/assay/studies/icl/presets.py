"""The study's presets. docs/capacity.md defines `capacity`, `capacity-no-conv` and `zoology`."""

from collections.abc import Mapping
from typing import Any

from assay.models.sequence import SequenceModel
from assay.train.recipe import Optimizer, Train

MIXERS = (
    "attention:num_heads=1",
    "sliding_window:num_heads=1:window=64",
    "linear_attention:num_heads=1",
    "based:num_heads=1:feature_dim=8",
    "gated_linear_attn:num_heads=2",
    "retention:num_heads=2",
    "delta_net:num_heads=1",
    "gated_delta_net:num_heads=1:expand_v=1",
    "mamba2:d_state=64",
    "gru",
)
"""Mixers with a state of their own; attention is the ceiling."""
NEWER = ("kda:num_heads=1", "rwkv7:num_heads=1", "mlstm:num_heads=2", "mesa:num_heads=1")
"""More of them, of `capacity` alone: rwkv7's token shift is a convolution without `conv` too."""
LESS_STATE = (
    "sliding_window:num_heads=1:window=16",
    "linear_attention:num_heads=4",
    "based:num_heads=1:feature_dim=16",
    "delta_net:num_heads=4",
    "mamba2:d_state=16",
)
"""Some of them with another state, by their own option."""
WIDTHS = ["32", "64", "128"]

SECONDS: Mapping[str, Any] = {
    "task": "mqar:vocab_size=64:input_seq_len=16:num_kv_pairs=4:power_a=1",
    "model": SequenceModel(model_dim=32, positions="auto", tied=True),
    "train": Train(max_steps=200, micro_batch_size=64, validate_every=50),
    "optimizer": Optimizer(lr=1e-2),
    "eval_size": 1000,
    "seeds": (0, 1, 2),
}
"""Four pairs, each queried: a model trains in seconds."""


ALONE: Mapping[str, Any] = {"state_mixer": "none", "num_layers": 1, "positions": "auto", "tied": True}
"""Mixers without state mixers, for presets that are about what a mixer recalls."""
CAPACITY: Mapping[str, Any] = {
    "task": (
        "mqar:vocab_size=8192:input_seq_len=1024:num_kv_pairs=256:min_kv_pairs=4:power_a=1:filler=no_keys:values=hidden"
    ),
    # 16 sequences of 1024 tokens, or as many tokens of shorter ones.
    "train": Train(max_steps=6000, micro_batch_size=16, validate_every=100, curriculum=0.9, stop_at=0.99),
    "eval_size": 1400,
}
"""How many pairs a mixer holds: small sizes first, and nothing but recall that answers."""
RATES = ["1e-3", "3e-3", "1e-2", "3e-2"]
SEEDS = ["0", "1", "2", "3", "4"]

IN_ZOOLOGY: Mapping[str, Any] = {**ALONE, "positions": "none"}
BEHIND = "hybrid:pattern=base_conv+({})"
"""A mixer behind a gated convolution of three tokens, each with a norm and a residual: zoology's two layers."""
ZOOLOGY = {
    "delta_net": BEHIND.format("delta_net:num_heads=2"),
    "gated_delta_net": BEHIND.format("gated_delta_net:num_heads=2:expand_v=2:use_gate=False"),
    "based": BEHIND.format("based:num_heads=1:feature_dim=8"),
    "gated_linear_attn": BEHIND.format("gated_linear_attn:num_heads=2:expand_k=0.5:expand_v=1:conv=0"),
    "mamba2": "hybrid:pattern=(mamba2:d_state=16)+(mamba2:d_state=16)",
    "sliding_window": BEHIND.format("sliding_window:num_heads=1:window=32"),
    "attention": BEHIND.format("attention:num_heads=1"),
    "hyena": "hybrid:pattern=hyena+hyena",
}
"""Its models, by the mixer that is measured; Mamba-2 and Hyena are two layers of themselves there."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "demo": {
        **SECONDS,
        # Of 64 tokens delta_net learns with one or two seeds of three in this time, at any rate from 3e-3 to 2e-2.
        "task": "mqar:vocab_size=32:input_seq_len=16:num_kv_pairs=4:power_a=1",
        "grid": {"model.seq_mixer": ["attention", "attention:conv=4", "delta_net:num_heads=1"]},
    },
    "quick": {
        **SECONDS,
        # With conv=4 attention, delta_net, mamba2 and retention learned this with three seeds of three.
        "task": "mqar:vocab_size=32:input_seq_len=16:num_kv_pairs=4:power_a=1:values=hidden",
        "train": Train(max_steps=400, micro_batch_size=64, validate_every=50),
    },
    "small": {
        "task": "mqar:vocab_size=256:input_seq_len=32:num_kv_pairs=4",
        "train": Train(micro_batch_size=128),
        "optimizer": Optimizer(lr=2e-3),
    },
    "spec": {},
    "capacity": {
        **CAPACITY,
        "model": ALONE,
        "grid": {
            "model.seq_mixer": [f"{word}:conv=4" for word in (*MIXERS, *NEWER, *LESS_STATE)],
            "model.model_dim": WIDTHS,
            "optimizer.lr": RATES,
            "seed": SEEDS,
        },
    },
    "capacity-no-conv": {
        **CAPACITY,
        "model": {**ALONE, "num_layers": 2},
        "grid": {
            "model.seq_mixer": [f"{word}:conv=0" for word in MIXERS],
            "model.model_dim": WIDTHS,
            "optimizer.lr": ["3e-4", *RATES],
            "seed": SEEDS,
        },
    },
    "zoology": {
        "task": "mqar:vocab_size=8192:input_seq_len=1024:num_kv_pairs=256:power_a=0.01:values=hidden:cells=zoology",
        "model": IN_ZOOLOGY,
        # 32 epochs of 180,000 sequences; validation after every hundred rounds of nine steps.
        "train": Train(max_steps=22500, micro_batch_size=256, validate_every=900),
        "eval_size": 7000,
        "grid": {
            "model.seq_mixer": list(ZOOLOGY.values()),
            "model.model_dim": ["64", "128"],
            "optimizer.lr": RATES,
            "seed": SEEDS,
        },
    },
}
