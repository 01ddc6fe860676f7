"""`--generate`: the text of real decoding beside what the replay predicts, and beside transformers' own."""

import pytest
import torch

import assay
from assay.core.errors import UserError
from assay.studies.perplexity.generating import agreement
from assay.studies.perplexity.perplexity import Perplexity

OPTIONS = {
    "methods": ("h2o", "window", "quest"),
    "budgets": (20,),
    "sparsity_levels": (),
    "context_lengths": (64,),
    "max_samples": ("4",),
    "max_windows": 1,
    "generate": 10,
}


@pytest.fixture(scope="module")
def records(tiny, text, tmp_path_factory):
    place = {"out": tmp_path_factory.mktemp("generate"), "executor": "serial", "device": "cpu"}
    found = assay.run("perplexity", model=str(tiny), datasets=(str(text),), **place, **OPTIONS).records
    return {r.run.options["method"]["name"]: r for r in found if "generate" in r.run.options}


def test_every_token_is_the_one_that_the_replay_would_have_chosen(records):
    assert set(records) == {"dense", "h2o", "window", "quest"}
    for name in ("dense", "h2o", "window"):
        metrics = records[name].metrics
        assert metrics["agreed"] == metrics["tokens"] == 40
        cost = records[name].cost
        assert cost["tokens_per_second"] > 0 and cost["tokens_per_cpu_second"] > 0
        assert cost["peak_memory_bytes"] > 1e6
    assert "evicts nothing" in records["quest"].refusal
    vector = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, width, bytes
    assert records["dense"].metrics["kv_bytes"] == 64 * vector
    assert records["h2o"].metrics["kv_bytes"] == records["window"].metrics["kv_bytes"] == 21 * vector


def test_dense_generates_what_transformers_generates(tiny, text, records):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from assay.data.text import load_corpus

    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny), AutoTokenizer.from_pretrained(tiny)
    for number, document in enumerate(load_corpus(str(text)).documents[:4]):
        ids = [tokenizer.bos_token_id, *tokenizer(document, add_special_tokens=False)["input_ids"]][:54]
        ids = torch.tensor([ids])
        found = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False, pad_token_id=0
        )
        assert records["dense"].metrics["generated"][number] == found[0, 54:].tolist()


def test_a_text_that_the_method_would_not_have_written_does_not_agree(tiny, text, records):
    """The agreement can fall: window's text is judged by dense attention's replay, and another token by window's."""
    from assay.core.run import canonical
    from assay.data.text import load_corpus
    from assay.studies.perplexity.execution import lane_of, located, scorer_for, tokenizer_for
    from assay.studies.perplexity.windows import bos_of, spans_of, windows_of

    scorer = scorer_for(canonical(located(str(tiny), None)), "float32", torch.device("cpu"))
    tokenizer = tokenizer_for(str(tiny), None)
    spans = spans_of(load_corpus(str(text), limit=4), tokenizer, longest=64, max_samples=4, max_windows=1)
    window = next(windows_of(spans.found, context=64, bos=bos_of(tokenizer)))
    prompt, own = window.inputs[None, :54], torch.tensor(records["window"].metrics["generated"][:1])
    lanes = {name: lane_of(records[name].run.options) for name in ("dense", "window")}
    assert agreement(scorer, lanes["window"], prompt, own) == 10
    assert agreement(scorer, lanes["dense"], prompt, own) < 10
    assert agreement(scorer, lanes["window"], prompt, (own + 1) % 200) < 10


@pytest.mark.usefixtures("undrawn")
def test_the_table_shows_speed_memory_and_agreement(cli, tiny, text, tmp_path):
    words = f"perplexity --model {tiny} --datasets {text} --methods h2o quest --budgets 20 --no-sparsity-sweep"
    more = "--context-lengths 64 --max-samples 2 --max-windows 1 --generate 4 --executor serial --device cpu"
    code, out, err = cli(*words.split(), *more.split(), "--all-columns", "--out", tmp_path)
    assert code == 0, err
    for shown in ("Tokens/s", "KV kB", "Agreement", "Same as dense", "quest selects anew for each query"):
        assert shown in out
    assert "Perplexity" in out, "the text is scored too"


@pytest.mark.parametrize(
    ("flags", "most"),
    [({}, 63), ({"protocol": "prefix"}, 32), ({"protocol": "chunked", "chunk": 16, "methods": ("h2o",)}, 48)],
)
def test_more_tokens_than_a_context_has_behind_a_prompt_are_refused(flags, most):
    Perplexity(context_lengths=(64,), generate=most, **flags)
    with pytest.raises(UserError, match=f"--generate {most + 1}: a context of 64 tokens has room for 1 to {most} "):
        Perplexity(context_lengths=(64,), generate=most + 1, **flags)
