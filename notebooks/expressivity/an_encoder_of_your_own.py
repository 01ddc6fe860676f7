# %% [markdown]
# # An encoder of your own
#
# How much of a sequence survives a tight code, and can the encoder look things up by content? An encoder that keeps
# only the largest value of each feature, beside two that come with assay.

# %%
from dataclasses import dataclass

from torch import nn

import assay
from assay.encoders import encoders
from assay.encoders.base import Encoder

# %% tags=["parameters"]
STEPS = 60
SEEDS = [0, 1, 2]


# %%
class Largest(nn.Module):
    def __init__(self, d_in: int, width: int, d_code: int) -> None:
        super().__init__()
        self.lift, self.code = nn.Linear(d_in, width), nn.Linear(width, d_code)

    def forward(self, x):
        return self.code(self.lift(x).relu().amax(dim=1))


@encoders.register("largest")
@dataclass(frozen=True, kw_only=True)
class LargestOfEach(Encoder):
    """The largest value of each feature over time."""

    width: int = 64

    def build(self, length, d_in, d_code):
        return Largest(d_in, self.width, d_code)


# %%
found = assay.run(
    "expressivity",
    models=["SelfAttn", "StaticMLP", "largest", "largest:width=128"],
    seeds=SEEDS,
    batch_eval=512,
    batch_train=64,
    retr_steps=2 * STEPS,
    retr_train_steps=STEPS,
    jac_points=2,
    executor="serial",
)
found

# %% [markdown]
# Every table and chart of the study has a name.

# %%
print(found.tables, found.charts)

# %%
found.plot()

# %%
found.rows()[0]

# %% [markdown]
# An option of your encoder is one of the study's: `largest:width=128` above, and an axis of a grid.

# %%
wider = assay.run(
    "expressivity",
    models=["largest"],
    seeds=SEEDS[:1],
    batch_eval=512,
    batch_train=64,
    retr_steps=2 * STEPS,
    retr_train_steps=0,
    jac_points=0,
    grid={"models.width": [16, 64]},
    executor="serial",
)
wider.table()
