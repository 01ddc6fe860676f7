"""Probes in the study: the answer's likelihood against a plain computation, the floor, and what the table says."""

import pytest
import torch

import assay
from assay.core.errors import UserError
from assay.studies.perplexity import execution
from assay.studies.perplexity.cells import cells
from assay.studies.perplexity.document import guessed_sweeps
from assay.studies.perplexity.perplexity import Perplexity
from assay.studies.perplexity.probe_report import NOT_DONE, probe_lines

OPTIONS = {
    "datasets": (),
    "probes": ("passkey", "frequent_words"),
    "probe_depths": (0.0, 1.0),
    "probe_samples": 10,
    "methods": ("h2o", "window"),
    "budgets": (40,),
    "sparsity_levels": (),
    "context_lengths": (400,),
}


@pytest.fixture(scope="module")
def records(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("probes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "TOKENS_AT_ONCE", 8000)  # a step of the replay takes as long for two texts as for ten
        return assay.run("perplexity", model=str(tiny), out=out, executor="serial", device="cpu", **OPTIONS).records


def found(records, **asked):
    """The records with these options, of the datasets that are or are not floors."""
    return [r for r in records if all(r.run.options[key]["name"] == value for key, value in asked.items())]


def test_the_loss_of_an_answer_is_that_of_the_model_read_alone(tiny, records):
    """The text is decoded, cut before the answer by hand, and given to the model token by token."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from assay.core.seeds import derive
    from assay.probes import probes
    from assay.probes.base import fitted

    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny), AutoTokenizer.from_pretrained(tiny)
    own = found(records, dataset="probe:passkey", method="dense")
    for floor in (False, True):
        mine = [r for r in own if r.run.options["dataset"]["floor"] is floor]
        sums = {n: [r.metrics["sums"][key][i] for key in ("nll", "tokens", "right", "exact")]
                for r in mine for i, n in enumerate(r.metrics["clusters"])}  # fmt: skip
        assert sorted(sums) == list(range(20))
        for number in (0, 1, 19):
            depth, seed = (0.0, 1.0)[number // 10], derive(42, "probe", "passkey", number)

            def encode(text):
                return tokenizer(text, add_special_tokens=False)["input_ids"]

            sample = fitted(probes.parse("passkey"), encode, length=400, depth=depth, seed=seed, floor=floor)
            ids = [tokenizer.bos_token_id, *sample.tokens]
            assert tokenizer.decode(ids[-6:]) == sample.text.answer
            loss, right = 0.0, 0
            for place in range(len(ids) - 6, len(ids)):
                with torch.no_grad():
                    last = model(torch.tensor([ids[:place]])).logits[0, -1]
                loss -= last.log_softmax(-1)[ids[place]].item()
                right += int(last.argmax()) == ids[place]
            assert sums[number] == [pytest.approx(loss, abs=1e-3), 6.0, right, float(right == 6)]


def test_an_answer_is_decoded_if_and_only_if_all_its_tokens_are_the_likeliest(records):
    """Under an exact replay the two are the same; floors are not decoded."""
    for record in records:
        sums = record.metrics["sums"]
        if record.run.options["dataset"]["floor"]:
            assert "decoded" not in sums
        else:
            assert sums["decoded"] == sums["exact"]


@pytest.mark.parametrize("protocol", ["online", "prefix", "chunked"])
def test_answers_are_decoded_under_every_protocol(tiny, protocol):
    """Whatever the lane generates is called the answer: then it has to be decoded, and with another token it is not."""
    from dataclasses import replace

    from assay.attention import attention
    from assay.attention.base import Budget
    from assay.attention.lanes import Lane
    from assay.core.run import canonical
    from assay.models.causal_lm import sparse_lanes
    from assay.studies.perplexity.execution import located, scorer_for
    from assay.studies.perplexity.scoring import answered
    from assay.studies.perplexity.windows import Window

    scorer = scorer_for(canonical(located(str(tiny), None)), "float32", torch.device("cpu"))
    options = {"online": {}, "prefix": {"prefix": 70}, "chunked": {"chunk": 7}}[protocol]
    lane = Lane(attention.parse("h2o"), Budget(sparsity=0.8), **options)
    ids = torch.randint(200, (101,), generator=torch.Generator().manual_seed(0))
    for place in range(96, 101):  # a token at a time, of the replay of the whole window
        with torch.no_grad(), sparse_lanes(scorer.model, [lane], count=False):
            ids[place] = scorer.model(ids[None, :-1], use_cache=False).logits[0, place - 1].argmax()
    window = Window(0, ids[:-1], ids[1:], torch.arange(100) >= 95, torch.zeros(100, dtype=torch.bool), True, True)
    wrong = ids.clone()
    wrong[-1] = (wrong[-1] + 1) % 200
    other = replace(window, inputs=wrong[:-1], targets=wrong[1:])
    assert [right for *_, right in answered(scorer, [lane], [window, other])] == [True, False]
    assert not list(answered(scorer, [Lane(attention.parse("quest"), Budget(slots=32))], [window]))


def test_every_method_is_asked_at_every_length_and_the_floor_is_dense_alone(records):
    asked = {(r.run.options["dataset"]["name"], r.run.options["method"]["name"], r.run.options["dataset"]["floor"])
             for r in records}  # fmt: skip
    names = {"probe:passkey", "probe:frequent_words"}
    assert asked == {(name, method, False) for name in names for method in ("dense", "h2o", "window")} | {
        (name, "dense", True) for name in names
    }
    depths = {tuple(r.metrics["depths"]) for r in found(records, dataset="probe:frequent_words")}
    assert depths == {(None,) * 10}, "what is asked for is spread over the context: it has no depth"


def test_a_table_of_a_model_that_cannot_do_it_says_nothing_about_methods(records):
    own = cells(found(records, dataset="probe:passkey"))
    lines = probe_lines(own, guessed_sweeps(own))
    assert [line["Method"] for line in lines] == ["dense", "h2o", "window"]
    assert {line["Kept"] for line in lines} == {NOT_DONE}
    assert all(line["Texts"] == 20 and line["Exact"].low == 0.0 < line["Exact"].high for line in lines)


def test_the_share_that_is_kept_lies_between_the_floor_and_dense(records):
    """Made-up numbers: dense loses 1 nat and is right, the floor loses 5, a method in between 2."""
    from dataclasses import replace

    def with_loss(record, nats, right):
        sums = {key: list(values) for key, values in record.metrics["sums"].items()}
        sums["nll"] = [nats * n + 0.01 * i for i, n in enumerate(sums["tokens"])]
        sums["right"] = [right * n for n in sums["tokens"]]
        return replace(record, metrics={**record.metrics, "sums": sums})

    given = []
    for record in found(records, dataset="probe:passkey"):
        options = record.run.options
        nats = (
            5.0 if options["dataset"]["floor"] else {"dense": 1.0, "h2o": 2.0, "window": 5.0}[options["method"]["name"]]
        )
        given.append(with_loss(record, nats, float(nats == 1.0)))
    own = cells(given)
    kept = {line["Method"]: line["Kept"] for line in probe_lines(own, guessed_sweeps(own))}
    assert kept == {"dense": 1.0, "h2o": pytest.approx(0.75, abs=0.01), "window": pytest.approx(0.0, abs=0.01)}


def test_the_command_prints_the_table_and_draws_a_map(cli, tiny, tmp_path):
    words = (
        f"perplexity --model {tiny} --datasets --probes passkey --probe-depths 0 1 --probe-samples 2 --methods window"
    )
    more = (
        "--budgets 40 --no-sparsity-sweep --no-context-sweep --context-lengths 300 400 --executor serial --device cpu"
    )
    code, out, err = cli(*words.split(), *more.split(), "--out", tmp_path)
    assert code == 0 and "warning" not in err, err
    assert "Nats/token" in out and "k=40" in out and "Kept" not in out.split("Nats/token: loss")[0]
    files = {path.name for path in (tmp_path / "perplexity").iterdir()}
    assert any("passkey_depth" in name for name in files), files


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"probes": ("pass",)}, "no probe named 'pass'"),
        ({"probes": ("all",), "probe_depths": (1.5,)}, "--probe-depths: give at least one, each from 0"),
        ({"probes": ("all",), "probe_samples": 0}, "--probe-samples is at least 1"),
        ({"probes": ("all",), "protocol": "chunked", "chunk": 300}, "--chunk 300: for probes at most half"),
    ],
)
def test_flags_that_no_probe_can_take_are_refused(flags, said):
    with pytest.raises(UserError, match=said):
        Perplexity(**flags)


def test_without_a_text_and_without_a_probe_there_is_nothing_to_run(cli, tiny):
    code, _, err = cli("perplexity", "--model", tiny, "--datasets", "--context-lengths", "64", "--dry-run")
    assert code == 2 and "nothing to run" in err


def test_a_context_without_room_for_a_probe_is_refused_before_anything_runs(cli, tiny, tmp_path):
    code, _, err = cli("perplexity", "--model", tiny, "--datasets", "--probes", "passkey", "--context-lengths", "64",
                       "--out", tmp_path, "--executor", "serial", "--device", "cpu")  # fmt: skip
    assert code == 2 and "passkey needs a context of at least" in err and "Traceback" not in err


def test_without_decoding_the_likelihood_is_the_same_and_no_column_is_made_up(tiny, records, tmp_path):
    asked = OPTIONS | {"probes": ("passkey",), "methods": ("window",), "probe_decode": False}
    plain = assay.run("perplexity", model=str(tiny), out=tmp_path, executor="serial", device="cpu", **asked).records
    assert len(plain) == 6 and not {r.run.id for r in plain} & {r.run.id for r in records}
    for record in plain:
        dataset = record.run.options["dataset"]
        assert dataset["decode"] is False and "decoded" not in record.metrics["sums"]
        (twin,) = [
            other for other in records
            if other.run.options == {**record.run.options, "dataset": {k: dataset[k] for k in dataset if k != "decode"}}
        ]  # fmt: skip
        for key in ("nll", "right", "tokens"):
            assert record.metrics["sums"][key] == pytest.approx(twin.metrics["sums"][key], abs=1e-4)
    (first, *_) = probe_lines(cells(plain), guessed_sweeps(cells(plain)))
    assert "Decoded" not in first and first["Nats/token"].mean > 0


def test_the_presets_of_probes_and_decoding_ask_the_field():
    for name in ("methods", "methods-prefix"):
        asked = Perplexity.presets[name]
        probed, decoded = (Perplexity.presets[f"{name}-{kind}"] for kind in ("probes", "decode"))
        assert probed["methods"] == decoded["methods"] == asked["methods"] and probed["budgets"] == asked["budgets"]
        assert not probed["datasets"] and decoded["budgets"] == asked["budgets"][1:2] and decoded["generate"] > 1
