"""The protocol's runs: layers have as many parameters whatever the mixer, stored ids hold, a GPU trains in banks."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from card_toys import TRIED

from assay.api import Execution
from assay.card import cost, protocol
from assay.card.battery import Answer, Trial, wanted
from assay.card.protocol import FIELD, FULL, SCREENING, SMOKE, STANDARD, TIERS, TOLERANCE
from assay.card.question import Question, Tier
from assay.card.running import Runner
from assay.contracts.mixers import LENGTHS
from assay.core import shipped
from assay.core.convert import construct
from assay.core.plan import cohorts
from assay.core.run import Numerics
from assay.mixers import mixers
from assay.models.sequence import Layer, SequenceModel
from assay.nn.shapes import parameter_count
from assay.tasks import tasks

Cli = Callable[..., tuple[int, str, str]]
MATCHED = [(tier, question) for tier in TIERS.values() for question in tier.questions if question.layer_params]


def layer_params(question: Question, mixer: str) -> int:
    told = question.options(mixer, rate=1e-3, seed=0, steps=1)["model"]
    model = construct(SequenceModel, told, what="model")
    length = tasks.parse(question.task).shape().length
    return parameter_count(partial(Layer, model, length), expected=question.layer_params)


@pytest.mark.parametrize(("tier", "question"), MATCHED, ids=[f"{tier.name} {q.name}" for tier, q in MATCHED])
def test_layers_of_every_mixer_have_as_many_parameters(tier: Tier, question: Question) -> None:
    for mixer in FIELD:
        found = layer_params(question, mixer)
        assert abs(found - question.layer_params) <= TOLERANCE * question.layer_params, f"{mixer}: {found}"


def test_a_mixer_that_is_larger_alone_gets_the_narrowest_state_mixer_and_is_not_called_matched() -> None:
    question, mixer = SMOKE.question("copy"), "mamba2:d_state=512"
    model = question.options(mixer, rate=1e-3, seed=0, steps=1)["model"]
    assert model["state_mixer"] == "swiglu:inner=1"
    layers = question.model["num_layers"]
    own = layers * layer_params(question, mixer)
    answer = partial(Answer, mixer, question, {0: 0.5}, rate=1e-3, at_edge=False, tried=TRIED, window=1)
    assert answer(sizes={"layer_params": own}).matched is False
    assert answer(sizes={"layer_params": layers * question.layer_params}).matched is True
    assert answer(sizes={}).matched is None
    assert replace(answer(), question=SMOKE.question("recall"), sizes={"layer_params": own}).matched is None


def test_records_of_recall_and_parity_that_ship_are_runs_of_this_protocol() -> None:
    """Protocols 3 and 4 change neither question, so what protocol 2 trained still answers them."""
    runner = Runner(SMOKE, Execution(device="cpu"), compute=lambda session: [])
    names = {"mqar": "recall", "state_tracking": "parity"}
    there = [
        record
        for record in shipped.records("card.smoke")
        if record.run.options["task"]["name"] in names and not record.run.options["task"].get("updates")
    ]
    assert there
    for record in there:
        options = record.run.options
        question = names[options["task"]["name"]]
        trial = Trial(question, seed=record.run.seed)
        if options["model"] is not None:
            mixer = mixers.load(options["model"]["seq_mixer"]).label
            rate, steps = options["optimizer"]["lr"], options["train"]["max_steps"]
            trial = Trial(question, mixer, rate, record.run.seed, steps)
        assert runner.run_of(trial).id == record.run.id, trial


def test_rates_and_seeds_of_a_question_are_one_bank_on_a_gpu() -> None:
    numerics = Numerics(device="cuda", dtype="bfloat16 autocast", backend="triton")
    runner = Runner(STANDARD, Execution(device="cpu"), compute=lambda session: [], as_computed=numerics)
    for question in STANDARD.questions:
        rates = [runner.run_of(trial) for trial in wanted(STANDARD, question, "delta_net", {})]
        seeds = [runner.run_of(Trial(question.name, "delta_net", 1e-3, seed, question.steps)) for seed in range(5)]
        assert len(cohorts(rates, 1)) == len(cohorts(seeds, 1)) == 1
        assert (len(rates), len(seeds)) == (4, 5)


def short(question: Question) -> Question:
    """The question as it is, on a text that is here, of a narrow model trained for three steps at two rates."""
    few: dict[str, Any] = {"steps": 3, "every": 3, "batch": 2, "eval_size": 2, "rates": question.rates[1:3]}
    task = question.task.replace("corpus=library:sha256=b8a37901ae6c68d0", "corpus=speeches")  # which is not fetched
    return replace(question, task=task, model={**question.model, "model_dim": 16}, goal=None, **few)


KNOWN = {question.task.partition(":")[0] for question in (*SMOKE.questions, *STANDARD.questions)}
ADDED = [question for question in FULL.questions if question.task.partition(":")[0] not in KNOWN]


@pytest.mark.parametrize(
    ("tier", "asked", "matched"),
    [
        (STANDARD, STANDARD.questions, "fuzzy, compression, language"),
        (FULL, ADDED, "noisy, memorization, hops, regression, stream"),
    ],
    ids=["standard", "full"],
)
def test_batteries_of_a_gpu_run_on_a_cpu_where_asked_to(
    tier: Tier, asked: Sequence[Question], matched: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Cli
) -> None:
    monkeypatch.setattr(cost, "LENGTH", 16)
    monkeypatch.setattr(cost, "REPEATS", 1)
    tier = replace(tier, seeds=(0,), questions=tuple(map(short, asked)))
    monkeypatch.setattr(protocol, "TIERS", {tier.name: tier})
    monkeypatch.chdir(tmp_path)
    words = ("card", "base_conv", "--vs", "base_conv", "--tier", tier.name, "--executor", "serial")
    code, out, err = cli(*words, "--device", "cpu", "--own-baselines", "--ship", "made")
    assert code == 0, err
    assert all(f"\n{question.name} " in out for question in tier.questions), out
    assert f"within 2% of the field's ({matched})" in " ".join(out.split())
    there = shipped.records(f"card.{tier.name}", tmp_path / "made")
    assert {record.run.numerics.backend for record in there} == {"torch"}
    assert all(record.status == "done" for record in there)


@pytest.mark.parametrize("mixer", ["", "delta_net"], ids=["references", "mixer"])
def test_runs_of_other_rates_steps_and_seeds_are_as_they_would_be_planned(mixer: str) -> None:
    """One is planned and the others are told from it: each has the id that planning it alone gives."""
    for question in SMOKE.questions:
        trials = [
            Trial(question.name, mixer, rate, seed, steps) for rate, seed, steps in ((1e-3, 100, 500), (0.01, 3, 1500))
        ]
        runner = Runner(SMOKE, Execution(device="cpu"), compute=lambda session: [])
        alone = [replace(runner, _runs={}, _planned={}).run_of(trial) for trial in trials]
        assert [runner.run_of(trial).id for trial in trials] == [run.id for run in alone]
        assert len({run.id for run in alone}) == 2


def test_every_question_of_full_can_be_planned_and_its_text_need_not_be_here() -> None:
    runner = Runner(FULL, Execution(device="cpu"), compute=lambda session: [])
    for question in FULL.questions:
        first = wanted(FULL, question, "delta_net", {})[0]
        assert runner.run_of(first).options["train"]["max_steps"] == question.steps // SCREENING
    assert len({question.name for question in FULL.questions}) == len(FULL.questions) == 14


def test_a_text_that_is_not_here_is_told_of_before_anything_is_trained(cli: Cli) -> None:
    code, out, err = cli("card", "base_conv", "--tier", "full", "--device", "cpu")
    assert (code, out) == (2, "") and "`assay data pull library` fetches it" in err


def test_a_question_without_all_its_records_is_left_out_by_name(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Runner.known

    def known(self: Runner, mixer: str, question: str) -> tuple[list[Trial], list[Trial]]:
        there, missing = real(self, mixer, question)
        return (there, missing) if question != "copy" else ([], there)

    monkeypatch.setattr(Runner, "known", known)
    code, out, err = cli("card", "base_conv", "--vs", "hyena", "--stored", "--out", str(tmp_path))
    assert code == 0 and "left out, since their records are not all here: copy" in out, err


def test_a_question_of_another_tier_is_said_to_be_one(cli: Cli) -> None:
    code, _, err = cli("card", "gru", "--questions", "fuzzy", "--dry-run")
    assert code == 2 and "It is asked by --tier standard and full." in err, err


def test_records_of_a_gpu_are_read_where_there_is_none(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = ("card", "base_conv", "--vs", "hyena", "gru:conv=3", "--tier", "standard", "--out", str(tmp_path))
    code, out, err = cli(*words, "--stored")
    assert code == 0, err
    assert "standard, 5 seeds" in out and "language" in out and "tokens/s" not in out and "speed is not measured" in err
    assert "speed is not measured" in out, "the result says what it lacks, too"
    assert out.splitlines()[-1] == "not beside it, since their records are not here: gru:conv=3"
    assert (tmp_path / "card" / "base_conv.standard.vs.html").is_file(), "another card than that of smoke"
    code, _, err = cli(*words)
    assert code == 2 and "--stored reads the records that ship" in err and "--device cpu" in err
    assert len(err.splitlines()) == 1, err


def test_mixers_keep_their_promises_at_every_length_that_a_card_scores() -> None:
    """A form for long sequences alone may read the future, where no shorter one shows it."""
    asked = [question for tier in TIERS.values() for question in tier.questions]
    trained = [tasks.parse(question.task).shape().length for question in asked]
    beyond = [int(question.metric[1]) for question in asked if question.metric[0] == "by_length"]
    assert max(trained + beyond) <= LENGTHS[-1] and len(beyond) >= 2
