"""Sparse attention inside language models: what a real cache gives, on every model that uses the interface."""

import os
from contextlib import nullcontext

import pytest
import real_cache
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from assay.attention import attention
from assay.attention.base import Budget, BudgetTooSmall, Evict, Prefix
from assay.attention.lanes import Lane
from assay.core.errors import UserError
from assay.models.causal_lm import fingerprint, load_model, sparse, sparse_lanes
from assay.nn.random import initialised_from, stream
from portable import METHODS

TIME, LAYERS, VOCAB = 96, 3, 50
# Larger than a real model's: the attention of a random model should not be flat.
SIZES = {"vocab_size": VOCAB, "initializer_range": 0.3, "tie_word_embeddings": False}
LLAMA = {
    "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 256, "rope_theta": 10000.0,
}  # fmt: skip


def made(cls, config):
    with initialised_from(0, "model"):
        return cls(config).double().eval().requires_grad_(False)


def own_llama():
    return made(LlamaForCausalLM, LlamaConfig(**SIZES, **LLAMA))


@pytest.fixture(scope="module")
def llama():
    """Shared, and the layout found of it as well: a test that changes its layers takes one of its own."""
    return own_llama()


def gpt2():
    sizes = {"n_embd": 48, "n_layer": LAYERS, "n_head": 4, "n_positions": 256}
    return made(GPT2LMHeadModel, GPT2Config(**SIZES, **sizes))


def mistral():
    return made(MistralForCausalLM, MistralConfig(**SIZES, **LLAMA, sliding_window=40))


def gemma():
    """Two local layers with a window of 40, and a global one with rotary positions of its own."""
    kinds = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "query_pre_attn_scalar": 12}
    sizes = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    return made(Gemma3ForCausalLM, Gemma3TextConfig(**SIZES, **sizes, **kinds, sliding_window=40))


def tokens(rows=1, time=TIME):
    return torch.randint(3, VOCAB, (rows, time), generator=stream(0, "tokens"))


def logits(model, ids, word=None, **options):
    if word is None:
        return model(ids, use_cache=False).logits
    with sparse(model, attention.parse(word), **options):
        return model(ids, use_cache=False).logits


NUMBERS = [
    torch.rand(TIME, 2, generator=stream(0, "attention", "random_evict", layer)).tolist() for layer in range(LAYERS)
]
RULES = {
    "h2o": {"score": "received", "layer": False, "latest": 0.5},
    "tova": {"score": "present query", "layer": True},
    "keydiff": {"score": "unlike the mean", "layer": False},
    "knorm": {"score": "short", "layer": False, "skips": (0, 1)},
    "knorm:skip_layers=": {"score": "short", "layer": False},
    "random_evict": {"score": "drawn", "layer": False, "first": 4, "latest": 0.5, "numbers": NUMBERS},
    "per_layer": {"score": "received", "layer": False, "latest": 0.5, "shares": [1.5, 1.0, 0.5]},
    "per_layer:method=tova:first=0.5:last=1.5": {"score": "present query", "layer": True, "shares": [0.5, 1.0, 1.5]},
    "window": {"score": "age", "layer": False},
    "streaming_llm": {"score": "age", "layer": False, "first": 4},
}


def test_every_evict_method_is_compared_with_a_real_cache():
    elsewhere = {"duo"}  # test_calibration.py
    assert {name for name in METHODS if issubclass(attention[name], Evict)} <= set(RULES) | elsewhere


ALONE = [word for word, rule in RULES.items() if {"skips", "shares"} & set(rule)]
"""Caches of their layers differ in length; those of all other rules are rows of one cache."""


@pytest.mark.parametrize(
    "words", [[word for word in RULES if word not in ALONE], *([word] for word in ALONE)], ids=", ".join
)
def test_one_pass_is_token_by_token_eviction_with_a_real_cache(words, llama):
    # Beyond the scores that are computed at once, and within; budgets of layers are up to 60 slots here.
    ids = tokens(time=48 if words == ["knorm"] else 72)
    for slots in (10, 40):
        expected = real_cache.logits(llama, ids[0], [RULES[word] for word in words], slots)
        for word, own in zip(words, expected, strict=True):
            assert_are(own, logits(llama, ids, word, slots=slots)[0], word)


def assert_are(expected, found, word):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4, msg=lambda said: f"{word}: {said}")


