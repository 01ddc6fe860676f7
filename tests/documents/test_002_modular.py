"""What document 002 (modular addition) writes, as it writes it."""

import pickle
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from assay.originals import HOMES
from assay.studies.modular import compression, files
from assay.studies.modular.bilinear_bank import BilinearBank, Recipe, fresh_models

ROOT = Path(__file__).parents[2]
P, WIDTHS = 8, [1, 2, 3, 4, 5, 6, 7, 8]
LOADERS = {
    "tn_similarity": compression.load_or_compute_tn_similarity,
    "act_similarity": compression.load_or_compute_act_similarity,
    "js_divergence": compression.load_or_compute_js_divergence,
}


def pickled(path: Path, widths: list[int], seed: int = 0) -> Path:
    """A pickle as the original writes one, with its models in this order."""
    rng = torch.Generator().manual_seed(seed)
    states = {
        d: {
            "bi_linear.weight": torch.randn(2 * d, 2 * P, generator=rng),
            "projection.weight": torch.randn(P, d, generator=rng),
        }
        for d in sorted(widths)
    }
    models = {d: states[d] for d in widths}
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps({"P": P, "val_accs": dict.fromkeys(models, 0.5), "models": models}))
    return path


@pytest.mark.parametrize("name", LOADERS)
def test_3_matrices_are_by_width_however_the_pickle_is_ordered(name: str, tmp_path: Path) -> None:
    up, down = pickled(tmp_path / "up" / "s.pkl", WIDTHS), pickled(tmp_path / "down" / "s.pkl", WIDTHS[::-1])
    models, accuracies, _ = compression.load_sweep_results(down)
    assert list(models) == list(accuracies) == WIDTHS
    found = LOADERS[name](down)
    assert np.array_equal(found, LOADERS[name](up)) and not np.allclose(found, found[::-1, ::-1])
    assert (up.parent / f"{name}.npy").read_bytes() == (down.parent / f"{name}.npy").read_bytes()


def test_3_the_hash_of_a_sweep_does_not_depend_on_its_order(tmp_path: Path) -> None:
    sweep = files.load(pickled(tmp_path / "s.pkl", WIDTHS))
    assert sweep.only(WIDTHS[::-1]).sha256 == sweep.sha256 != sweep.only(WIDTHS[1:]).sha256


def test_3_several_seeds_are_by_width_and_seed(tmp_path: Path) -> None:
    state = files.load(pickled(tmp_path / "s.pkl", [2])).models[2]
    keys: list[files.Key] = [(2, 10), (2, 9), (2, 0)]
    states = {key: {name: weight.clone() for name, weight in state.items()} for key in keys}
    mixed = files.SweepResults(P, states, dict.fromkeys(keys, 0.5))
    files.save_sweep_results(mixed, tmp_path / "s.safetensors")
    assert list(files.load(tmp_path / "s.safetensors").models) == [(2, 0), (2, 9), (2, 10)]


