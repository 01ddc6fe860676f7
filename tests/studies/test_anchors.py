"""The published points: they load, and they mean what we take them to mean."""

from assay.mixers import mixers
from assay.studies.icl.anchors import Anchor, anchors

EVERY = anchors()
LATER = {"rwkv7", "hyena"}


def states(mixer: str) -> list[int]:
    return sorted(anchor.state_bytes for anchor in EVERY if anchor.mixer == mixer)


def test_the_first_point_is_the_one_of_the_docstring() -> None:
    assert EVERY[0] == Anchor(mixer="DeltaNet", ours="delta_net", memory=(2, 32, 32), base_conv=64, accuracy=0.79)
    assert EVERY[0].state_bytes == 4 * (2 * 32 * 32 + 3 * 64) == 8960


def test_state_bytes_are_those_of_the_layouts() -> None:
    """4 (state + 3 d) behind a BaseConv, and 4 x 2 x 2 d s for two blocks of Mamba-2."""
    assert states("DeltaNet") == [8_960, 34_304, 134_144]
    assert states("sliding window")[:3] == [9_728, 17_920, 34_304]
    assert states("Mamba-2") == [16 * width for width in (512, 1024, 1536, 2048, 3072, 4096, 6144)]
    assert states("RWKV-7") == [17_152, 34_304, 68_608], "plotted at 17, 130 and 1,000 kB by a fault since mended"


def test_the_smallest_attention_is_64_wide_in_one_layer() -> None:
    assert states("attention")[0] == 4 * (mixers.parse("attention").state_size(64, 1024) + 3 * 64) == 525_056


def test_our_mixers_carry_the_memories_of_the_points_they_compare_with() -> None:
    same = {
        "delta_net:num_heads=2:conv=0": (64, EVERY[0]),
        "gated_linear_attn:num_heads=2:conv=0": (
            128,
            next(a for a in EVERY if a.mixer[:3] == "GLA" and a.base_conv == 128),
        ),
        "based:num_heads=1:feature_dim=8:conv=0": (128, next(a for a in EVERY if a.memory == (45, 129))),
    }
    for word, (width, anchor) in same.items():
        assert 4 * (mixers.parse(word).state_size(width, 1024) + 3 * width) == anchor.state_bytes, word


def test_points_name_registered_mixers_and_each_state_once() -> None:
    assert {a.ours for a in EVERY} - {None} <= {*mixers.names(), *LATER}
    assert all(0 <= a.accuracy <= 1 for a in EVERY)
    assert len({(a.mixer, a.state_bytes) for a in EVERY}) == len(EVERY)
