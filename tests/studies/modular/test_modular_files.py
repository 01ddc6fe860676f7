"""Sweeps and matrices as files: what is read is what was written, a pickle runs nothing, and no cache is stale."""

import io
import json
import os
import pickle
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import assay
from assay.core.errors import UserError
from assay.studies.modular import compression, files, matrices
from assay.studies.modular.files import SweepResults

P = 5


def sweep(*keys: files.Key, seed: int = 0) -> SweepResults:
    rng = torch.Generator().manual_seed(seed)
    models = {}
    for key in keys or (1, 3, 2):
        d = key[0] if isinstance(key, tuple) else key
        models[key] = {
            "bi_linear.weight": torch.randn(2 * d, 2 * P, generator=rng),
            "projection.weight": torch.randn(P, d, generator=rng),
        }
    return SweepResults(P, models, dict.fromkeys(models, 0.25), {"epochs": 3})


def same(one: SweepResults, other: SweepResults) -> bool:
    return (one.P, one.val_accs, one.sha256) == (other.P, other.val_accs, other.sha256)


@pytest.mark.parametrize("name", ["s.pkl", "s.safetensors"])
def test_a_sweep_comes_back_whole(name: str, tmp_path: Path) -> None:
    files.save_sweep_results(sweep(), tmp_path / name)
    assert same(files.load(tmp_path / name), sweep())


def test_replicates_are_kept_by_width_and_seed(tmp_path: Path) -> None:
    several = sweep((2, 0), (2, 1), (3, 0))
    files.save_sweep_results(several, tmp_path / "s.safetensors")
    found = files.load(tmp_path / "s.safetensors")
    assert same(found, several) and list(found.of_seed(0).models) == [2, 3]
    assert found.labels[1] == {"d_hidden": 2, "seed": 1}
    with pytest.raises(UserError, match="Its seeds: 0, 1"):
        found.of_seed(7)
    with pytest.raises(UserError, match="one model per width"):
        files.save_sweep_results(several, tmp_path / "s.pkl")


def test_the_pickle_has_the_layout_of_the_spec(tmp_path: Path) -> None:
    files.save_sweep_results(sweep(), tmp_path / "s.pkl")
    plain = pickle.loads((tmp_path / "s.pkl").read_bytes())
    assert list(plain) == ["P", "val_accs", "models"] and isinstance(plain["models"][3], OrderedDict)
    assert {k: tuple(v.shape) for k, v in plain["models"][3].items()} == {
        "bi_linear.weight": (6, 10),
        "projection.weight": (5, 3),
    }


def test_pickles_of_others_are_read(tmp_path: Path) -> None:
    """numpy numbers, parameters, the other key of the reader, no P: 64 then."""
    state = torch.nn.Linear(1, 64, bias=False).state_dict()
    models = {1: OrderedDict([("bi_linear.weight", torch.ones(2, 128)), ("projection.weight", state["weight"])])}
    (tmp_path / "s.pkl").write_bytes(pickle.dumps({"models_state": models, "val_accs": {1: np.float64(0.5)}}))
    found = files.load(tmp_path / "s.pkl")
    assert (
        found.P == 64
        and found.val_accs == {1: 0.5}
        and torch.equal(found.models[1]["projection.weight"], state["weight"])
    )


class Shell:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