def test_the_chunked_protocol_is_eviction_from_a_real_cache_after_every_chunk(llama):
    words = ["h2o", "tova", "keydiff", "knorm:skip_layers=", "random_evict"]
    ids, chunk, slots = tokens(time=72), 7, 12
    expected = real_cache.logits(llama, ids[0], [RULES[word] for word in words], slots, chunk=chunk)
    (skipping,) = real_cache.logits(llama, ids[0], [RULES["knorm"]], slots, chunk=chunk)
    for word, own in [*zip(words, expected, strict=True), ("knorm", skipping)]:
        assert_are(own, logits(llama, ids, word, slots=slots, chunk=chunk)[0], word)
        assert (own - logits(llama, ids, word, slots=slots)[0]).abs().max() > 0.1, f"{word}: as after every token"


def test_the_prefix_protocol_evicts_once(llama, monkeypatch):
    words = ["h2o", "tova", "random_evict", "window", "streaming_llm"]
    ids, prefix, slots = tokens(time=80), 64, 12

    class Once(real_cache.Layer):
        def keep(self, t, keys):
            return super().keep(t, keys) if t == prefix - 1 else [list(range(len(one))) for one in self.positions]

    monkeypatch.setattr(real_cache, "Layer", Once)
    expected = real_cache.logits(llama, ids[0], [RULES[word] for word in words], slots)
    for word, own in zip(words, expected, strict=True):
        assert_are(own, logits(llama, ids, word, slots=slots, prefix=prefix)[0], word)


@pytest.mark.parametrize("slots", [6, 30])
def test_positions_inside_the_cache_are_those_of_a_cache_of_keys_not_yet_turned(slots, llama):
    ids, word = tokens(time=64), "streaming_llm:num_sink_tokens=3"
    expected = real_cache.logits_in_cache(llama, ids[0], sinks=3, slots=slots)
    torch.testing.assert_close(logits(llama, ids, word, slots=slots, positions="cache")[0], expected, rtol=0, atol=1e-4)
    assert (expected - logits(llama, ids, word, slots=slots)[0]).abs().max() > 0.1
    window = [logits(llama, ids, "window", slots=slots, positions=p) for p in ("absolute", "cache")]
    torch.testing.assert_close(*window, rtol=0, atol=1e-6)


@pytest.mark.parametrize("build", [mistral, gemma])
def test_sinks_stay_in_sight_of_a_sliding_window_that_counts_places_of_the_cache(build):
    """Up to a cache as long as the model's window of 40, the query's own key included; beyond it they are hidden."""
    model, ids, word, sizes = build(), tokens(time=64), "streaming_llm:num_sink_tokens=3", (6, 30, 39, 50)
    expected = real_cache.logits_in_sliding_cache(model, ids[0], sinks=3, sizes=sizes)
    for slots, own in zip(sizes, expected, strict=True):
        with sparse(model, attention.parse(word), slots=slots, positions="cache") as usage:
            found = model(ids, use_cache=False).logits[0]
        assert_are(own, found, slots)
        assert (usage.hidden > 0) == (slots >= 40) and usage.attended <= usage.visible
        plain = logits(model, ids, "window", slots=slots)[0]
        assert (build is gemma or slots >= 40) or (found - plain).abs().max() > 0.1, "the sinks were hidden"


def test_the_oracle_of_sliding_windows_is_that_of_plain_models_where_there_is_none(llama):
    ids = tokens(time=48)
    wide = made(MistralForCausalLM, MistralConfig(**SIZES, **LLAMA, sliding_window=TIME))
    wide.load_state_dict(llama.state_dict())
    expected = real_cache.logits_in_cache(llama, ids[0], sinks=3, slots=30)
    (found,) = real_cache.logits_in_sliding_cache(wide, ids[0], sinks=3, sizes=[30])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("word", ["streaming_llm", "local_strided:local_window=8:stride=8"])
def test_keys_that_a_sliding_window_hides_from_a_pattern_are_counted(word, llama):
    """So that a row can say that sinks, or columns, were not there; padding does not count."""
    ids = tokens()
    for model, hides in ((mistral(), True), (llama, False)):
        with sparse(model, attention.parse(word), slots=30) as usage:
            model(ids, use_cache=False)
        assert (usage.hidden > 0) == hides
    mask = torch.ones_like(ids)
    mask[:, :19] = 0
    with sparse(llama, attention.parse(word), slots=30) as usage:
        llama(ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0), use_cache=False)
    assert usage.hidden == 0


