# %% [markdown]
# # Frequencies
#
# A remainder's form B_r is a symmetric matrix; its eigenvectors are waves over a and b. Which frequencies does a model
# use for which remainder? `training` makes the sweep that is read here;
# `assay modular frequencies comp_diagrams/my_sweep.pkl --d_hidden 32` draws it from the command line.

# %%
from pathlib import Path

import numpy as np

from assay.report.charts import heatmap, interval_lines
from assay.studies.modular import (
    compute_eigen_data,
    compute_frequency_heatmap,
    compute_interaction_matrices,
    entropy_effective_rank,
    load_model_for_dim,
    load_sweep_results,
)
from assay.studies.modular.metrics.frequency_law import dominant_frequencies, frequency_law

sweep_path = Path("comp_diagrams/my_sweep.pkl")

# %%
models_state, val_acc, P = load_sweep_results(sweep_path)
int_mats = compute_interaction_matrices(models_state, P)
eigen_data = compute_eigen_data(int_mats, P)
widest = max(models_state)

# %% [markdown]
# p(f | r) as the spec defines it: amplitudes of the first input's half of the four largest eigenvectors.


# %%
def drawn(law: np.ndarray, title: str):
    cells = [{"f": f, "r": r, "p": p} for r, row in enumerate(law) for f, p in enumerate(row)]
    return heatmap(cells, x="f", y="r", value="p", x_title="frequency", y_title="remainder", title=title)


drawn(compute_frequency_heatmap(eigen_data, d_hidden=widest, P=P), f"d={widest}")

# %% [markdown]
# Eigenvalues of equal size come in groups here, and inside a group an eigensolver may turn the vectors as it likes: the
# law above depends on that. Two laws that do not: the power of both halves over all eigenvectors, and the part of the
# form that depends on a + b alone.

# %%
model = load_model_for_dim(widest, models_state, P)
drawn(frequency_law(model, "power"), "power") | drawn(frequency_law(model, "diagonal"), "diagonal")

# %%
for d in models_state:
    laws = {
        kind: frequency_law(load_model_for_dim(d, models_state, P), kind) for kind in ("eigen", "power", "diagonal")
    }
    counts = {kind: dominant_frequencies(law).mean() for kind, law in laws.items()}
    print(f"d={d:<3} val acc {val_acc[d]:.3f}   frequencies: {', '.join(f'{k} {n:.1f}' for k, n in counts.items())}")

# %% [markdown]
# How many eigenvalues count.

# %%
ranks = {d: float(entropy_effective_rank(data["eigenvalues"]).mean()) for d, data in eigen_data.items()}
interval_lines(
    [{"series": "entropy", "d": d, "rank": rank} for d, rank in ranks.items()],
    x="d",
    y="rank",
    series="series",
    x_title="hidden width",
    y_title="effective rank",
    log_x=True,
)
