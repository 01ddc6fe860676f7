"""Key tokens: which they are, against one pass of the model per token, and their loss in the table."""

import pytest
import torch

import assay
from assay.attention import attention
from assay.core.errors import UserError
from assay.studies.perplexity import key_tokens as module
from assay.studies.perplexity.key_tokens import GAIN, LIKELY, key_tokens
from assay.studies.perplexity.perplexity import Perplexity
from assay.studies.perplexity.scoring import Scorer
from assay.studies.perplexity.windows import Window

pytestmark = pytest.mark.usefixtures("undrawn")


def loss(model, ids, target):
    with torch.no_grad():
        return -model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)[target].item()


def by_hand(model, window, short):
    """One pass of the model for each token and each of its two contexts."""
    bos, targets, step = int(window.inputs[0]), window.targets.tolist(), short // 4
    found = []
    for i, target in enumerate(targets):
        block = short + (i - short) // step * step  # the short context begins anew every `step` tokens
        long = loss(model, [bos, *targets[:i]], target)
        near = loss(model, [bos, *targets[block - short : i]], target) if i >= short else long
        found.append(near - long > module.GAIN and -long > module.LIKELY)
    return found


@pytest.mark.parametrize(("length", "short"), [(50, 16), (48, 16), (37, 8)])
def test_key_tokens_are_those_of_a_loop_over_tokens(tiny, monkeypatch, length, short):
    """A model of random weights has few by the published thresholds, so lower ones are tried."""
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(module, "GAIN", 0.2)
    monkeypatch.setattr(module, "LIKELY", -5.6)
    model = AutoModelForCausalLM.from_pretrained(tiny)
    scorer = Scorer(model)
    ids = torch.randint(1, 200, (length + 1,), generator=torch.Generator().manual_seed(0))
    every = torch.ones(length, dtype=torch.bool)
    window = Window(0, ids[:-1], ids[1:], every, ~every)
    dense = torch.tensor([loss(model, ids[: i + 1].tolist(), int(ids[i + 1])) for i in range(length)])
    expected = by_hand(model, window, short)
    assert key_tokens(scorer, window, dense, short=short).tolist() == expected
    assert 0 < sum(expected) < length - short and not any(expected[:short])


def test_the_thresholds_are_those_of_the_paper():
    assert (GAIN, LIKELY) == (2.0, -2.0)


@pytest.fixture(scope="module")
def options(tiny, text):
    return {
        "model": str(tiny), "datasets": (str(text),), "methods": ("window",), "budgets": (20,), "sparsity_levels": (),
        "context_lengths": (64,), "max_samples": ("3",), "max_windows": 1,
    }  # fmt: skip


def test_the_loss_of_key_tokens_is_a_number_of_every_method(options, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "GAIN", 0.2)
    monkeypatch.setattr(module, "LIKELY", -5.6)
    place = {"out": tmp_path, "executor": "serial", "device": "cpu"}
    records = assay.run("perplexity", key_tokens=16, **options, **place).records
    by_method = {name: [r.metrics["sums"] for r in records if r.run.options["method"]["name"] == name]
                 for name in ("dense", "window")}  # fmt: skip
    keys = {name: [s["keys"] for s in sums] for name, sums in by_method.items()}
    assert keys["dense"] == keys["window"] and sum(map(sum, keys["dense"])) > 0, "the tokens are the same for all"
    losses = {name: sum(sum(s["key_nll"]) for s in sums) for name, sums in by_method.items()}
    assert losses["dense"] < losses["window"]


def test_runs_without_key_tokens_have_no_such_option(options):
    given = {**options, "methods": (attention.parse("window"),)}
    plain, asked = (Perplexity(**given, key_tokens=short).plan() for short in (0, 16))
    assert not {run.id for run in plain} & {run.id for run in asked}
    assert all("key_tokens" not in run.options for run in plain)


def test_a_short_context_that_is_not_shorter_is_refused():
    with pytest.raises(UserError, match="--key-tokens 64: give fewer than the longest context, 64"):
        Perplexity(context_lengths=(64,), key_tokens=64)


def test_the_table_has_a_column(cli, options, tmp_path):
    words = ["perplexity", "--model", options["model"], "--datasets", options["datasets"][0], "--methods", "window"]
    more = "--budgets 20 --no-sparsity-sweep --context-lengths 64 --max-samples 3 --max-windows 1 --key-tokens 8"
    place = ["--executor", "serial", "--device", "cpu", "--out", tmp_path]
    code, _, err = cli(*words, *more.split(), *place)
    assert code == 0, err
    import json

    document = json.loads((tmp_path / "perplexity" / "perplexity_latest.json").read_text())
    (methods,) = document["results"].values()
    assert "key_tokens" in methods["window"]["budget_sweep"]["20"]
