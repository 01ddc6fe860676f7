# %% [markdown]
# # Three views of similarity
#
# How alike are models of different widths: by their weights, by their answers, by the frequencies they use? And how
# much of that is more than what two models of one width have in common anyway? `training` makes the sweep that is read
# here; `assay modular similarity comp_diagrams/my_sweep.safetensors` prints all of it.

# %%
from pathlib import Path

import numpy as np

from assay.report.charts import heatmap, interval_lines
from assay.studies.modular import (
    compare_metrics,
    cosine_similarity_to_metric,
    divergence_to_metric,
    load_or_compute_act_similarity,
    load_or_compute_js_divergence,
    load_or_compute_tn_similarity,
    load_sweep_results,
    print_comparison_results,
)
from assay.studies.modular.measures import by_width
from assay.studies.modular.metrics.permutation import contrast, mantel

sweep_path = Path("comp_diagrams/my_sweep.safetensors")

# %%
models_state, val_acc, P = load_sweep_results(sweep_path)
keys = list(models_state)
tn_sim = load_or_compute_tn_similarity(sweep_path)
act_sim = load_or_compute_act_similarity(sweep_path)
js_div = load_or_compute_js_divergence(sweep_path)

# %% [markdown]
# Each cell is the mean over pairs of different models of two widths: the diagonal is what two seeds have in common.

# %%
maps = [
    heatmap(list(by_width(matrix, keys)), x="d", y="d'", value="value", title=name)
    for name, matrix in (("TN", tn_sim), ("activation", act_sim), ("JS, summed over remainders", js_div))
]
maps[0] | maps[1] | maps[2]

# %% [markdown]
# Is a model more like one of its own width than like others? Models are permuted among widths for the p value.

# %%
rng = np.random.default_rng(0)
widths = [d for d, _ in keys]
for name, matrix in (("TN", tn_sim), ("activation", act_sim), ("JS", js_div)):
    found = contrast(matrix, widths, rng=rng, permutations=199)
    print(f"{name:<12} same width {found.within:.3f}   other widths {found.between:.3f}   p = {found.p:.3f}")

# %% [markdown]
# Do the views agree about who is near whom? Unrelated matrices share k / (N - 1) of their neighbours by chance.

# %%
D_tn, D_act, D_js = (
    cosine_similarity_to_metric(tn_sim),
    cosine_similarity_to_metric(act_sim),
    divergence_to_metric(js_div),
)
print_comparison_results(compare_metrics(D_tn, D_act, name1="TN", name2="Activation"))
print(f"Mantel: {mantel(D_tn, D_act, rng=rng, permutations=199)}")

# %%
ks = range(1, len(keys))
lines = []
for name, one, other in (("TN, activation", D_tn, D_act), ("TN, JS", D_tn, D_js), ("activation, JS", D_act, D_js)):
    overlap = compare_metrics(one, other, k_values=ks)["knn_overlap"]
    lines += [{"series": name, "k": k, "overlap": y} for k, y in zip(ks, overlap, strict=True)]
lines += [{"series": "chance", "k": k, "overlap": k / (len(keys) - 1)} for k in ks]
interval_lines(lines, x="k", y="overlap", series="series")
