"""The study's presets. docs/icl.md defines `capacity`."""

from collections.abc import Mapping
from typing import Any

from assay.models.sequence import SequenceModel
from assay.train.recipe import Optimizer, Train

MIXERS = (
    "attention:num_heads=2",
    "sliding_window:num_heads=2:window=64",
    "linear_attention:num_heads=1",
    "based:num_heads=4:feature_dim=8",
    "gated_linear_attn:num_heads=1:expand_k=1",
    "retention:num_heads=4:expand_k=2",
    "delta_net:num_heads=1",
    "gated_delta_net:num_heads=1:expand_v=1",
    "mamba2:d_state=64",
    "hybrid:pattern=(sliding_window:num_heads=2:window=16)+(delta_net:num_heads=1:conv=0)",
    "gru",
)
"""Every mixer with a state of its own."""
LESS_STATE = (
    "sliding_window:num_heads=2:window=16",
    "linear_attention:num_heads=4",
    "delta_net:num_heads=4",
    "mamba2:d_state=16",
)
"""Some of them with a smaller state, by their own option."""

SECONDS: Mapping[str, Any] = {
    "task": "mqar:vocab_size=64:input_seq_len=16:num_kv_pairs=4:power_a=1",
    "model": SequenceModel(model_dim=32, positions="auto", tied=True),
    "train": Train(max_steps=200, micro_batch_size=64, validate_every=50),
    "optimizer": Optimizer(lr=1e-2),
    "eval_size": 1000,
    "seeds": (0, 1, 2),
}
"""Four pairs, each queried: a model trains in seconds."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "demo": {
        **SECONDS,
        "grid": {
            "model.seq_mixer": [
                "attention",
                "attention:conv=4",
                "delta_net:num_heads=1",
            ]
        },
    },
    "quick": SECONDS,
    "small": {
        "task": "mqar:vocab_size=256:input_seq_len=32:num_kv_pairs=4",
        "train": Train(micro_batch_size=128),
        "optimizer": Optimizer(lr=2e-3),
    },
    "spec": {},
    "capacity": {
        "task": "mqar:vocab_size=8192:input_seq_len=1024:num_kv_pairs=256:min_kv_pairs=4:power_a=1:filler=no_keys",
        "model": SequenceModel(model_dim=64, positions="auto", tied=True, layer_params=50_000),
        "train": Train(max_steps=3150, micro_batch_size=4, validate_every=1050),
        "eval_size": 1400,
        "grid": {
            "model.seq_mixer": [
                *(f"{word}:conv=4" for word in (*MIXERS, *LESS_STATE)),
                *(f"{word}:conv=0" for word in MIXERS),
            ],
            "optimizer.lr": ["3e-3", "1e-2", "3e-2"],
            "seed": ["0", "1", "2"],
        },
    },
}
