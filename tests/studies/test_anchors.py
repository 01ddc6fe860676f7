"""The published points: they load, and they mean what we take them to mean."""

import pytest

from assay.mixers import mixers
from assay.studies.icl.anchors import Anchor, anchors

EVERY = anchors()


def test_the_first_point_is_the_one_of_the_docstring():
    assert EVERY[0] == Anchor(mixer="DeltaNet", ours="delta_net", state_bytes=8900, accuracy=0.79)


def test_the_state_axis_is_bytes_of_all_layers_at_length_1024():
    """Attention of width 32 in 2 layers, 4 bytes a scalar: the one state that the figure's axis can be checked with."""
    (smallest, _) = sorted(a.state_bytes for a in EVERY if a.mixer == "attention")
    assert smallest == pytest.approx(2 * 32 * 1024 * 2 * 4, rel=0.05)
    assert smallest == pytest.approx(2 * 4 * mixers.parse("attention").state_size(32, 1024), rel=0.05)


def test_points_name_registered_mixers_and_each_state_once():
    assert {a.ours for a in EVERY} - {None} <= set(mixers.names())
    assert all(0 <= a.accuracy <= 1 for a in EVERY)
    assert len({(a.mixer, a.state_bytes) for a in EVERY}) == len(EVERY)
