"""Preset `capacity`: which models it compares, and what its report keeps apart."""

from dataclasses import replace
from typing import Any

import pytest

from assay.api import configure
from assay.core.plugin import plugins_in
from assay.mixers import mixers
from assay.mixers.base import Mixer
from assay.studies.icl.capacity import has_convolution
from assay.studies.icl.icl import InContext
from assay.studies.icl.presets import PRESETS

WORDS: list[str] = PRESETS["capacity"]["grid"]["model.seq_mixer"]
SETTINGS: list[Any] = [mixers.parse(word) for word in WORDS]


LEFT_OUT = {
    "sparse_attention", "base_conv", "delta_product", "fla_layer", "hyena", "kda", "mesa", "mlstm", "rwkv7",
}  # fmt: skip
"""Mixers that the preset does not compare."""


def short_convolutions(mixer: Mixer) -> list[int]:
    """Of the mixer and of those it is made of."""
    return [part.conv for part in plugins_in(mixer) if isinstance(part, Mixer)]


def test_each_setting_has_a_convolution_of_four_in_front_or_none_at_all() -> None:
    assert len(set(SETTINGS)) == len(SETTINGS) == 26
    for mixer in SETTINGS:
        front, *inside = short_convolutions(mixer)
        assert front in (0, 4) and not any(inside), mixer
    plain = {mixer.name for mixer in SETTINGS if mixer.conv == 0}
    assert plain == {mixer.name for mixer in SETTINGS} == set(mixers.names()) - LEFT_OUT


def test_the_mixers_that_carry_a_matrix_carry_one_of_equal_size() -> None:
    names = {"linear_attention", "gated_linear_attn", "retention", "delta_net", "gated_delta_net"}
    sizes = {mixer.name: mixer.state_size(64, 1024) for mixer in SETTINGS if mixer.conv == 0 and mixer.name in names}
    assert sizes == dict.fromkeys(names, 64 * 64)


def test_retention_forgets_at_several_rates() -> None:
    assert {mixer.num_heads for mixer in SETTINGS if mixer.name == "retention"} == {4}


@pytest.mark.parametrize("mixer", SETTINGS, ids=WORDS)
def test_every_setting_meets_the_parameters_of_a_layer(mixer: Mixer) -> None:
    study = configure(InContext, "capacity", {})
    replace(study.model, seq_mixer=mixer).check(study.task.shape())


@pytest.mark.parametrize(
    ("word", "convolved"),
    [
        ("delta_net", True),
        ("delta_net:conv=0", False),
        ("hybrid:pattern=attention+delta_net", True),
        ("hybrid:pattern=attention+(delta_net:conv=0)", False),
        ("hybrid:pattern=attention+(delta_net:conv=0):conv=4", True),
        ("hybrid:pattern=attention+(hybrid:pattern=mamba2)", True),
    ],
)
def test_a_hybrid_has_the_convolutions_of_its_members(word: str, convolved: bool) -> None:
    assert has_convolution(mixers.parse(word).spec()) is convolved