class Nested:
    """A storage whose own pickle is the malicious one."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        import io

        buffer = io.BytesIO()
        torch.save(Shell(self.mark), buffer, _use_new_zipfile_serialization=False)
        return torch.storage._load_from_bytes, (buffer.getvalue(),)


@pytest.mark.parametrize("kind", [Shell, Nested])
def test_a_malicious_pickle_is_refused_and_runs_nothing(kind: Any, tmp_path: Path) -> None:
    mark = tmp_path / "owned"
    bad = {"P": P, "val_accs": {}, "models": {1: kind(mark)}}
    (tmp_path / "bad.pkl").write_bytes(pickle.dumps(bad))
    with pytest.raises(UserError, match=r"system|bad\.pkl"):
        compression.load_sweep_results(tmp_path / "bad.pkl")
    assert not mark.exists()
    pickle.loads((tmp_path / "bad.pkl").read_bytes())
    assert mark.exists(), "a reader that trusts the file is owned by it: the test can fail"


@pytest.mark.parametrize("what", ["builtins.eval", "torch.load", "builtins.getattr", "functools.partial"])
def test_nothing_beyond_tensors_and_containers_is_found(what: str, tmp_path: Path) -> None:
    module, _, name = what.rpartition(".")
    (tmp_path / "bad.pkl").write_bytes(f"c{module}\n{name}\n.".encode())
    with pytest.raises(UserError, match=f"asks for {what}"):
        files.load(tmp_path / "bad.pkl")


@pytest.mark.parametrize("data", [b"", b"no pickle", pickle.dumps([1, 2]), pickle.dumps({"models": {1: {}}})])
def test_what_is_no_sweep_is_refused_in_words(data: bytes, tmp_path: Path) -> None:
    for name in ("x.pkl", "x.safetensors"):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match="x"):
            files.load(tmp_path / name)
    with pytest.raises(UserError, match=r"--save .*missing"):
        files.load(tmp_path / "missing.pkl")


def test_tensors_under_anothers_manifest_are_refused(tmp_path: Path) -> None:
    files.save_sweep_results(sweep(seed=0), tmp_path / "s.safetensors")
    manifest = (tmp_path / "s.json").read_bytes()
    files.save_sweep_results(sweep(seed=1), tmp_path / "s.safetensors")
    (tmp_path / "s.json").write_bytes(manifest)
    with pytest.raises(UserError, match="not the manifest"):
        files.load(tmp_path / "s.safetensors")


LOADERS = {
    "tn_similarity": compression.load_or_compute_tn_similarity,
    "act_similarity": compression.load_or_compute_act_similarity,
    "js_divergence": compression.load_or_compute_js_divergence,
}


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of matrices that were computed."""
    made = list[str]()
    for name in ("symmetric_similarity_matrix", "activation_similarity_matrix", "law_divergences"):
        plain = getattr(matrices, name)
        monkeypatch.setattr(matrices, name, lambda *a, plain=plain, name=name, **k: made.append(name) or plain(*a, **k))
    return made