@pytest.mark.parametrize("build", [gpt2, mistral], ids=["gpt2", "mistral"])
def test_keeping_everything_is_the_model_itself(build):
    model, ids = build(), tokens(2)
    plain = logits(model, ids)
    for name in METHODS:
        torch.testing.assert_close(logits(model, ids, name, sparsity=0.0), plain, rtol=0, atol=1e-4)


def test_keeping_everything_is_the_model_itself_for_every_method_with_shared_keys(llama):
    ids = tokens(2)
    plain = logits(llama, ids)
    for name in METHODS:
        for budget in ({"sparsity": 0.0}, {"slots": TIME}):
            torch.testing.assert_close(logits(llama, ids, name, **budget), plain, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_later_tokens_change_no_bit_of_earlier_logits(name, llama):
    word = name + {"quest": ":dense_layers=0:page_size=4", "cab_v3": ":block_size=8", "cab_v4": ":block_size=8"}.get(
        name, ""
    )
    prefix = {"prefix": 48} if issubclass(attention[name], Prefix) else {}
    snapkv = "(snapkv:window_size=8)"
    word += {"snapkv": ":window_size=8", "lagkv": ":lag_size=8", "simlayerkv": ":threshold=0.4"}.get(name, "")
    word += f":method={snapkv}" if name in ("pyramid", "ada", "chunkkv") else ""
    ids = tokens()
    changed = torch.cat([ids[:, :70], tokens(2)[1:, 70:]], dim=1)
    one, other = (logits(llama, x, word, sparsity=0.5, **prefix)[:, :70] for x in (ids, changed))
    assert torch.equal(one, other)
    assert name == "dense" or (one - logits(llama, ids)[:, :70]).abs().max() > 1e-3, "nothing was left out"


def test_a_sliding_window_stays_the_model_s_own():
    model, ids = mistral(), tokens()
    changed = ids.clone()
    changed[:, 0] = 3 + (ids[:, 0] - 2) % (VOCAB - 3)
    # Sinks would carry the first token to every query. The model's window hides it from place 40 on, and three layers
    # of 8 latest keys carry it some 24 places further.
    one, other = (logits(model, x, "streaming_llm:num_sink_tokens=2", slots=10) for x in (ids, changed))
    assert not torch.equal(one[:, :40], other[:, :40]) and torch.equal(one[:, 70:], other[:, 70:])
    with sparse(model, "streaming_llm", slots=60) as usage:
        model(ids, use_cache=False)
    assert usage.visible == LAYERS * 4 * sum(min(t + 1, 40) for t in range(TIME)) and usage.attended == usage.visible


@pytest.mark.parametrize("word", ["h2o", "streaming_llm", "tova", "oracle_topk"])
def test_padding_in_front_changes_nothing(word, llama):
    ids, pad = tokens(2), 19
    padded = torch.cat([torch.zeros(2, pad, dtype=torch.long), ids], dim=1)
    seen = torch.ones_like(padded)
    seen[:, :pad] = 0
    places = (seen.cumsum(-1) - 1).clamp(min=0)
    with sparse(llama, word, slots=20):
        alone = llama(ids, use_cache=False).logits
        beside = llama(padded, attention_mask=seen, position_ids=places, use_cache=False).logits
    torch.testing.assert_close(beside[:, pad:], alone, rtol=0, atol=1e-9)
    shares = nullcontext() if word == "oracle_topk" else pytest.raises(UserError, match="padded in front")
    with sparse(llama, word, sparsity=0.5), shares:
        llama(padded, attention_mask=seen, position_ids=places, use_cache=False)


def test_lanes_of_one_pass_are_the_methods_alone(llama):
    words = ["h2o", "window", "streaming_llm", "tova", "oracle_topk", "dense"]
    ids = tokens(2)
    lanes = [Lane(attention.parse(word), Budget(slots=slots)) for word in words for slots in (8, 30)]
    lanes.append(Lane(attention.parse("streaming_llm"), Budget(slots=20), positions="cache"))
    with sparse_lanes(llama, lanes) as usages:
        together = llama(ids.repeat(len(lanes), 1), use_cache=False).logits.chunk(len(lanes))
    for lane, found, usage in zip(lanes, together, usages, strict=True):
        with sparse_lanes(llama, [lane]) as (own,):
            torch.testing.assert_close(found, llama(ids, use_cache=False).logits, rtol=0, atol=1e-9)
        assert usage == own


def test_the_model_is_put_back_on_leaving_and_by_an_error(llama):
    ids = tokens()
    plain = logits(llama, ids)
    before = llama.config._attn_implementation
    with pytest.raises(BudgetTooSmall):
        logits(llama, ids, "streaming_llm", slots=2)
    with pytest.raises(RuntimeError, match="on purpose"), sparse(llama, "window", slots=2):
        raise RuntimeError("on purpose")
    assert llama.config._attn_implementation == before and not llama._forward_hooks and not llama.model._forward_hooks
    assert torch.equal(logits(llama, ids), plain)


def test_an_attention_of_its_own_is_refused_with_and_without_logits():
    """The study runs the body alone."""
    model = own_llama()
    for layer in model.model.layers:
        layer.self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with sparse(model, "window", slots=4):
        for part in (model, model.model):
            with pytest.raises(UserError, match="asked for attention"):
                part(tokens(), use_cache=False)


def test_a_block_inside_another_takes_over_until_it_ends(llama):
    ids = tokens()
    with sparse(llama, "window", slots=4):
        outer = llama(ids, use_cache=False).logits
        with sparse(llama, "window", slots=30):
            inner = llama(ids, use_cache=False).logits
        assert torch.equal(llama(ids, use_cache=False).logits, outer)
    assert torch.equal(inner, logits(llama, ids, "window", slots=30)) and not torch.equal(inner, outer)


def test_what_cannot_be_scored_is_refused(llama):
    ids = tokens()
    with sparse(llama, "h2o", slots=8), pytest.raises(UserError, match="use_cache=False"):
        llama.generate(ids, max_new_tokens=2, do_sample=False, pad_token_id=0)
    with pytest.raises(UserError, match="for streaming_llm and window alone"):
        logits(llama, ids, "h2o", slots=8, positions="cache")
    with pytest.raises(UserError, match="rotary"):
        logits(gpt2(), ids, "streaming_llm", slots=8, positions="cache")
    with pytest.raises(UserError, match="evicts nothing"):
        logits(llama, ids, "window", slots=8, chunk=4)
    with pytest.raises(UserError, match="selects anew"):
        logits(llama, ids, "oracle_topk", slots=8, prefix=40)
    with pytest.raises(UserError, match="does not use transformers' attention interface"):
        bloom = made(BloomForCausalLM, BloomConfig(vocab_size=VOCAB, hidden_size=16, n_layer=1, n_head=2))
        logits(bloom, ids, "h2o", slots=8)


def test_a_model_that_is_not_there_is_one_line_that_names_what_is():
    with pytest.raises(UserError, match=r"cannot load the model '/no/such/model'.*--quick-test --offline"):
        load_model("/no/such/model")
    with pytest.raises(UserError, match="choose auto, float16, bfloat16, float32"):
        load_model("gpt2", dtype="int8")


def test_a_folder_loads_as_it_was_saved(llama, tmp_path):
    llama.save_pretrained(tmp_path)
    model, ids = load_model(str(tmp_path)), tokens()
    assert model.dtype == torch.float32
    torch.testing.assert_close(logits(model, ids).double(), logits(llama, ids), rtol=0, atol=1e-2)


def test_any_byte_of_the_weights_makes_another_model(tmp_path):
    weights = bytearray(5 * 2**20)
    (tmp_path / "model.safetensors").write_bytes(weights)
    before = fingerprint(str(tmp_path))
    weights[len(weights) // 2] = 1
    (tmp_path / "model.safetensors").write_bytes(weights)
    os.utime(tmp_path / "model.safetensors", (1, 1))
    assert fingerprint(str(tmp_path)) != before and fingerprint("smollm2-135m") is None


def test_a_model_loaded_first_leaves_device_contexts_whole(tmp_path):
    """Transformers replaces torch.linspace while it loads, the moment at which torch may list its constructors."""
    gpt2().save_pretrained(tmp_path)
    torch.utils._device._device_constructors.cache_clear()
    load_model(str(tmp_path))
    with torch.device("meta"):
        assert torch.linspace(0, 1, 4).is_meta


def test_eviction_works_where_gradients_are_on_and_they_go_through(llama):
    """As a user calls it, and as one would train through a cache: which keys leave is not differentiated."""
    ids = tokens()
    expected = logits(llama, ids, "h2o", slots=16)
    embedded = llama.get_input_embeddings()(ids).detach().requires_grad_()
    with sparse(llama, "h2o", slots=16):
        found = llama(inputs_embeds=embedded, use_cache=False).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    found.square().mean().backward()
    assert embedded.grad.abs().sum() > 0
