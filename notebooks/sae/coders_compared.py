# %% [markdown]
# # Sparse coders compared
#
# Can a sparse code be learned without a decoder, and is it as good? Three coders at several levels of sparsity on the
# embedded digits: a coder is a curve, and curves are compared where as many units are active.

# %%
import assay
from assay.vectors import vectors

# %% tags=["parameters"]
EPOCHS = 10
SEEDS = [0, 1]

# %%
data = vectors.parse("digits").load()
print(f"{len(data.train)} rows of {data.d_in} numbers to train on, {len(data.test)} to report on")

# %%
found = assay.run(
    "sae",
    coders=["topk:k=4", "topk:k=16", "lse_infomax", "lse_infomax:lambda_lse=10.0", "pca", "random_relu"],
    data="digits",
    d_code=32,
    epochs=EPOCHS,
    seeds=SEEDS,
    executor="serial",
)
found

# %%
found.plot()

# %%
found.charts

# %% [markdown]
# A record keeps the learning curve and the weights of its coder.

# %%
record = found[0]
print(record.run.label, record.artifacts, sorted(record.metrics)[:8])

# %%
found.to_pandas().groupby("coder").mean(numeric_only=True).iloc[:, :6]
