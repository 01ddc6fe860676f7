"""Generation with caches from which keys are gone: the logits of every step against the replay of the whole text, and
against a loop with transformers' own cache, keys deleted by hand."""

from functools import cache

import pytest
import torch
from transformers import DynamicCache, Gemma3TextConfig, GPT2Config, Lfm2Config, LlamaConfig, MistralConfig

from assay.attention import attention
from assay.attention.base import Budget, Evict, Pattern, Prefix
from assay.attention.lanes import Lane
from assay.core.errors import UserError
from assay.models.causal_lm import sparse_lanes
from assay.models.generation import generate
from assay.models.reader import Reader
from assay.nn.random import initialised_from, stream

SIZES = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.3,
}  # fmt: skip
PROMPT, TOKENS = 40, 8


def built(config):
    from transformers import AutoModelForCausalLM

    with initialised_from(0, "model"):
        return AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def llama():
    return built(LlamaConfig(**SIZES))


@pytest.fixture
def prompt():
    return torch.randint(61, (2, PROMPT), generator=stream(0, "prompt"))


class Watched(Reader):
    """A model, and the log-probabilities that were asked for."""

    def __init__(self, model):
        super().__init__(model)
        self.seen = []

    def log_probabilities(self, hidden):
        self.seen.append(self.logits(hidden).log_softmax(-1))
        return self.seen[-1]


def steps(model, lanes, prompt, tokens=TOKENS):
    """What is generated, and the log-probabilities of every step."""
    reader = Watched(model)
    found = generate(reader, lanes, prompt, tokens=tokens)
    return found, torch.cat(reader.seen, dim=1)


def replayed(model, lane, prompt, generated):
    """The log-probabilities of the same text read at once, where each token was chosen."""
    whole = torch.cat([prompt, generated], dim=1)
    with torch.no_grad(), sparse_lanes(model, [lane], count=False):
        return model(whole, use_cache=False).logits[:, prompt.shape[1] - 1 : -1].log_softmax(-1)


def assert_is_replayed(model, lane, prompt, **options):
    found, logits = steps(model, [lane], prompt, **options)
    expected = replayed(model, lane, prompt, found.tokens[0])
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(found.tokens[0], expected.argmax(-1))
    return found


ONLINE = [name for name in attention.names() if isinstance(attention.parse(name), Evict | Pattern)]


@pytest.mark.parametrize("budget", [Budget(slots=18), Budget(sparsity=0.6)], ids=str)
@pytest.mark.parametrize(
    "name", [*ONLINE, "local_strided:pattern=strided", "knorm:skip_layers=", "per_layer:method=tova"]
)
def test_what_is_generated_is_what_the_replay_predicts(llama, prompt, name, budget):
    assert_is_replayed(llama, Lane(attention.parse(name), budget), prompt)


SHORT = {
    "snapkv": "snapkv:window_size=4",
    "ada": "ada:method=(snapkv:window_size=4)",
    "chunkkv": "chunkkv:chunk_size=4:method=(snapkv:window_size=4)",
    "pyramid": "pyramid:method=(snapkv:window_size=4)",
    "lagkv": "lagkv:lag_size=8",
}
"""Windows and partitions that a prefix of 32 tokens has room for."""


@pytest.mark.parametrize("name", [n for n in attention.names() if isinstance(attention.parse(n), Prefix)])
def test_a_prefix_that_was_cut_down_once_is_held_in_every_head(llama, prompt, name):
    if name == "kvpress":
        pytest.importorskip("kvpress")
    lane = Lane(attention.parse(SHORT.get(name, name)), Budget(slots=16), prefix=32)
    assert_is_replayed(llama, lane, prompt)
    assert_is_replayed(llama, lane, prompt[:, :32])


@pytest.mark.parametrize("name", ["h2o", "tova", "window", "streaming_llm"])
def test_methods_of_other_families_cut_down_a_prefix_too(llama, prompt, name):
    assert_is_replayed(llama, Lane(attention.parse(name), Budget(slots=11), prefix=30), prompt)


@pytest.mark.parametrize("name", ["h2o", "tova", "keydiff", "random_evict"])
@pytest.mark.parametrize("chunk", [7, 8])
def test_chunks_are_evicted_at_their_ends_while_tokens_are_generated(llama, prompt, name, chunk):
    """40 tokens are not a multiple of 7: what is left of the prompt is read token by token."""
    assert_is_replayed(llama, Lane(attention.parse(name), Budget(slots=10), chunk=chunk), prompt, tokens=12)


@pytest.mark.parametrize("name", ["streaming_llm", "window"])
def test_positions_inside_the_cache(llama, prompt, name):
    assert_is_replayed(llama, Lane(attention.parse(name), Budget(slots=10), positions="cache"), prompt)


