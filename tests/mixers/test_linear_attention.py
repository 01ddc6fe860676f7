"""Linear attention and based against loops over time, with every feature map."""

import pytest
import torch

from assay.core.errors import UserError
from assay.mixers import mixers
from assay.mixers.base import state_scalars
from assay.nn.feature_maps import FEATURE_MAPS
from assay.nn.random import initialised_from, stream

D, TIME = 32, 70  # more than one chunk


def built(word):
    with initialised_from(0, "test"):
        return mixers.parse(word).build(D, TIME).double()


def sequences(time=TIME):
    return torch.randn(2, time, D, generator=stream(0, "x"), dtype=torch.float64)


def stepped(module, x):
    state, outputs = module.init_state(len(x)), []
    for token in x.unbind(1):
        y, state = module.step(token, state)
        outputs.append(y)
    return torch.stack(outputs, 1), state


@pytest.mark.parametrize("normalize", [False, True])
def test_linear_attention_is_its_recurrence(normalize):
    word = "linear_attention:num_heads=2:expand_k=0.5:expand_v=2:feature_map=elu"
    module, x = built(f"{word}:normalize={normalize}"), sequences(9)
    q, k, v = (x @ part.T for part in module.heads.qkv.weight.split([16, 16, 64]))
    read = torch.zeros(2, 9, 64, dtype=torch.float64)
    for h in range(2):
        keys, values = slice(8 * h, 8 * h + 8), slice(32 * h, 32 * h + 32)
        memory, total = torch.zeros(2, 8, 32, dtype=torch.float64), torch.zeros(2, 8, dtype=torch.float64)
        for t in range(9):
            phi_q, phi_k = (torch.nn.functional.elu(part[:, t, keys]) + 1 for part in (q, k))
            memory = memory + torch.einsum("bf,be->bfe", phi_k, v[:, t, values])
            total = total + phi_k
            o = torch.einsum("bf,bfe->be", phi_q, memory) / 8**0.5
            if normalize:
                o = o / ((phi_q * total).sum(-1, keepdim=True) / 8**0.5 + 1e-6)
            read[:, t, values] = o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(module(x), read @ module.heads.out.weight.T)


WORDS = [
    *(f"linear_attention:feature_map={name}" for name in FEATURE_MAPS),
    *(f"linear_attention:feature_map={name}:normalize=true" for name, kind in FEATURE_MAPS.items() if not kind.signed),
    "linear_attention:tie_qk=true",
    "linear_attention:num_heads=4:expand_k=0.5:expand_v=2",
    "based",
    "based:num_heads=2:feature_dim=3",
]


@pytest.mark.parametrize("word", WORDS)
def test_over_several_chunks_it_steps_as_it_runs_and_carries_what_it_declares(word):
    module, x = built(word), sequences()
    outputs, state = stepped(module, x)
    torch.testing.assert_close(outputs, module(x), rtol=0, atol=1e-8)
    assert state_scalars(state) == mixers.parse(word).state_size(D, TIME) == mixers.parse(word).state_size(D, 1)


def test_a_tied_map_is_one_map():
    free, tied = built("linear_attention"), built("linear_attention:tie_qk=true")
    assert tied.query_map is tied.key_map and free.query_map is not free.key_map
    assert len(list(free.parameters())) - len(list(tied.parameters())) == 4


def test_the_state_is_a_matrix_per_head_and_a_column_for_the_denominator():
    sizes = {
        "linear_attention": 8 * 16 * 16,
        "linear_attention:feature_map=dpfp": 8 * 128 * 16,
        "linear_attention:feature_map=hedgehog:normalize=true": 8 * 32 * 17,
        "linear_attention:num_heads=4:expand_k=0.5": 4 * 16 * 32,
        "based": 153 * 129,
    }
    assert {word: mixers.parse(word).state_size(128, 64) for word in sizes} == sizes


def test_based_weighs_by_the_second_order_of_the_exponential():
    module, x = built("based:num_heads=2:feature_dim=3"), sequences(9)
    q, k, v = (x @ part.T for part in module.heads.qkv.weight.split([6, 6, 32]))
    read = torch.zeros(2, 9, 32, dtype=torch.float64)
    for h in range(2):
        keys, values = slice(3 * h, 3 * h + 3), slice(16 * h, 16 * h + 16)
        for t in range(9):
            a = [(q[:, t, keys] * k[:, s, keys]).sum(-1, keepdim=True) / 3**0.5 for s in range(t + 1)]
            weights = [1 + score + score**2 / 2 for score in a]
            read[:, t, values] = sum(w * v[:, s, values] for s, w in enumerate(weights)) / sum(weights)
    torch.testing.assert_close(module(x), read @ module.heads.out.weight.T, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("linear_attention:normalize=true", "Choose one of hedgehog, t2r, dpfp, elu, relu"),
        ("linear_attention:feature_map=identity:normalize=true", "zero or negative"),
        ("linear_attention:expand_k=0", "must be above 0"),
        ("linear_attention:feature_map=exp", "expected one of elementwise_product"),
        ("based:feature_dim=0", "feature_dim=0 is too small"),
    ],
)
def test_options_that_make_no_sense_are_refused(word, says):
    with pytest.raises(UserError, match=says):
        mixers.parse(word)
