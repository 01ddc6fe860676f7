"""Every architecture of the table in docs/perplexity.md runs exactly, or is refused in one line, as the table says."""

from functools import cache

import pytest
import token_loop
import torch
from torch.nn.functional import cross_entropy

from assay.attention import attention
from assay.core.errors import UserError
from assay.models.causal_lm import sparse
from assay.models.layout import model_layout
from assay.models.reader import Reader

NAMES = (
    "GPT-2", "OPT", "Llama", "Llama, YaRN", "Llama, dynamic NTK", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Gemma",
    "Gemma 2", "Gemma 3", "Phi-3", "GPT-NeoX", "OLMo 2", "StarCoder2", "DeepSeek-V3", "SmolLM3", "gpt-oss", "Falcon",
    "Falcon, the 40B's form", "Falcon with ALiBi", "Cohere", "Cohere 2", "Granite", "Llama 4", "LFM2", "Qwen3-Next",
    "Jamba", "GPT-J", "BLOOM", "Mamba",
)  # fmt: skip
REFUSED = {"Falcon with ALiBi", "GPT-J", "BLOOM", "Mamba"}
NO_CACHE_POSITIONS = REFUSED | {"GPT-2", "OPT", "Llama, dynamic NTK", "Llama 4", "Jamba"}
EVERY_TIME = {
    "Llama", "Llama, YaRN", "Llama, dynamic NTK", "Gemma 2", "Gemma 3", "GPT-NeoX", "OPT", "DeepSeek-V3", "SmolLM3",
    "gpt-oss", "Falcon", "Falcon, the 40B's form", "Granite", "Llama 4", "LFM2",
}  # fmt: skip
"""One of every kind; the others, which are like one of these, belong to the slow tests."""
SLOTS = 8
TOLERANCE = {"Qwen3-Next": 1e-3}
"""Of logits. That model's own recurrence is computed in float32, in other pieces for a whole text than for a token."""


def each(*without):
    """The architectures as parameters of a test."""
    return [
        name if name in EVERY_TIME | REFUSED else pytest.param(name, marks=pytest.mark.slow)
        for name in NAMES
        if name not in without
    ]


@pytest.fixture(scope="module")
def page(script):
    pytest.importorskip("transformers")
    return script("docs/models_perplexity.py")


@pytest.fixture(scope="module")
def table(page):
    """The rows of the page, and the reasons under them."""
    text = page.PAGE.read_text(encoding="utf-8")
    lines = text.partition("<!-- models: begin -->")[2].partition("<!-- models: end -->")[0].strip().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    reasons = [line.partition(". ")[2] for line in lines if line[:1].isdigit()]
    assert cells[0] == ["architecture", *page.FAMILIES]
    return {name: row for name, *row in cells[2:]}, reasons


def test_the_table_has_these_architectures(page, table):
    assert tuple(page.MODELS) == tuple(table[0]) == NAMES


@pytest.mark.parametrize("name", each())
def test_the_page_says_what_runs_and_why_the_rest_does_not(page, table, name):
    rows, reasons = table
    for (family, found), cell in zip(page.outcomes(page.built(name)).items(), rows[name], strict=True):
        shown = "runs" if cell == "runs" else reasons[int(cell.removeprefix("refused (").removesuffix(")")) - 1]
        assert found == shown, f"{family}: run python docs/models_perplexity.py"
    assert ("runs" not in rows[name]) == (name in REFUSED)
    assert (rows[name][-1] == "runs") == (name not in NO_CACHE_POSITIONS)


@pytest.fixture(scope="module")
def precise(page):
    """An architecture in float64, and what is found of its layout, for all tests that leave it as it is."""
    return cache(lambda name: page.built(name, torch.float64))


@torch.no_grad()
@pytest.mark.parametrize("name", each(*REFUSED))
def test_dense_is_the_model_s_own_forward_pass_and_h2o_a_cache_that_is_cut(page, precise, name):
    model, ids = precise(name), page.tokens()
    own, reader = model(ids, use_cache=False).logits[0], Reader(model)
    with sparse(model, attention.parse("dense")) as usage:
        dense = reader.logits(reader.body(ids, use_cache=False)[0])[0]
    losses = [cross_entropy(logits[:-1], ids[0, 1:], reduction="none") for logits in (dense, own)]
    torch.testing.assert_close(*losses, rtol=0, atol=1e-5)
    assert usage.attended == usage.visible
    with sparse(model, attention.parse("h2o"), slots=SLOTS):
        found = model(ids, use_cache=False).logits[0]
    expected = token_loop.h2o(model, ids[0], slots=SLOTS)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE.get(name, 1e-4))
    assert (found - own).abs().max() > 1e-2, "nothing was evicted"


@torch.no_grad()
@pytest.mark.parametrize("name", each(*NO_CACHE_POSITIONS))
def test_cache_positions_are_those_at_which_the_model_itself_reads_a_key(page, precise, name):
    model, ids = precise(name), page.tokens()
    streaming, absolute = (
        logits_of(model, ids, "streaming_llm:num_sink_tokens=3", slots=SLOTS, positions=positions)
        for positions in ("cache", "absolute")
    )
    expected = token_loop.streaming_in_cache(model, ids[0], sinks=3, slots=SLOTS)
    torch.testing.assert_close(streaming, expected, rtol=0, atol=TOLERANCE.get(name, 1e-4))
    assert (streaming - absolute).abs().max() > 1e-2, "positions are those of the text"


def logits_of(model, ids, word, **options):
    with sparse(model, attention.parse(word), **options):
        return model(ids, use_cache=False).logits[0]


@pytest.mark.parametrize(("name", "layers"), [("LFM2", 1), ("Qwen3-Next", 2), ("Jamba", 1), ("Llama", 3)])
def test_layers_that_do_not_attend_have_no_slots_and_no_bytes(page, name, layers):
    model, ids = page.built(name), page.tokens()
    assert len(model_layout(model).turns) == layers
    for word in ("h2o", "per_layer"):
        with torch.no_grad(), sparse(model, attention.parse(word), slots=SLOTS) as usage:
            model(ids, use_cache=False)
        heads = model.config.num_key_value_heads
        assert usage.vectors_stored == 2 * heads * layers * (SLOTS + 1), word


def test_a_layer_s_vectors_are_as_wide_as_they_are_kept(page):
    """The keys of DeepSeek are wider than its values, and neither is what its config calls head_dim."""
    assert model_layout(page.built("DeepSeek-V3")).vector == (12 + 8) / 2
    assert model_layout(page.built("Llama")).vector == 8


def test_dropout_is_off_while_a_model_is_looked_at_and_on_again_after_it(page):
    model = page.built("Phi-3").train()
    model.model.norm.eval()
    drawn = torch.random.get_rng_state()
    model_layout(model)
    assert model.training and not model.model.norm.training and torch.equal(torch.random.get_rng_state(), drawn)


def test_expected_attention_says_that_it_knows_no_cap(page):
    with pytest.raises(UserError, match="expected_attention: this model caps its scores"):
        logits_of(page.built("Gemma 2"), page.tokens(), "expected_attention", slots=SLOTS, prefix=16)