@pytest.fixture
def original(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A sweep of the original with its three matrices beside it, which nothing here computes."""
    sweep = pickled(tmp_path / "sweep_results_0401.pkl", WIDTHS)
    matrices = {name: np.full((len(WIDTHS),) * 2, 0.25 * place, np.float32) for place, name in enumerate(LOADERS)}
    for name, matrix in matrices.items():
        np.save(tmp_path / f"{name}.npy", matrix)
    return sweep, matrices


@pytest.mark.parametrize("name", LOADERS)
def test_4_a_matrix_of_the_original_is_loaded_with_one_warning(
    name: str, original: tuple[Path, dict[str, np.ndarray]]
) -> None:
    sweep, matrices = original
    before = {path: path.read_bytes() for path in sweep.parent.iterdir()}
    with pytest.warns(UserWarning, match=rf"{name}\.npy") as warned:
        found = LOADERS[name](sweep)
    assert len(warned) == 1
    assert np.array_equal(found, matrices[name]) and found.dtype == np.float64
    assert {path: path.read_bytes() for path in sweep.parent.iterdir()} == before


ELSE = {
    "of another shape": lambda path: np.save(path, np.ones((3, 3))),
    "of whole numbers": lambda path: np.save(path, np.ones((8, 8), int)),
    "no array": lambda path: path.write_text("my notes"),
}


@pytest.mark.parametrize("what", ELSE)
def test_4_what_assay_did_not_write_is_never_written_over(what: str, tmp_path: Path) -> None:
    sweep, cache = pickled(tmp_path / "s.pkl", WIDTHS), tmp_path / "tn_similarity.npy"
    ELSE[what](cache)
    before = cache.read_bytes()
    with pytest.warns(UserWarning, match="stays"):
        found = compression.load_or_compute_tn_similarity(sweep)
    assert np.array_equal(found, compression.load_or_compute_tn_similarity(sweep, tmp_path / "elsewhere.npy"))
    assert cache.read_bytes() == before and not cache.with_name("tn_similarity.npy.json").exists()


def test_4_force_computes_and_leaves_the_file_of_the_original(original: tuple[Path, dict[str, np.ndarray]]) -> None:
    sweep, matrices = original
    with pytest.warns(UserWarning, match="stays"):
        found = compression.load_or_compute_tn_similarity(sweep, force_recompute=True)
    assert np.diag(found) == pytest.approx(1)
    assert np.array_equal(np.load(sweep.parent / "tn_similarity.npy"), matrices["tn_similarity"])


def test_4_an_array_put_in_place_of_ours_stays_and_is_not_used(tmp_path: Path) -> None:
    sweep, cache = pickled(tmp_path / "s.pkl", WIDTHS), tmp_path / "tn_similarity.npy"
    first = compression.load_or_compute_tn_similarity(sweep)
    np.save(cache, first * 2)
    with pytest.warns(UserWarning, match="stays"):
        assert np.array_equal(compression.load_or_compute_tn_similarity(sweep), first)
    assert np.array_equal(np.load(cache), first * 2)


def test_4_our_own_stale_matrix_is_replaced_without_a_word(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    first = compression.load_or_compute_tn_similarity(pickled(tmp_path / "s.pkl", WIDTHS))
    second = compression.load_or_compute_tn_similarity(pickled(tmp_path / "s.pkl", WIDTHS, seed=1))
    assert not np.array_equal(first, second) and np.array_equal(np.load(tmp_path / "tn_similarity.npy"), second)
    assert not recwarn


SCRIPT = """
import assay.originals
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt

from modular_addition.compression import run_sweep, save_sweep_results
results = run_sweep(P=8, dimensions=[1, 2, 4, 8], epochs=2, batch=8)
save_sweep_results(results, "comp_diagrams/my_sweep.pkl")
sweep_path = "comp_diagrams/my_sweep.pkl"

from modular_addition.compression import (
    load_or_compute_tn_similarity,
    load_or_compute_act_similarity,
    load_or_compute_js_divergence
)
from modular_addition.core import compare_metrics, cosine_similarity_to_metric

tn_sim = load_or_compute_tn_similarity(sweep_path)
act_sim = load_or_compute_act_similarity(sweep_path)
js_div = load_or_compute_js_divergence(sweep_path)
D_tn = cosine_similarity_to_metric(tn_sim)
D_act = cosine_similarity_to_metric(act_sim)
results = compare_metrics(D_tn, D_act, name1="TN", name2="Activation")

from modular_addition.compression import (
    load_sweep_results,
    compute_interaction_matrices,
    compute_eigen_data,
    compute_frequency_heatmap
)

models_state, val_acc, P = load_sweep_results(sweep_path)
int_mats = compute_interaction_matrices(models_state, P)
eigen_data = compute_eigen_data(int_mats, P)
heatmap = compute_frequency_heatmap(eigen_data, d_hidden=8, P=8)
plt.imshow(heatmap, aspect='auto')
plt.xlabel('Frequency')
plt.ylabel('Remainder')
plt.savefig("heatmap.png")

import modular_addition
print(results["name1"], modular_addition.core.Model is __import__("assay").studies.modular.core.Model)
"""


def test_10_a_script_of_the_document_runs_below_one_line(tmp_path: Path) -> None:
    (tmp_path / "comp_diagrams").mkdir()
    ran = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "TN True\n"), ran.stderr
    assert (tmp_path / "heatmap.png").stat().st_size > 1000


def test_10_matplotlib_is_installed_with_assay() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert any(name.startswith("matplotlib") for name in project["dependencies"])


def test_10_the_line_of_scripts_stands_beside_the_names_of_the_document() -> None:
    page = (ROOT / "docs" / "coming-from.md").read_text()
    for there, here in HOMES.items():
        assert f"From `{here}`, or from `{there}` below the line `import assay.originals`" in page or "." not in there


def test_11_run_sweep_says_how_far_it_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.report.progress.FIRST", 0.0)
    few = {"P": 7, "dimensions": [2, 4], "epochs": 3, "batch": 9}
    loud = compression.run_sweep(**few)
    out, err = capsys.readouterr()
    assert not out and "val_acc" in err.splitlines()[0] and "%" in err.splitlines()[0] and "[2/2" in err
    assert compression.run_sweep(**few, show_progress=False).sha256 == loud.sha256
    assert capsys.readouterr() == ("", "")


def test_11_an_epoch_of_the_documents_sweep_is_cheap() -> None:
    """500 epochs, the most there are, in a minute of CPU: an epoch has 48 steps of seven models."""
    widths = [1, 2, 4, 8, 16, 32, 64]
    before, seconds = torch.get_num_threads(), []
    torch.set_num_threads(1)
    try:
        epochs = BilinearBank(fresh_models(64, widths, [0] * 7), [0] * 7, Recipe()).run()
        for _ in range(12):
            start = time.process_time()
            next(epochs)
            seconds.append(time.process_time() - start)
    finally:
        torch.set_num_threads(before)
    assert 500 * min(seconds) < 60


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_11_run_sweep_as_written_ends_within_two_minutes_of_cpu() -> None:
    start = time.process_time()
    results = compression.run_sweep(P=64, dimensions=[1, 2, 4, 8, 16, 32, 64])
    assert time.process_time() - start < 120
    assert list(results.models) == [1, 2, 4, 8, 16, 32, 64] and results.val_accs[64] == 1
