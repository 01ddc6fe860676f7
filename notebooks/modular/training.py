# %% [markdown]
# # Training a sweep
#
# Models z = W_p [(W_l x) * (W_r x)] of different hidden widths learn (a + b) mod P. All widths and seeds are trained as
# one program; each stops when it answers every validation pair, or when the epochs are over.
# `assay modular sweep --save FILE` does the same from the command line, and goes on from its last
# checkpoint if it was interrupted.

# %%
from pathlib import Path

from assay.metrics.intervals import share, student_t
from assay.report.charts import interval_lines
from assay.studies.modular import constructive_model, load_sweep_results, run_sweep, save_sweep_results
from assay.studies.modular.bilinear import answered

# %% tags=["parameters"]
P = 64
DIMENSIONS = [1, 2, 4, 8, 16, 32, 64]
SEEDS = [0, 1, 2]
EPOCHS = 60
BATCH = 64

# %%
results = run_sweep(P=P, dimensions=DIMENSIONS, seeds=SEEDS, epochs=EPOCHS, batch=BATCH, test_share=0.125)

# %% [markdown]
# Validation accuracy against width, every seed a dot. Training stops where it is 1, so a look at pairs that nothing was
# chosen by (`test_share`) belongs beside it; `assay modular sweep` reports both.

# %%
by_width = {d: [results.val_accs[d, seed] for seed in SEEDS] for d in DIMENSIONS}
chart = interval_lines(
    [{"series": f"P={P}", "d": d, "y": share(values)} for d, values in by_width.items()],
    x="d",
    y="y",
    series="series",
    dots=[{"series": f"P={P}", "d": d, "y": value} for d, values in by_width.items() for value in values],
    x_title="hidden width",
    y_title="validation accuracy",
    log_x=True,
)
chart

# %%
for d, values in by_width.items():
    print(f"d={d:<3} {student_t(values).mean:.3f}")

# %% [markdown]
# Four units are enough for any P, by hand: a wider model that fails has failed to learn, not to fit.

# %%
four = constructive_model(P)
print(f"four units by hand: {answered(four).mean():.3f} of all {P * P} pairs")

# %% [markdown]
# A sweep is saved as safetensors with a JSON manifest, or, one seed of it, in the layout of the original's pickle.

# %%
folder = Path("comp_diagrams")
save_sweep_results(results, folder / "my_sweep.safetensors")
save_sweep_results(results.of_seed(SEEDS[0]), folder / "my_sweep.pkl")
models_state, val_acc, modulus = load_sweep_results(folder / "my_sweep.pkl")
print(f"P={modulus}, widths {list(models_state)}")
