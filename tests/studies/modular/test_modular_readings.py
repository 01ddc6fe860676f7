"""`assay modular similarity` and `frequencies`: from a saved sweep or a results folder, and what they say is so."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.core.errors import UserError
from assay.metrics.intervals import Interval
from assay.studies.modular import compression, files, measures, similarity
from assay.studies.modular.bilinear import constructive_model
from assay.studies.modular.frequencies import nearest_widths
from assay.studies.modular.similarity import floors, scrambled, untrained

Cli = Callable[..., tuple[int, str, str]]
TRAIN = ["--P", "7", "--batch", "9", "--epochs", "3", "--device", "cpu", "--executor", "serial", "--quiet"]
pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("readings") / "s.safetensors"
    found = compression.run_sweep(P=7, dimensions=[1, 2, 4, 6, 9], seeds=[0, 1], epochs=3, batch=9)
    compression.save_sweep_results(found, path)
    return path


def test_a_saved_sweep_is_compared_by_every_measure(cli_json: Callable[..., Any], sweep: Path, tmp_path: Path) -> None:
    found = cli_json("modular", "similarity", sweep, "--permutations", "20", "--out", tmp_path)
    rows = {row["measure"]: row for row in found["rows"]}
    assert len(rows) == 11 and all(row["models"] == 10 for row in rows.values())
    for name in ("TN", "activation"):
        matrix = np.load(sweep.parent / f"{name[:3].lower().strip()}_similarity.npy")
        upper = matrix[np.triu_indices(10, 1)]
        assert rows[name]["all pairs"]["mean"] == pytest.approx(upper.mean())
        same = [matrix[i, i + 1] for i in range(0, 10, 2)]
        assert rows[name]["same width"] == pytest.approx(np.mean(same))
        assert rows[name]["p (width)"] == 1, "the least p of 20 permutations, 1/21, times 44 of the table"
    assert all({"scrambled", "same band", "beyond (band)", "beyond (width)"} <= set(row) for row in rows.values())
    assert rows["TN, best image"]["untrained"] > rows["TN, reachable, centred"]["untrained"], "a maximum flatters"
    assert {row["one"] + row["other"] for row in found["tables"]["agreement"]} == {
        "TNactivation", "TNJS", "activationJS",
    }  # fmt: skip
    charts = {path.stem for path in (tmp_path / "modular.similarity").glob("*.png")}
    assert charts == {"tn_by_width", "activation_by_width", "js_by_width", "neighbours"}


def test_a_results_folder_is_read_as_well(cli: Cli, tmp_path: Path) -> None:
    words = ["--dimensions", "1", "2", "3", "--seeds", "0", "--out", tmp_path]
    assert cli("modular", "sweep", *TRAIN, *words)[0] == 0
    code, out, err = cli("modular", "similarity", tmp_path, "--permutations", "5", "--out", tmp_path)
    assert code == 0 and "TN, best image" in out and "files in" in err
    assert cli("modular", "frequencies", tmp_path, "--out", tmp_path, "--quiet")[0] == 0
    assert cli("modular", "sweep", *TRAIN, *words, "--lr", "1e-2")[0] == 0
    code, _, err = cli("modular", "similarity", tmp_path, "--out", tmp_path)
    assert code == 2 and "2 settings" in err and "--save" in err


def test_frequencies_of_a_width_are_drawn(cli_json: Callable[..., Any], sweep: Path, tmp_path: Path) -> None:
    found = cli_json("modular", "frequencies", sweep, "--d_hidden", "4", "9", "--seed", "1", "--out", tmp_path)
    assert [(row["d_hidden"], row["seed"]) for row in found["rows"]] == [(4, 1), (9, 1)]
    spec = json.loads((tmp_path / "modular.frequencies" / "frequencies_d9.vl.json").read_text())
    (cells,) = spec["datasets"].values()
    models, _, P = compression.load_sweep_results(sweep, seed=1)
    law = compression.compute_frequency_heatmap(
        compression.compute_eigen_data(compression.compute_interaction_matrices(models, P), P), 9, P
    )
    assert len(cells) == 7 * 4
    assert all(cell["v"] == pytest.approx(law[cell["y"], cell["x"]], abs=1e-3) for cell in cells)


def test_frequencies_of_one_seed_say_which_and_that_there_are_others(cli: Cli, sweep: Path, tmp_path: Path) -> None:
    words = ["modular", "frequencies", sweep, "--d_hidden", "4", "--out", tmp_path]
    assert "Of the sweep's 2 seeds these are models of seed 0; --seed chooses another." in " ".join(
        cli(*words)[1].split()
    )
    assert "Of the sweep's 2 seeds these are models of seed 1; --seed chooses another." in " ".join(
        cli(*words, "--seed", "1")[1].split()
    )
    one = tmp_path / "one.safetensors"
    compression.save_sweep_results(compression.run_sweep(P=7, dimensions=[4], seeds=[3], epochs=1, batch=9), one)
    assert "--seed chooses another" not in cli("modular", "frequencies", one, "--out", tmp_path)[1]
    assert "p(f | r), d=4, seed 3" in (tmp_path / "modular.frequencies" / "frequencies_d4.vl.json").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["similarity", "missing.pkl"],
        ["similarity", "{sweep}", "--permutations", "0"],
        ["frequencies", "{sweep}", "--d_hidden", "5"],
        ["frequencies", "{sweep}", "--seed", "7"],
        ["frequencies", "{sweep}", "--n_evecs", "0"],
        ["similarity", "{sweep}", "--most", "2"],
        ["similarity", "{sweep}", "--most", "-1"],
        ["similarity", "{sweep}", "--most", "5"],
        ["similarity"],
        ["similarity", "{empty}"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_read_is_refused(words: list[str], cli: Cli, sweep: Path, tmp_path: Path) -> None:
    filled = [word.format(sweep=sweep, empty=tmp_path) for word in words]
    code, out, err = cli("modular", *filled, "--out", tmp_path / "out")
    assert code == 2 and out == "" and err
    assert not (tmp_path / "out").exists()


def test_a_width_asked_for_twice_is_drawn_once(cli_json: Callable[..., Any], sweep: Path, tmp_path: Path) -> None:
    found = cli_json("modular", "frequencies", sweep, "--d_hidden", "4", "4", "--out", tmp_path)
    assert [row["d_hidden"] for row in found["rows"]] == [4]


def test_too_few_widths_are_counted_as_widths(cli: Cli, tmp_path: Path) -> None:
    two = compression.run_sweep(P=7, dimensions=[2, 4], seeds=[0, 1, 2], epochs=1, batch=9)
    compression.save_sweep_results(two, tmp_path / "two.safetensors")
    code, _, err = cli("modular", "similarity", tmp_path / "two.safetensors", "--out", tmp_path / "out")
    assert code == 2 and "models of 2 widths" in err


def test_a_sweep_of_one_seed_is_drawn_by_its_seed(cli: Cli, tmp_path: Path) -> None:
    save = tmp_path / "s.safetensors"
    words = ["--dimensions", "2", "--seeds", "3", "--save", save, "--out", tmp_path]
    assert cli("modular", "sweep", *TRAIN, *words)[0] == 0
    assert cli("modular", "frequencies", save, "--seed", "3", "--out", tmp_path)[0] == 0
    code, _, err = cli("modular", "frequencies", save, "--seed", "0", "--out", tmp_path)
    assert code == 2 and "Its seeds: 3" in err


def test_a_reading_is_no_run() -> None:
    import assay

    with pytest.raises(UserError, match="assay modular similarity"):
        assay.run("modular.similarity")


def test_the_best_image_finds_one_algorithm_at_other_frequencies(image: Callable[..., Any]) -> None:
    """The four units at frequencies 1, 2 and 3: unrelated by their weights, one under the symmetries of addition."""
    four = constructive_model(7)
    models = [image(four, k) for k in (1, 2, 3)]
    matrices = {name: m for one in measures.measures(4) for name, m in zip(one.names, one.compute(models), strict=True)}
    off = ~np.eye(3, dtype=bool)
    np.testing.assert_allclose(matrices["TN, best image"], 1, atol=1e-6)
    assert abs(matrices["TN, reachable, centred"][off]).max() < 1e-6
    np.testing.assert_allclose(matrices["JS of diagonal (bits)"][off], 1, atol=1e-6)


def test_a_large_sweep_is_thinned_by_whole_widths() -> None:
    keys = [(d, s) for d in range(1, 21) for s in (0, 1)]
    whole = files.SweepResults(7, {key: {} for key in keys}, dict.fromkeys(keys, 0.0))
    kept = list(measures.thinned(whole, 10).models)
    assert len(kept) == 10 and {d for d, _ in kept} >= {1, 20} and all((d, 1 - s) in kept for d, s in kept)
    with pytest.raises(UserError, match="there are 2 models of each: 6"):
        measures.thinned(whole, 5)
    assert measures.thinned(whole, 0) is whole and measures.thinned(whole, 40) is whole


def test_bands_have_as_many_widths_each() -> None:
    assert measures.bands([1, 1, 2, 3, 4, 8], 2) == [0, 0, 0, 0, 1, 1]
    assert measures.bands([5, 6], 4) == [0, 2]


def test_a_map_by_width_never_counts_a_model_with_itself() -> None:
    matrix = np.array([[1.0, 0.2, 0.3], [0.2, 1.0, 0.5], [0.3, 0.5, 1.0]])
    cells = {(c["d"], c["d'"]): c["value"] for c in measures.by_width(matrix, [(2, 0), (2, 1), (4, 0)])}
    assert cells == {(2, 2): 0.2, (2, 4): 0.4, (4, 2): 0.4, (4, 4): 1.0}


def test_untrained_models_have_the_widths_of_the_sweep(sweep: Path) -> None:
    found = files.load(sweep)
    assert [m.config.width for m in untrained(found)] == [d for d, _ in found.models]


def test_the_widths_that_are_drawn_are_quarters_of_P() -> None:
    assert nearest_widths(64, range(1, 65)) == [64, 48, 32, 16] and nearest_widths(7, [1, 2]) == [2, 2, 2, 2]


def test_one_frequency_each_is_alike_by_the_maximum_alone() -> None:
    """Units of single frequencies with random phases share nothing, and yet some image of one fits another far better
    than fresh weights ever do: that much a learnt spectrum gives away for nothing."""
    four = {"bi_linear.weight": constructive_model(7).bi_linear.weight.detach()}
    four["projection.weight"] = constructive_model(7).w_p.detach()
    found = files.SweepResults(
        7, {(4, seed): four for seed in range(6)}, dict.fromkeys([(4, s) for s in range(6)], 1.0)
    )
    (best,) = [measure for measure in measures.measures(4) if measure.names == ("TN, best image",)]
    (floor,) = floors(best, found)
    assert floor["scrambled"] > floor["untrained"] + 0.1 and floor["scrambled"] < 0.99
    assert len(scrambled(found)) == 6


def test_floors_are_of_the_pairs_they_stand_beside() -> None:
    """Of six models two are perfect: the floors of their one pair are those of these two models alone."""
    swept = compression.run_sweep(P=7, dimensions=[2, 4, 9], seeds=[0, 1], epochs=1, batch=9)
    accuracies = dict(zip(swept.models, (1.0, 0.5, 0.96, 0.5, 0.5, 1.0), strict=True))
    swept = replace(swept, val_accs=accuracies)
    tn = measures.measures(4)[0]
    (floor,) = floors(tn, swept)
    for name, models in (("untrained", untrained(swept)), ("scrambled", scrambled(swept))):
        (matrix,) = tn.compute(models)
        assert floor[f"{name}, both perfect"] == pytest.approx(matrix[0, 5])
        assert floor[f"{name}, both >= 0.95"] == pytest.approx(np.mean([matrix[0, 5], matrix[0, 2], matrix[2, 5]]))
        assert floor[name] == pytest.approx(matrix[np.triu_indices(6, 1)].mean())


def test_a_whole_sweep_has_the_floors_of_a_whole_sweep(
    cli: Cli, sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow measures compare some of the models, the others all: each floor is of as many."""
    seen = dict[str, int]()
    monkeypatch.setattr(
        similarity,
        "floors",
        lambda measure, chosen: seen.update({measure.names[0]: len(chosen.models)}) or floors(measure, chosen),
    )
    words = ["--most", "6", "--permutations", "2", "--out", tmp_path, "--quiet"]
    assert cli("modular", "similarity", sweep, *words)[0] == 0
    assert seen["TN"] == seen["JS (bits)"] == 10 and seen["TN, best image"] == 6


def test_the_interval_over_pairs_is_that_of_leaving_models_out() -> None:
    matrix = np.random.default_rng(0).random((8, 8))
    matrix = (matrix + matrix.T) / 2
    found = measures.mean_over_pairs(matrix)

    def mean(kept: list[int]) -> float:
        return float(np.mean([matrix[i, j] for i in kept for j in kept if i < j]))

    without = [mean([i for i in range(8) if i != left]) for left in range(8)]
    error = np.sqrt(7 / 8 * sum((value - np.mean(without)) ** 2 for value in without))
    assert found.mean == pytest.approx(mean(list(range(8)))) and found.n == 28
    assert found.high == pytest.approx(found.mean + 2.3646 * error, abs=1e-4) and found.low is not None
    assert measures.mean_over_pairs(matrix[:2, :2]) == Interval(float(matrix[0, 1]), None, None, 1)
    some = np.zeros_like(matrix, dtype=bool)
    some[:5, :5] = True
    group, alone = measures.mean_over(matrix, some), measures.mean_over_pairs(matrix[:5, :5])
    assert group is not None and (group.mean, group.low) == pytest.approx((alone.mean, alone.low))
    assert measures.mean_over(matrix, np.zeros_like(some)) is None
