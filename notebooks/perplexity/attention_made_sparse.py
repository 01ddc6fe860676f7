# %% [markdown]
# # Attention made sparse
#
# What does a language model lose when a query may attend to few keys? Dense attention, two methods that evict and a
# window, on text that comes with Python. `smollm2-135m` needs no hub; `assay data pull smollm2-135m` fetches it once.

# %%
import assay
from assay.attention import attention

# %% tags=["parameters"]
MODEL = "smollm2-135m"
BUDGETS = [10, 20, 40]
CONTEXT = 80
DOCUMENTS = 20

# %% [markdown]
# The methods that there are, each with one line.

# %%
for entry in attention.entries():
    print(f"{entry.name:<16} {entry.summary}")

# %%
found = assay.run(
    "perplexity",
    model=MODEL,
    datasets=["pydoc"],
    methods=["dense", "h2o", "streaming_llm:num_sink_tokens=4", "window"],
    budgets=BUDGETS,
    sparsity_levels=[],
    context_lengths=[CONTEXT],
    max_samples=[str(DOCUMENTS)],
    max_windows=1,
    executor="serial",
)
found

# %%
found.finding

# %%
found.table()

# %%
found.rows()[0]
