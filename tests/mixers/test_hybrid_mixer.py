"""A hybrid is its members one after another, in Python, in JSON and as a word."""

import pytest
import torch

from assay.core.errors import UserError
from assay.mixers import mixers
from assay.mixers.base import state_scalars
from assay.nn.random import initialised_from, stream

D, TIME = 32, 20


def sequences():
    return torch.randn(3, TIME, D, generator=stream(0, "x"))


def test_each_member_sees_what_came_in_and_what_the_others_found():
    with initialised_from(0, "test"):
        module = mixers.parse("hybrid:pattern=based+attention+sliding_window").build(D, TIME)
    x = found = sequences()
    for norm, member in zip(module.norms, module.members, strict=True):
        found = found + member(norm(found))
    torch.testing.assert_close(module(x), found - x, rtol=0, atol=1e-6)


def test_the_state_is_that_of_its_members():
    hybrid = mixers.parse("hybrid:pattern=based+attention:conv=3")
    parts = [mixers.parse(name).state_size(D, 7) for name in ("based", "attention")]
    assert hybrid.state_size(D, 7) == sum(parts) + 2 * D
    module = hybrid.build(D, TIME)
    state = module.init_state(3)
    for token in sequences()[:, :7].unbind(1):
        _, state = module.step(token, state)
    assert state_scalars(state) == hybrid.state_size(D, 7)


@pytest.mark.parametrize(
    "word",
    ["hybrid", "hybrid:pattern=attention", "hybrid:pattern=based+attention", "hybrid:conv=3:pattern=based+hybrid"],
)
def test_a_word_a_spec_and_a_label_lead_to_the_same_hybrid(word):
    hybrid = mixers.parse(word)
    assert mixers.load(hybrid.spec()) == hybrid
    assert mixers.parse(hybrid.label) == hybrid
    assert hybrid.label == word


def test_members_with_options_survive_json():
    hybrid = mixers["hybrid"](pattern=(mixers.parse("sliding_window:window=4"), mixers.parse("based:feature_dim=8")))
    assert mixers.load(hybrid.spec()) == hybrid


def test_the_default_is_a_window_and_a_matrix():
    assert [member.name for member in mixers.parse("hybrid").pattern] == ["sliding_window", "linear_attention"]


@pytest.mark.parametrize(
    ("pattern", "says"), [("based+atention", "Did you mean 'attention'"), ("based+", "no mixer named ''")]
)
def test_a_wrong_member_is_refused(pattern, says):
    with pytest.raises(UserError, match=says):
        mixers.parse(f"hybrid:pattern={pattern}")


def test_an_empty_pattern_is_refused():
    with pytest.raises(UserError, match="pattern is empty"):
        mixers.load({"name": "hybrid", "pattern": []})
