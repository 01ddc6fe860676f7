"""Weights are stored whole, whatever their size, and come back bit by bit."""

from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from assay.core.errors import UserError
from assay.core.run import Record
from assay.core.store import Store
from assay.core.study import Outcome
from assay.nn.preparation import Preparation
from assay.nn.random import stream
from assay.sparse_coders.base import CoderModule
from assay.studies.sae import load_saelens, save_saelens
from assay.studies.sae.sae import Sae, parsed
from assay.studies.sae.weights import WEIGHTS, encoded, keep, saved_module, weights
from assay.train.artifacts import AT_ONCE, file_parts

TRAINED = ("lse_infomax", "relu_l1", "topk:k=8", "batch_topk:k=8", "jump_relu", "gated", "matryoshka:k=8")


@torch.no_grad()
def drawn(word: str, d_in: int, d_code: int) -> CoderModule:
    module = parsed([word])[0].build(1, d_in, d_code)  # type: ignore[attr-defined]
    rng = stream(0, "weights", word)
    for parameter in module.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=rng))
    return module


def stored(word: str, module: CoderModule, folder: Path, preparation: Preparation | None = None) -> Record:
    """A record as a run would leave it."""
    run = Sae(coders=parsed([word]), seeds=(0,)).plan()[0]
    data = encoded(module, torch.zeros(module.d_code), preparation)
    return Store(folder).commit(Outcome(run, {}, artifacts={WEIGHTS: data}))


@pytest.mark.parametrize("word", TRAINED)
def test_a_stored_coder_comes_back_bit_by_bit_with_its_preparation(word: str, tmp_path: Path) -> None:
    module = drawn(word, 6, 9)
    back = saved_module(stored(word, module, tmp_path, Preparation(torch.arange(6.0), 0.1)))
    assert all(torch.equal(value, back.state_dict()[name]) for name, value in module.state_dict().items())
    assert back.preparation is not None and back.preparation.scale == 0.1
    assert torch.equal(back.preparation.mean, torch.arange(6.0))


def test_a_coder_of_4608_units_round_trips_exactly_through_the_store_and_a_saelens_folder(tmp_path: Path) -> None:
    module = drawn("topk:k=8", 576, 4608)
    record = stored("topk:k=8", module, tmp_path)
    back = saved_module(record)
    assert record.files[WEIGHTS]["bytes"] < 4.02 * 2 * 576 * 4608, "directions are rows of W_dec, and stored once"
    found = load_saelens(save_saelens(back, tmp_path / "folder"))
    for name in ("W_enc", "b_enc", "W_dec", "b_dec"):
        assert torch.equal(found.get_parameter(name), module.get_parameter(name))
    assert torch.equal(weights(record)["directions"], module.directions()[0])


def test_65536_units_are_written_in_parts_of_megabytes() -> None:
    matrix = torch.zeros(1).expand(2304, 65_536)  # takes no memory
    lengths = [len(part) for part in file_parts({"W_enc": matrix.T, "W_dec": matrix.T})]
    assert sum(lengths[1:]) == 4 * 2 * 65_536 * 2304 and max(lengths) <= AT_ONCE


def test_parts_make_the_file_that_the_library_reads() -> None:
    rng = stream(0, "parts")
    tensors = {
        "transposed": torch.randn(3, 5, generator=rng).T,
        "half": torch.randn(3, generator=rng).half(),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "count": torch.tensor([7]),
        "none": torch.zeros(0, 4),
        "flag": torch.tensor([True, False]),
    }
    data = b"".join(file_parts(tensors, {"peer": "none"}))
    found = safetensors.torch.load(data)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in tensors.items())


def test_directions_alone_are_enough_for_figures_and_not_for_an_export(tmp_path: Path) -> None:
    module = drawn("topk:k=8", 6, 9)
    keep("directions")
    record = stored("topk:k=8", module, tmp_path)
    assert torch.equal(weights(record)["directions"], module.W_dec[0].half())
    with pytest.raises(UserError, match=r"only its units' directions.*--weights whole"):
        saved_module(record)


def test_a_coder_that_was_fitted_comes_back_if_it_is_linear(tmp_path: Path) -> None:
    x = torch.randn(50, 6, generator=stream(0, "x"))
    for word in ("random_relu", "pca", "fast_ica:rectified=true"):
        module = parsed([word])[0].fit(x, 4, 0)  # type: ignore[attr-defined]
        assert torch.equal(saved_module(stored(word, module, tmp_path)).encode(x[None]), module.encode(x[None]))
    with pytest.raises(UserError, match="kmeans is no linear map"):
        saved_module(stored("kmeans", parsed(["kmeans"])[0].fit(x, 4, 0), tmp_path))  # type: ignore[attr-defined]


SMALL = ("sae", "--coders", "topk:k=4", "--epochs", "1", "--seeds", "0", "--lrs", "1e-3", "--device", "cpu", "--quiet")


def test_the_flag_reaches_the_workers_and_changes_no_id(
    cli: Callable[..., tuple[int, str, str]], tmp_path: Path, undrawn: None, hasty: None
) -> None:
    found = {}
    # What is not the default is asked of workers too.
    for executor, what in (("serial", "whole"), ("serial", "directions"), ("local", "directions")):
        out = tmp_path / executor / what
        code, _, err = cli(*SMALL, "--executor", executor, "--weights", what, "--out", out)
        assert code == 0, err
        (record,) = Store(out).records("sae")
        found[executor, what] = record.run.id, "W_enc" in weights(record)
    assert len({id for id, _ in found.values()}) == 1
    assert [whole for _, whole in found.values()] == [True, False, False]