@pytest.mark.parametrize("name", LOADERS)
def test_a_matrix_is_computed_once_and_never_stale(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, load = counted(monkeypatch), LOADERS[name]
    path = tmp_path / "s.pkl"
    files.save_sweep_results(sweep(), path)
    first = load(path)
    assert (
        first.shape == (3, 3) and first.dtype == np.float64 and np.array_equal(np.load(tmp_path / f"{name}.npy"), first)
    )
    assert np.array_equal(load(path), first) and len(made) == 1, "the second call reads"
    sidecar = json.loads((tmp_path / f"{name}.npy.json").read_text())
    assert sidecar["rows"] == [{"d_hidden": d, "seed": None} for d in (1, 2, 3)]
    changed = sweep()
    changed.models[2]["projection.weight"][0, 0] += 1e-3
    files.save_sweep_results(changed, path)
    assert not np.array_equal(load(path), first) and len(made) == 2, "a changed weight"
    files.save_sweep_results(sweep(1, 2), tmp_path / "other.pkl")
    assert load(tmp_path / "other.pkl").shape == (2, 2), "another sweep in the same folder"
    files.save_sweep_results(sweep(), path)
    assert np.array_equal(load(path), first)
    load(path, force_recompute=True)
    assert len(made) == 5


def test_other_options_are_another_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted(monkeypatch)
    files.save_sweep_results(sweep(), tmp_path / "s.pkl")
    four, two = (compression.load_or_compute_js_divergence(tmp_path / "s.pkl", n_evecs=n) for n in (4, 2))
    assert not np.allclose(four, two) and len(made) == 2
    compression.load_or_compute_js_divergence(tmp_path / "s.pkl", cache_path=tmp_path / "elsewhere.npy")
    assert (tmp_path / "elsewhere.npy.json").exists()


def test_a_damaged_cache_is_computed_again(tmp_path: Path) -> None:
    files.save_sweep_results(sweep(), tmp_path / "s.pkl")
    first = compression.load_or_compute_tn_similarity(tmp_path / "s.pkl")
    cache = tmp_path / "tn_similarity.npy"
    cache.write_bytes(cache.read_bytes()[:-8])
    assert np.array_equal(compression.load_or_compute_tn_similarity(tmp_path / "s.pkl"), first)
    assert np.array_equal(np.load(cache), first)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.pkl", "tn_similarity.npy", "tn_similarity.npy.json"]


def test_a_cache_never_takes_the_manifest_of_a_sweep(tmp_path: Path) -> None:
    files.save_sweep_results(sweep(), tmp_path / "s.safetensors")
    manifest = (tmp_path / "s.json").read_bytes()
    compression.load_or_compute_tn_similarity(tmp_path / "s.safetensors", cache_path=tmp_path / "s.npy")
    assert (tmp_path / "s.json").read_bytes() == manifest and same(files.load(tmp_path / "s.safetensors"), sweep())


def test_a_matrix_that_cannot_be_kept_is_given_all_the_same(tmp_path: Path) -> None:
    files.save_sweep_results(sweep(), tmp_path / "s.pkl")
    first = compression.load_or_compute_tn_similarity(tmp_path / "s.pkl")
    (tmp_path / "file").write_text("no folder")
    with pytest.warns(UserWarning, match="cannot keep .*tn.npy"):
        found = compression.load_or_compute_tn_similarity(tmp_path / "s.pkl", cache_path=tmp_path / "file" / "tn.npy")
    assert np.array_equal(found, first)


def test_another_way_of_computing_is_another_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted(monkeypatch)
    files.save_sweep_results(sweep(), tmp_path / "s.pkl")
    for version in (1, 1, 2):
        monkeypatch.setattr("assay.studies.modular.matrices.VERSION", version)
        compression.load_or_compute_tn_similarity(tmp_path / "s.pkl")
    assert len(made) == 2


def test_a_sweep_of_one_seed_knows_which(tmp_path: Path) -> None:
    models = sweep(1, 2).models
    one = files.collect(P, [(d, 3, 0.5, models[d]) for d in (2, 1)], {})
    files.save_sweep_results(one, tmp_path / "s.safetensors")
    found = files.load(tmp_path / "s.safetensors")
    assert list(found.models) == [1, 2] and found.seed == 3 and same(found, one)
    assert found.labels == one.labels == [{"d_hidden": 1, "seed": 3}, {"d_hidden": 2, "seed": 3}]
    assert list(found.of_seed(3).models) == [1, 2]
    with pytest.raises(UserError, match="Its seeds: 3"):
        found.of_seed(0)
    manifest = json.loads((tmp_path / "s.json").read_text())
    assert [entry["seed"] for entry in manifest["models"]] == [3, 3] and manifest["assay"] == assay.__version__


def test_a_manifest_given_as_the_sweep_is_told_from_it(tmp_path: Path) -> None:
    files.save_sweep_results(sweep(), tmp_path / "s.safetensors")
    with pytest.raises(UserError, match=r"s\.json is the manifest of a sweep: give .*s\.safetensors"):
        files.load(tmp_path / "s.json")
    (tmp_path / "s.json").unlink()
    with pytest.raises(UserError, match=r"cannot read .*s\.json, the manifest"):
        files.load(tmp_path / "s.safetensors")


def torch_saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


STATE = sweep(1).models[1]
FOREIGN = {
    "a file of torch": torch_saved({"models": {}}),
    "a cut pickle": pickle.dumps({"P": P, "models": {1: dict(STATE)}})[:-40],
    "a storage that is none": b"ctorch.storage\n_load_from_bytes\n(C\x04nonetR.",
    "no models": pickle.dumps({"P": P, "val_accs": {}, "models": {}}),
    "mixed keys": pickle.dumps({"P": P, "models": {1: dict(STATE), (1, 0): dict(STATE)}}),
    "a width that is text": pickle.dumps({"P": P, "models": {"1": dict(STATE)}}),
    "a model that is a number": pickle.dumps({"P": P, "models": {1: 7}}),
    "P that is text": pickle.dumps({"P": "five", "models": {1: dict(STATE)}}),
    "P of nothing": pickle.dumps({"P": 0, "models": {1: dict(STATE)}}),
    "accuracies that are a list": pickle.dumps({"P": P, "val_accs": [1.0], "models": {1: dict(STATE)}}),
    "an accuracy that is text": pickle.dumps({"P": P, "val_accs": {1: "good"}, "models": {1: dict(STATE)}}),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_damaged_or_foreign_pickle_is_one_line(what: str, tmp_path: Path) -> None:
    (tmp_path / "x.pkl").write_bytes(FOREIGN[what])
    with pytest.raises(UserError) as refused:
        files.load(tmp_path / "x.pkl")
    assert "x.pkl" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("change", [{"P": "5"}, {"models": []}, {"models": 3}, {"models": [{"d_hidden": 1}]}], ids=str)
def test_a_damaged_manifest_is_one_line(change: dict[str, Any], tmp_path: Path) -> None:
    files.save_sweep_results(sweep(), tmp_path / "s.safetensors")
    manifest = json.loads((tmp_path / "s.json").read_text())
    (tmp_path / "s.json").write_text(json.dumps(manifest | change))
    with pytest.raises(UserError, match=r"s\.safetensors"):
        files.load(tmp_path / "s.safetensors")


def test_the_module_is_imported_alone() -> None:
    """In a process of its own: what other tests have imported hides a circle."""
    subprocess.run([sys.executable, "-c", "import assay.studies.modular.files"], check=True)
