"""The calibration of heads: measured as a slow computation does, stored, and read by the next run."""

import json

import pytest
import token_loop
import torch

from assay.attention import attention
from assay.data import places
from assay.models import calibration
from assay.models.calibration import RECENT, SINKS, TOKENS, head_scores, identity
from assay.models.causal_lm import sparse
from assay.nn.random import initialised_from, stream

transformers = pytest.importorskip("transformers")


def built(seed=0):
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(
        **sizes, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.4, attn_implementation="eager"
    )
    with initialised_from(seed, "calibration"):
        return transformers.LlamaForCausalLM(config).double().eval().requires_grad_(False)


def slowly(model):
    """Scores from the weights that transformers itself gives, head by head."""
    ids = torch.randint(50, (1, TOKENS), generator=stream(0, "calibration")).repeat(1, 2)
    out = model.model(ids, use_cache=False, output_attentions=True, output_hidden_states=True)
    near = torch.tensor([[j < SINKS or t - j <= RECENT for j in range(2 * TOKENS)] for t in range(2 * TOKENS)])
    scores = []
    for block, weights, hidden in zip(model.model.layers, out.attentions, out.hidden_states, strict=False):
        values = block.self_attn.v_proj(block.input_layernorm(hidden))[0].unflatten(-1, (2, 8))
        lost, whole = [0.0, 0.0], [0.0, 0.0]
        for head in range(4):
            full, few = weights[0, head], weights[0, head] * near
            outputs = [w @ values[:, head // 2] for w in (full, few / few.sum(-1, keepdim=True))]
            lost[head // 2] += float((outputs[0] - outputs[1])[TOKENS:].square().sum())
            whole[head // 2] += float(outputs[0][TOKENS:].square().sum())
        scores.append([a / b for a, b in zip(lost, whole, strict=True)])
    return torch.tensor(scores)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    return tmp_path / "heads"


def test_a_head_s_score_is_what_its_output_loses(cache):
    model = built()
    found = head_scores(model)
    torch.testing.assert_close(found, slowly(model), rtol=1e-5, atol=1e-6)
    assert found.max() > 1.05 * found.min() and places.cache() == cache.parent


def test_scores_are_stored_and_another_process_reads_them(cache, monkeypatch):
    found = head_scores(built())
    [path] = cache.iterdir()
    assert json.loads(path.read_text())["scores"] == found.tolist()
    with monkeypatch.context() as patch:
        patch.setattr(calibration, "measured", lambda model: pytest.fail("measured again"))
        assert torch.equal(head_scores(built()), found)
        with pytest.raises(pytest.fail.Exception):
            head_scores(built(seed=1))
    path.write_text("{")
    assert torch.equal(head_scores(built()), found), "a broken file is measured again"
    assert json.loads(path.read_text())["scores"] == found.tolist()


def test_any_other_weights_precision_or_config_have_another_file():
    one, same, other, half = built(), built(), built(seed=1), built().float()
    assert identity(one) == identity(same)
    assert len({identity(model) for model in (one, other, half)}) == 3


def test_duo_is_a_cache_that_is_cut_head_by_head(cache):
    model, ids = built(), torch.randint(50, (1, 40), generator=stream(0, "ids"))
    with sparse(model, attention.parse("duo:num_sink_tokens=2:recent=6"), slots=16) as usage:
        found = model(ids, use_cache=False).logits[0]
    best = int(head_scores(model).argmax())  # 4 heads x (16 - 8) / (40 - 8) is one of them
    slots = [[40 if 2 * layer + head == best else 8 for head in range(2)] for layer in range(2)]
    expected = token_loop.streaming(model, ids[0], sinks=2, slots=slots)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert usage.vectors_stored == 2 * (40 + 3 * 9)
