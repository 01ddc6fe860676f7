"""Modules built for their shapes alone: a `build` that looks at values is a valid plug-in, in every command."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from assay.core.errors import UserError
from assay.nn import shapes
from assay.nn.shapes import built_for_shapes, parameter_count
from assay.tasks.base import TaskShape, Tokens

Cli = Callable[..., tuple[int, str, str]]
SHAPE = TaskShape(Tokens(16), Tokens(16), 8)
LOOKS = {
    "tolist": lambda: torch.ones(4).tolist(),  # NotImplementedError on the meta device
    "item": lambda: torch.ones(3).sum().item(),  # RuntimeError
    "numpy": lambda: torch.ones(3).numpy(),  # TypeError
}
ENCODER = """
from dataclasses import dataclass
import torch
from assay.encoders import encoders
from assay.encoders.mean_mlp import MeanMLP as Base

@encoders.register("valued")
@dataclass(frozen=True, kw_only=True)
class Valued(Base):
    aliases = ()

    def build(self, length, d_in, d_code):
        torch.ones(4).tolist()
        return super().build(length, d_in, d_code)
"""
MIXER = """
from dataclasses import dataclass
import torch
from assay.mixers import mixers
from assay.mixers.attention import Attention

@mixers.register("valued")
@dataclass(frozen=True, kw_only=True)
class Valued(Attention):
    def core(self, d_model, max_len):
        torch.ones(3).numpy()
        return super().core(d_model, max_len)
"""
STATE_MIXER = """
from dataclasses import dataclass
import torch
from assay.state_mixers import state_mixers
from assay.state_mixers.mlp import MLP as Base

@state_mixers.register("valued")
@dataclass(frozen=True, kw_only=True)
class Valued(Base):
    def build(self, d_model):
        torch.ones(3).sum().item()
        return super().build(d_model)
"""
CODER = """
from dataclasses import dataclass
from typing import ClassVar
import torch
from assay.sparse_coders import sparse_coders
from assay.sparse_coders import relu_l1

class Module(relu_l1.Module):
    def __init__(self, models, d_in, d_code, **more):
        super().__init__(models, d_in, d_code, **more)
        self.grid = torch.ones(3).tolist()

@sparse_coders.register("valued")
@dataclass(frozen=True, kw_only=True)
class Valued(relu_l1.ReluL1):
    module: ClassVar = Module
"""
COMMANDS = {
    "encoder": (ENCODER, "expressivity --models valued"),
    "encoder of a budget": (ENCODER, "expressivity --models valued --budget 20k"),
    "mixer": (MIXER, "icl model.seq_mixer:valued"),
    "mixer of a budget": (MIXER, "icl model.seq_mixer:valued --model.layer_params 200000"),
    "state mixer": (STATE_MIXER, "icl model.state_mixer:valued"),
    "coder": (CODER, "sae --coders valued"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_build_that_looks_at_values_is_planned(command: str, cli: Cli, tmp_path: Path) -> None:
    source, words = COMMANDS[command]
    (tmp_path / "mine.py").write_text(source)
    code, out, err = cli(*words.split(), "--plugin", tmp_path / "mine.py", "--cpu-only", "--dry-run", "--out", tmp_path)
    assert (code, err) == (0, "") and "valued" in out


@pytest.mark.parametrize("source", [ENCODER, STATE_MIXER], ids=["encoder", "state mixer"])
def test_a_build_that_looks_at_values_keeps_its_contract(source: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(source)
    code, out, _ = cli("check", tmp_path / "mine.py")
    assert code == 0, out


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_what_does_not_build_without_values_is_not_known(look: Callable[[], object]) -> None:
    def build() -> nn.Module:
        look()
        return nn.Linear(3, 4)

    before = torch.get_rng_state()
    assert built_for_shapes(build) is None
    assert parameter_count(build, expected=16) == parameter_count(lambda: nn.Linear(3, 4), expected=16) == 16
    assert torch.equal(torch.get_rng_state(), before)


def test_what_the_plug_in_says_to_people_passes_through() -> None:
    def build() -> nn.Module:
        raise UserError("an even width, please.")

    with pytest.raises(UserError, match="an even width"):
        built_for_shapes(build)


def test_a_large_module_is_not_built_to_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "BUILT_TO_COUNT", 10)
    built = list[bool]()

    def build() -> nn.Module:
        built.append(torch.empty(0).is_meta)
        return nn.Linear(int(torch.ones(()).item()), 4)

    with pytest.raises(UserError, match="about 1,000 parameters is too large"):
        parameter_count(build, expected=1000)
    assert built == [True]
