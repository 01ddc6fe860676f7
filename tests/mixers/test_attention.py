"""Softmax attention, whole and in a window: against torch's own, and what each remembers."""

import pytest
import torch
from torch import nn

from assay.core.errors import UserError
from assay.mixers import mixers
from assay.mixers.base import state_scalars
from assay.models.sequence import SequenceModel
from assay.nn.random import initialised_from, stream

D, TIME = 32, 20


def built(word):
    with initialised_from(0, "test"):
        return mixers.parse(word).build(D, TIME).double()


def sequences():
    return torch.randn(3, TIME, D, generator=stream(0, "x"), dtype=torch.float64)


def stepped(module, x):
    state, outputs = module.init_state(len(x)), []
    for token in x.unbind(1):
        y, state = module.step(token, state)
        outputs.append(y)
    return torch.stack(outputs, 1), state


def test_attention_is_torch_multihead_attention_under_a_causal_mask():
    module, x = built("attention:num_heads=4"), sequences()
    peer = nn.MultiheadAttention(D, 4, bias=False, batch_first=True).double()
    peer.load_state_dict({"in_proj_weight": module.heads.qkv.weight, "out_proj.weight": module.heads.out.weight})
    mask = nn.Transformer.generate_square_subsequent_mask(TIME, dtype=torch.float64)
    torch.testing.assert_close(module(x), peer(x, x, x, attn_mask=mask)[0])


def test_grouped_queries_are_full_attention_with_repeated_keys_and_values():
    grouped, full = built("attention:num_heads=8:num_kv_heads=2"), built("attention:num_heads=8")
    q, k, v = grouped.heads.qkv.weight.split([D, D // 4, D // 4])
    k, v = (part.unflatten(0, (2, 4)).repeat_interleave(4, dim=0).flatten(0, 1) for part in (k, v))
    full.heads.qkv.weight = nn.Parameter(torch.cat([q, k, v]))
    full.heads.out.weight = grouped.heads.out.weight
    torch.testing.assert_close(grouped(sequences()), full(sequences()))


def test_weights_start_as_torch_starts_a_linear_layer_and_there_is_no_bias():
    module = built("attention")
    assert [name for name, _ in module.named_parameters()] == ["heads.qkv.weight", "heads.out.weight"]
    bound = module.heads.qkv.in_features**-0.5
    assert 0.95 * bound < module.heads.qkv.weight.abs().max() <= bound


OPTIONS = ("", ":num_kv_heads=2", ":positions=rotary", ":num_kv_heads=4:positions=rotary", ":conv=3")


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["attention", "sliding_window:window=5", "sliding_window:window=1"])
def test_every_form_steps_as_it_runs_and_carries_what_it_declares(name, options):
    module, x = built(name + options), sequences()
    outputs, state = stepped(module, x)
    torch.testing.assert_close(outputs, module(x))
    assert state_scalars(state) == mixers.parse(name + options).state_size(D, TIME)


@pytest.mark.parametrize("positions", ["none", "rotary"])
def test_a_window_as_long_as_the_sequence_is_attention(positions):
    whole = built(f"attention:positions={positions}")
    window = built(f"sliding_window:window={TIME}:positions={positions}")
    torch.testing.assert_close(window(sequences()), whole(sequences()))


def test_a_window_sees_exactly_its_tokens():
    module, x = built("sliding_window:window=5"), sequences().requires_grad_()
    module(x)[:, 12].sum().backward()
    assert x.grad.abs().amax(dim=(0, 2)).nonzero().flatten().tolist() == [8, 9, 10, 11, 12]


def test_without_positions_the_past_has_no_order_and_rotary_gives_it_one():
    x = sequences()
    swapped = x[:, [*reversed(range(TIME - 1)), TIME - 1]]
    plain, rotary = built("attention"), built("attention:positions=rotary")
    torch.testing.assert_close(plain(x)[:, -1], plain(swapped)[:, -1])
    assert not torch.allclose(rotary(x)[:, -1], rotary(swapped)[:, -1])


def test_the_cache_of_attention_grows_and_that_of_a_window_stops():
    whole, window = mixers.parse("attention:num_kv_heads=2"), mixers.parse("sliding_window:num_kv_heads=2:window=16")
    assert [whole.state_size(128, n) for n in (1, 15, 1000)] == [2 * 2 * 16 * n for n in (1, 15, 1000)]
    assert [window.state_size(128, n) for n in (1, 15, 1000)] == [2 * 2 * 16 * n for n in (1, 15, 15)]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("attention:num_heads=8:num_kv_heads=3", "num_heads=8 must be a multiple of num_kv_heads=3"),
        ("attention:num_heads=0", "num_heads=0 is too small"),
        ("sliding_window:window=0", "window=0 is too small"),
        ("sliding_window:positions=learned", "expected one of none, rotary"),
    ],
)
def test_options_that_make_no_sense_are_refused(word, says):
    with pytest.raises(UserError, match=says):
        mixers.parse(word)


def test_rotary_positions_refuse_an_odd_number_of_channels():
    with pytest.raises(UserError, match="d_model 24 gives 3 to each of 8 heads"):
        mixers.parse("attention:positions=rotary").build(24, 8)


@pytest.mark.parametrize(
    "word", ["attention:num_heads=3", "gated_delta_net:num_heads=64", "hybrid:pattern=gru+(attention:num_heads=5)"]
)
def test_a_model_whose_heads_do_not_divide_it_is_refused(word):
    with pytest.raises(UserError, match="heads do not divide model_dim=32"):
        SequenceModel(seq_mixer=mixers.parse(word), model_dim=32)
    SequenceModel(seq_mixer=mixers.parse(word), model_dim=960)
