"""The loss of every lane is the loss of the model run alone, under that method, on that window."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from assay.attention import attention
from assay.attention.base import Budget
from assay.attention.lanes import Lane
from assay.core.errors import UserError
from assay.data.text import load_corpus
from assay.models.causal_lm import load_model, load_tokenizer, sparse, sparse_lanes
from assay.studies.perplexity.scoring import Pass, Scorer, metrics
from assay.studies.perplexity.windows import spans_of, windows_of


@pytest.fixture(scope="module")
def model(tiny):
    return load_model(str(tiny))


@pytest.fixture(scope="module")
def spans(tiny, text):
    return spans_of(load_corpus(str(text)), load_tokenizer(str(tiny)), longest=64, max_samples=5, max_windows=2)


def lane(word, **budget):
    return Lane(attention.parse(word), Budget(**budget))


LANES = [
    lane("dense", sparsity=0.0),
    lane("h2o", slots=10),
    lane("h2o", sparsity=0.0),
    lane("window", slots=10),
    lane("tova", sparsity=0.9),
    lane("dense", slots=3),
]


@pytest.fixture(scope="module")
def tallies(model, spans):
    windows = windows_of(spans.found, context=64, bos=0)
    going = Pass(LANES, context=64, clusters=len(spans.found))
    *_, done = going.run(Scorer(model), windows, batch=3)
    assert done == sum(len(span.tokens) for span in spans.found) // 64
    return [going.tally(lane) for lane in LANES]


def test_losses_and_kl_are_those_of_the_model_alone(model, spans, tallies):
    for chosen, tally in zip(LANES, tallies, strict=True):
        nll, kl = ([0.0] * len(spans.found) for _ in range(2))
        for window in windows_of(spans.found, context=64, bos=0):
            with torch.no_grad():
                dense = model(window.inputs[None], use_cache=False).logits[0].log_softmax(-1)
                with sparse(model, chosen.method, **vars(chosen.budget)):
                    own = model(window.inputs[None], use_cache=False).logits[0].log_softmax(-1)
            nll[window.span] += cross_entropy(own, window.targets, reduction="sum").item()
            kl[window.span] += (dense.exp() * (dense - own)).sum().item()
        assert tally.sums["nll"] == pytest.approx(nll, abs=5e-3)
        assert tally.sums["kl"] == pytest.approx(kl, abs=5e-3)
        assert tally.sums["tokens"] == [len(span.tokens) for span in spans.found]


def test_lanes_that_keep_everything_are_one(tallies):
    dense, h2o, everything, window, _, also_dense = tallies
    assert everything is dense and also_dense is dense and h2o is not window
    assert dense.usage.attended == dense.usage.visible and h2o.usage.attended == window.usage.attended


def test_what_is_resident_and_read_is_the_cache(model, spans, tallies):
    everything = range(len(spans.found))
    found = metrics(tallies[1], spans, only=everything, model=model, method=attention.parse("h2o"))
    windows = sum(len(span.tokens) for span in spans.found) // 64
    per_token = 2 * 2 * 2  # layers, heads of keys, key and value
    assert found["usage"]["vectors_stored"] == windows * per_token * 11
    assert found["usage"]["vectors_read"] == windows * per_token * sum(min(t, 10) + 1 for t in range(64))
    assert found["usage"]["attention_flops"] == 4 * 8 * found["usage"]["attended"] and found["vector_bytes"] == 32
    assert found["dtype"] == "float32"
    weighed = metrics(tallies[1], spans, only=everything, model=model, method=attention.parse("oracle_topk"))["usage"]
    assert weighed["attention_flops"] == 2 * 8 * (weighed["visible"] + weighed["attended"]), "every key, then the best"


def test_a_curve_by_place_counts_every_token(tallies, spans):
    tokens = sum(len(span.tokens) for span in spans.found)
    assert sum(tallies[0].by_place["tokens"]) == tokens and tallies[0].by_place["tokens"][:4] == [10, 10, 20, 40]


def changed_logits(model, monkeypatch, change):
    plain = type(model).forward

    def changed(self, *args, **kwargs):
        out = plain(self, *args, **kwargs)
        out.logits = change(out.logits)
        return out

    monkeypatch.setattr(type(model), "forward", changed)


def test_a_model_that_scales_and_caps_its_logits_is_scored_by_what_it_gives(model, spans, monkeypatch):
    changed_logits(model, monkeypatch, lambda logits: 3 * torch.tanh(logits / 6))
    window = next(windows_of(spans.found, context=64, bos=0))
    with sparse_lanes(model, LANES[:1]):
        [(_, _, nll, _, _)] = Scorer(model)(LANES[:1], [window])
    with torch.no_grad():
        logits = model(window.inputs[None], use_cache=False).logits[0]
    torch.testing.assert_close(nll, cross_entropy(logits, window.targets, reduction="none"), rtol=0, atol=1e-5)


def test_a_model_whose_logits_need_more_than_a_hidden_state_is_refused(model, monkeypatch):
    changed_logits(model, monkeypatch, lambda logits: logits.cumsum(1))
    with pytest.raises(UserError, match="of more than its hidden state"):
        Scorer(model)
