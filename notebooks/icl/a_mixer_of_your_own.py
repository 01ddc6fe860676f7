# %% [markdown]
# # A mixer of your own
#
# Can the mean of the past recall what stood beside a key? A class in a notebook is a plug-in as one in a file is:
# `executor="serial"` runs it in this process, and its text is part of every run's id.

# %%
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

import assay
from assay.contracts.base import check
from assay.mixers import mixers
from assay.mixers.base import Mixer, MixerModule

# %% tags=["parameters"]
STEPS = 150
SEEDS = [0, 1, 2]


# %%
class RunningMean(MixerModule):
    """The parallel form, and the same token by token with a state."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.value, self.out = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        count = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        return self.out(self.value(x).cumsum(dim=1) / count)

    def init_state(self, batch):
        zeros = self.value.weight.new_zeros
        return zeros(batch, self.value.out_features), zeros(batch, 1)

    def step(self, x, state):
        total, count = state[0] + self.value(x), state[1] + 1
        return self.out(total / count), (total, count)


@mixers.register("running_mean")
@dataclass(frozen=True, kw_only=True)
class Mean(Mixer):
    """The mean of all values so far."""

    ordered: ClassVar[bool] = False

    def core(self, d_model, max_len):
        return RunningMean(d_model)

    def core_state(self, d_model, length):
        return d_model + 1


# %% [markdown]
# Does it keep a mixer's promises: no look at the future, the same in both forms, as large a state as it says?

# %%
for verdict in check("mixers", Mean()):
    print("pass" if verdict.kept else "FAIL", verdict.promise)

# %% [markdown]
# Recall of 2 pairs among 16 tokens, in a model that is trained in seconds. Findings need more; see `docs/icl.md`.

# %%
found = assay.run(
    "icl",
    task="mqar:vocab_size=32:input_seq_len=16:num_kv_pairs=2:power_a=1",
    model={"model_dim": 32},
    train={"max_steps": STEPS, "micro_batch_size": 64, "validate_every": 50},
    optimizer={"lr": 1e-2},
    eval_size=512,
    grid={"model.seq_mixer": ["attention:num_heads=2", "gated_linear_attn:num_heads=2", "running_mean"], "seed": SEEDS},
    executor="serial",
)
found

# %%
found.plot()

# %% [markdown]
# The same numbers to compute with, and everything that was stored.

# %%
found.rows()

# %%
found.to_pandas().head()
