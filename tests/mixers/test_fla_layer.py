"""A layer of flash-linear-attention as a mixer: on a CPU by a fake of the package, on CUDA by itself."""

import sys
from dataclasses import replace
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay.contracts import mixers as contract
from assay.contracts.base import promises
from assay.core.errors import UserError
from assay.core.run import Numerics
from assay.mixers import fla_layer, mixers
from assay.models.sequence import SequenceModel
from assay.studies.icl.icl import InContext

CUDA = torch.cuda.is_available() and find_spec("fla") is not None


class Cache(list):
    """States of the layers; `update` is how fla's layers write them."""

    def update(self, *, layer_idx: int, **state: Any) -> None:
        assert layer_idx == 0
        self[:] = [state]


class RunningSum(nn.Module):
    """y_t = W s_t, s_t = s_{t-1} / 2 + x_t, with the interface of a layer of fla."""

    def __init__(self, hidden_size: int = 2048, num_heads: int = 16, head_dim: int = 128, layer_idx: int | None = None):
        super().__init__()
        assert num_heads * head_dim == hidden_size and layer_idx == 0
        self.linear, self.layer_idx = nn.Linear(hidden_size, hidden_size), layer_idx

    def forward(self, hidden_states: Tensor, past_key_values: Any = None, use_cache: bool = False, **_: Any) -> Any:
        last = past_key_values[0]["recurrent_state"][0] if past_key_values else torch.zeros_like(hidden_states[:, :1])
        every = []
        for x in hidden_states.split(1, dim=1):
            last = last / 2 + x
            every.append(last)
        sums = torch.cat(every, dim=1)
        if use_cache:
            past_key_values.update(layer_idx=self.layer_idx, recurrent_state=(sums[:, -1:],), conv_state=None)
        return self.linear(sums), None, past_key_values


class Headless(RunningSum):
    def __init__(self, hidden_size: int = 2048, layer_idx: int | None = None):
        super().__init__(hidden_size, 1, hidden_size, layer_idx)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's modules, and a CPU where the GPU would be."""
    package, layers, models, utils = (ModuleType(f"fla{name}") for name in ("", ".layers", ".models", ".models.utils"))
    layers.RunningSum, layers.Headless, layers.__all__ = RunningSum, Headless, ["Headless", "RunningSum"]  # type: ignore[attr-defined]
    utils.Cache = Cache  # type: ignore[attr-defined]
    for module in (package, layers, models, utils):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(fla_layer, "DEVICE", "cpu")
    fla_layer.measured_state.cache_clear()


@pytest.mark.parametrize("promise", promises("mixers"), ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("word", ["fla_layer:layer=RunningSum", "fla_layer:layer=Headless:num_heads=0:conv=4"])
def test_it_keeps_the_promises_of_every_mixer(word: str, promise: Any, fake: None) -> None:
    promise(mixers.parse(word))


def test_a_state_can_be_stepped_from_twice(fake: None) -> None:
    """Layers write into the cache they are given."""
    module = mixers.parse("fla_layer:layer=RunningSum").build(8, 4)
    x = torch.randn(2, 8)
    _, state = module.step(x, module.init_state(2))
    first, _ = module.step(x, state)
    again, _ = module.step(x, state)
    assert torch.equal(first, again)


def test_an_unknown_layer_and_heads_that_it_has_not_are_refused(fake: None) -> None:
    with pytest.raises(UserError, match=r"fla\.layers has no 'Nothing'\. It has Headless, RunningSum\."):
        mixers.parse("fla_layer:layer=Nothing").build(8, 4)
    with pytest.raises(UserError, match="Write fla_layer:layer=Headless:num_heads=0"):
        mixers.parse("fla_layer:layer=Headless").build(8, 4)
    with pytest.raises(UserError, match="4 heads do not divide model_dim=10"):
        mixers.parse("fla_layer").check_width(10)
    mixers.parse("fla_layer:layer=Headless:num_heads=0").check_width(10)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(UserError, match="runs on CUDA alone, and there is no GPU here"):
        mixers.parse("fla_layer").build(8, 4)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fla_layer, "DEVICE", "cpu")
    monkeypatch.setitem(sys.modules, "fla", None)
    with pytest.raises(UserError, match=r"pip install 'assay-bench\[fla\]'"):
        mixers.parse("fla_layer").build(8, 4)


def test_tokens_on_a_cpu_are_refused(fake: None, monkeypatch: pytest.MonkeyPatch) -> None:
    module = mixers.parse("fla_layer:layer=RunningSum").build(8, 4)
    monkeypatch.setattr(fla_layer, "DEVICE", "cuda")
    with pytest.raises(UserError, match="runs on CUDA alone: use --device cuda"):
        module(torch.zeros(1, 3, 8))


@pytest.mark.parametrize(
    ("word", "alone"), [("kda", False), ("fla_layer", True), ("hybrid:pattern=base_conv+fla_layer", True)]
)
def test_its_models_are_trained_one_by_one(word: str, alone: bool) -> None:
    study = InContext(model=SequenceModel(seq_mixer=mixers.parse(word)), seeds=(0, 1))
    runs = [replace(run, numerics=Numerics(device="cuda")) for run in study.plan() if run.options["model"] is not None]
    cohorts = [study.cohort(run) for run in runs]
    assert (len(set(cohorts)) == len(cohorts) == 2) is alone


@pytest.mark.skipif(not CUDA, reason="needs CUDA and fla")
@pytest.mark.parametrize("layer", ["GatedDeltaNet", "KimiDeltaAttention", "MesaNet"])
def test_layers_of_the_package_step_as_they_run_in_parallel(layer: str) -> None:
    mixer = mixers.parse(f"fla_layer:layer={layer}:num_heads=2")
    module, x = mixer.build(64, 32).to("cuda").eval(), torch.randn(2, 32, 64, device="cuda")
    with torch.no_grad():
        stepped, state, _ = contract._stepped(module, x)
        torch.testing.assert_close(module(x), stepped, rtol=2e-2, atol=2e-2)  # TF32
    assert contract.state_scalars(state) == mixer.state_size(64, 32)