OTHERS = {
    "a window of 16": MistralConfig(**SIZES, sliding_window=16),
    "a window of 44, longer than the prompt": MistralConfig(**SIZES, sliding_window=44),
    "windows in some layers": Gemma3TextConfig(
        **SIZES, head_dim=8, sliding_window=12, layer_types=["sliding_attention"] * 2 + ["full_attention"],
    ),
    "learned positions": GPT2Config(
        vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=256, initializer_range=0.3,
    ),
}  # fmt: skip


@cache
def other(kind):
    return built(OTHERS[kind])


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("name", ["dense", "h2o", "tova", "streaming_llm", "window"])
def test_models_with_windows_and_positions_of_their_own(prompt, kind, name):
    model = other(kind)
    assert_is_replayed(model, Lane(attention.parse(name), Budget(slots=20)), prompt)
    if "window" in kind and name in ("streaming_llm", "window"):
        assert_is_replayed(model, Lane(attention.parse(name), Budget(slots=20), positions="cache"), prompt)


def by_hand(model, ids, slots, tokens):
    """H2O with transformers' cache: one token at a time from the first on, keys deleted from the cache."""
    model.set_attn_implementation("eager")
    cache, chosen = DynamicCache(config=model.config), []
    totals = [torch.zeros(2, 0) for _ in range(3)]
    for t in range(len(ids) + tokens - 1):
        token = ids[t] if t < len(ids) else chosen[-1]
        out = model(
            torch.tensor([[token]]), past_key_values=cache, position_ids=torch.tensor([[t]]), output_attentions=True
        )
        if t >= len(ids) - 1:
            chosen.append(int(out.logits[0, -1].argmax()))
        for number, weights in enumerate(out.attentions):
            layer = cache.layers[number]
            received = weights[0, :, 0].unflatten(0, (2, 2)).sum(1)  # two query heads share a KV head
            totals[number] = torch.cat([totals[number], torch.zeros(2, 1)], dim=1) + received
            if layer.keys.shape[2] > slots:
                kept = []
                for head in range(2):
                    old = layer.keys.shape[2] - slots // 2  # the latest half stays
                    victim = min(range(old), key=lambda j: (float(totals[number][head, j]), j))
                    kept.append([j for j in range(layer.keys.shape[2]) if j != victim])
                places = torch.tensor(kept)
                layer.keys = torch.stack([layer.keys[:, h, places[h]] for h in range(2)], dim=1)
                layer.values = torch.stack([layer.values[:, h, places[h]] for h in range(2)], dim=1)
                totals[number] = totals[number].gather(1, places)
    model.set_attn_implementation("sdpa")
    return chosen


def test_h2o_generates_what_a_loop_over_a_cache_with_deleted_keys_generates(llama, prompt):
    for row in prompt:
        with torch.no_grad():
            expected = by_hand(llama, row.tolist(), 9, TOKENS)
        found, _ = steps(llama, [Lane(attention.parse("h2o"), Budget(slots=9))], row[None])
        assert found.tokens[0, 0].tolist() == expected


def test_lanes_that_ride_together_generate_what_each_generates_alone(llama, prompt):
    lanes = [Lane(attention.parse(name), Budget(slots=9)) for name in ("dense", "h2o", "window")]
    together, _ = steps(llama, lanes, prompt)
    for number, lane in enumerate(lanes):
        alone, _ = steps(llama, [lane], prompt)
        assert torch.equal(together.tokens[number], alone.tokens[0])
        assert together.kv_bytes[number] == alone.kv_bytes[0]


def test_what_is_held_is_the_slots_and_nothing_else(llama, prompt):
    lanes = [Lane(attention.parse(name), Budget(slots=9)) for name in ("dense", "h2o", "window", "streaming_llm")]
    found, _ = steps(llama, lanes, prompt)
    vector = 3 * 2 * 2 * 8 * 4  # layers, keys and values, heads, width, bytes
    assert found.kv_bytes == (48 * vector, 10 * vector, 10 * vector, 10 * vector)


def test_what_cannot_be_decoded_is_said(llama, prompt):
    for lane, said in (
        (Lane(attention.parse("quest"), Budget(slots=32)), "quest selects anew for each query and evicts nothing"),
        (Lane(attention.parse("h2o"), Budget(slots=8), prefix=50), "shorter than the prefix of 50"),
        (Lane(attention.parse("h2o"), Budget(slots=8), chunk=50), "shorter than a chunk of 50"),
        (Lane(attention.parse("snapkv"), Budget(slots=8)), "was given none"),
    ):
        with pytest.raises(UserError, match=said):
            steps(llama, [lane], prompt)


def test_a_hybrid_is_refused_since_what_its_other_layers_carry_is_not_kept(prompt):
    kinds = ["conv", "full_attention", "conv"]
    model = built(Lfm2Config(**SIZES, layer_types=kinds, block_auto_adjust_ff_dim=False))
    with pytest.raises(UserError, match="1 of its 3 layers attend"):
        steps(model, [Lane(attention.parse("dense"), Budget(sparsity=0.0))], prompt)
