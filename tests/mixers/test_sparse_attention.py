"""Attention methods as mixers: every family keeps the promises, and its recurrent form is a real cache."""

from dataclasses import dataclass, replace

import pytest
import torch
from einops import reduce
from torch.nn.functional import pad

from assay.attention import attention
from assay.attention.base import BlockSelect, Budget, Prefix, highest
from assay.attention.lanes import Usage
from assay.attention.layer import Layer
from assay.contracts import mixers as contract
from assay.contracts.base import promises
from assay.core.errors import UserError
from assay.mixers import mixers
from assay.models.sequence import SequenceModel
from assay.nn.random import initialised_from, stream
from assay.tasks.base import TaskShape, Tokens

WORDS = {
    "local_strided": "(local_strided:local_window=4:stride=5)",
    "cab_v3": "(cab_v3:block_size=2)",
    "cab_v4": "(cab_v4:block_size=2)",
    "quest": "(quest:page_size=4:min_pages=2)",
    "random_evict": "(random_evict:num_sink_tokens=2)",
}
ONLY_IN_MODELS = {"per_layer", "duo"}
ONE_OF_EACH_KIND = {"window", "tova", "oracle_topk"}
NAMES = [name for name in attention.names() if not issubclass(attention[name], Prefix) and name not in ONLY_IN_MODELS]


def word(name):
    return f"sparse_attention:method={WORDS.get(name, name)}:slots=8:num_heads=4:num_kv_heads=2"


@pytest.mark.parametrize("name", NAMES)
def test_every_method_is_a_mixer_that_keeps_every_promise(name, monkeypatch):
    # One code runs all methods of a kind: what it does beyond a chunk is the same, and methods have no chunks.
    kept = (contract.SHORT, contract.LONG) if name in ONE_OF_EACH_KIND else (contract.SHORT,)
    monkeypatch.setattr(contract, "LENGTHS", kept)
    mixer = mixers.parse(word(name) + (":positions=rotary" if name == "h2o" else ""))
    for promise in promises("mixers"):
        if promise.__name__ != "works_in_float64_and_under_bf16_autocast":  # a choice may fall otherwise in bf16
            promise(mixer)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "dense"])
def test_what_is_left_out_changes_the_outputs(name):
    x = torch.randn(2, 24, 32, generator=stream(0, "x"))
    given = []
    for chosen in (word(name), "attention:num_heads=4:num_kv_heads=2"):
        with initialised_from(0, "mixer"):
            given.append(mixers.parse(chosen).build(32, 24)(x))
    assert torch.allclose(given[0][:, :3], given[1][:, :3], atol=1e-6) and not torch.allclose(*given, atol=1e-3)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("dense", "cab_v3", "cab_v4", "local_strided")])
def test_with_few_slots_a_method_of_default_options_leaves_something_out(name):
    module = mixers.parse(f"sparse_attention:method={name}:slots=8").build(32, 96)
    q, k, v = module.turned(torch.randn(1, 96, 32, generator=stream(0, "x")), 0)
    assert not module.kept(q, k, v)[:, :, -1].all()


@pytest.mark.parametrize("name", ["random", "random_evict"])
def test_what_is_drawn_differs_from_layer_to_layer(name):
    model = SequenceModel(seq_mixer=mixers.parse(word(name)), num_layers=2, model_dim=32)
    module = model.build(TaskShape(inputs=Tokens(4), outputs=Tokens(4), length=24))
    x = torch.randn(1, 24, 32, generator=stream(0, "x"))
    one, other = (layer.mixer.kept(*layer.mixer.turned(x, 0)) for layer in module.layers)
    assert not torch.equal(one, other)


def test_with_a_slot_for_every_token_it_is_attention():
    x = torch.randn(2, 24, 32, generator=stream(0, "x"))
    given = []
    for chosen in ("sparse_attention:method=h2o:slots=24", "attention"):
        with initialised_from(0, "mixer"):
            given.append(mixers.parse(chosen).build(32, 24)(x))
    assert torch.allclose(*given, atol=1e-6)


def test_what_cannot_be_a_mixer_is_refused():
    with pytest.raises(UserError, match="a prompt once"):
        mixers.parse("sparse_attention:method=snapkv")
    with pytest.raises(UserError, match="a mixer is one layer"):
        mixers.parse("sparse_attention:method=per_layer")
    with pytest.raises(UserError, match="a local_window and a stride"):
        mixers.parse("sparse_attention:method=local_strided")
    with pytest.raises(UserError, match="fewer than its 4 sinks"):
        mixers.parse("sparse_attention:slots=2").build(32, 24)


def test_a_method_of_one_s_own_says_itself_what_a_mixer_asks_of_it():
    """Blocks by the sum of their keys with the mean of all queries before: it is never named anywhere."""

    @attention.register("by_mean_query")
    @dataclass(frozen=True, kw_only=True)
    class ByMeanQuery(BlockSelect):
        """Blocks of keys by their sum with the mean of the queries before."""

        warm_up: int = 4

        def as_mixer(self):
            return replace(self, warm_up=1)

        def chosen(self, layer, budget):
            blocks = -(-layer.time // self.block_size)
            starts = torch.arange(blocks) * self.block_size
            means = pad(layer.q.double().cumsum(2), (0, 0, 1, 0))[:, :, starts] / self.warm_up
            keys = pad(layer.k.double(), (0, 0, 0, -layer.time % self.block_size))
            sums = reduce(keys, "r h (m s) d -> r h m d", "sum", s=self.block_size).repeat_interleave(layer.group, 1)
            among = torch.ones(blocks, blocks, dtype=torch.bool).tril()
            own = torch.eye(blocks, dtype=torch.bool)
            count = torch.full((blocks, 1), budget.cache(layer.time) // self.block_size + 1)
            return highest((means @ sums.mT).masked_fill(own, torch.inf), count, among)

        def expected_density(self, time, budget):
            return None

    mixer = mixers.parse("sparse_attention:method=(by_mean_query:block_size=4):slots=8:num_heads=4:num_kv_heads=2")
    module = mixer.build(32, 24)
    assert module.method.warm_up == 1
    x = torch.randn(2, 24, 32, generator=stream(0, "x"))
    state, given = module.init_state(2), []
    for t in range(24):
        y, state = module.step(x[:, t], state)
        given.append(y)
    assert torch.allclose(module(x), torch.stack(given, dim=1), atol=1e-5)
    assert sum(part.numel() for part in state) == 2 * mixer.state_size(32, 24)
    layer = Layer(*(torch.randn(1, heads, 96, 16, generator=stream(0, "x")) for heads in (4, 2, 2)))
    for promise in promises("attention"):
        promise(module.method)
    chosen = module.method.chosen(layer, Budget(slots=8))
    counted, expected = Usage(), Usage()
    counted.count_blocks(module.method, layer, chosen)
    expected.count_mask(module.method, layer, module.method.keep(layer, Budget(slots=8)))
    assert counted == expected
