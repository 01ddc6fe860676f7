"""`assay card my_method.py`: an attention method next to the field, with a tiny model of random weights."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import stdev
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from assay.card import method_battery, method_card, method_page, methods
from assay.core import shipped
from assay.core.run import Numerics, Record
from assay.studies.perplexity.perplexity import Perplexity

Cli = Callable[..., tuple[int, str, str]]
TWIN = """
from dataclasses import dataclass
from assay.attention import attention
from assay.attention.window import Window

@attention.register("twin")
@dataclass(frozen=True, kw_only=True)
class Twin(Window):
    aliases = ()
"""
LOUDEST = """
from dataclasses import dataclass
from assay.attention import attention
from assay.attention.base import Evict

@attention.register("loudest")
@dataclass(frozen=True, kw_only=True)
class Loudest(Evict):
    def initial_score(self, layer):
        return layer.v.float().norm(dim=-1)
"""
LEAKING = LOUDEST.replace("loudest", "leaking").replace("(dim=-1)", "(dim=-1).roll(-2, dims=-1)")
"""A key's score is the length of the value after the next."""
MIXER = """
from dataclasses import dataclass
from assay.mixers import mixers
from assay.mixers.gru import GRU

@mixers.register("twin_mixer")
@dataclass(frozen=True, kw_only=True)
class TwinMixer(GRU):
    aliases = ()
"""
MADE: dict[str, Path] = {}
"""The store of the field and its packed records, computed once for all tests of this file."""
FIELD = ("dense", "window", "streaming_llm", "h2o", "random_evict", "oracle_topk")
HERE = ("--executor", "serial", "--device", "cpu")


@pytest.fixture
def toy(tiny: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The presets with a tiny model, an own text, and no records that ship."""
    given = {
        "model": str(tiny), "datasets": (str(text), "pydoc"), "dtype": "float32", "context_lengths": (64,),
        "sparsity_levels": (), "max_samples": ("24",), "max_windows": 1, "budgets": (24, 8),
    }  # fmt: skip
    prefix = {**given, "methods": ("dense", "window", "keydiff", "observed"), "protocol": "prefix", "budgets": (16, 8)}
    monkeypatch.setitem(Perplexity.presets, "methods", {**given, "methods": FIELD, "positions": "cache"})
    monkeypatch.setitem(Perplexity.presets, "methods-prefix", prefix)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "ships")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shipped_from(toy: Path, cli: Cli, change: Callable[[Record], Record] = lambda record: record) -> None:
    """Compute the field and ship it, as if on a GPU: under ids of its own."""
    if "field" not in MADE:
        code, _, err = cli("card", "h2o", "--vs", *FIELD[1:], *HERE, "--out", "field", "--ship", "made")
        assert code == 0, err
        MADE["field"] = toy  # and there it stays: tests only read it
    else:
        for folder in ("field", "made"):
            shutil.copytree(MADE["field"] / folder, toy / folder)
    on_gpu = Numerics(device="cuda")
    moved = [
        change(replace(record, run=replace(record.run, numerics=on_gpu)))
        for record in shipped.records(methods.SHIPPED, toy / "made")
    ]
    assert len({record.run.id for record in moved}) == 2 * (1 + 2 * len(FIELD[1:]))
    (toy / "ships").mkdir()
    shipped.write(toy / "ships", methods.SHIPPED, moved)


def test_a_twin_is_level_with_its_model_and_the_field_is_not_computed_again(
    toy: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.command.card.check_promises", lambda *words: None)  # no method may be another by name
    shipped_from(toy, cli)
    Path("twin.py").write_text(TWIN)
    code, out, err = cli("card", "twin.py", *HERE)
    assert code == 0, err
    assert "6 to run" in err, "two budgets and dense attention, in two parts"
    assert "card of twin (methods, protocol 1;" in out and "24 documents" in out and "window †" in out
    assert "agrees with the shipped record, by up to 0 nats" in out and "k=24" in out and "k=8" in out
    again, shown, told = cli("card", "twin.py", "--json", *HERE)
    assert again == 0 and "to run" not in told
    card = json.loads(shown)[0]
    assert card == json.loads((toy / "results/card/twin.methods.json").read_text())[0]
    line = card["questions"]["k=8"]
    assert (
        line["differences"]["window"]["interval"]["mean"] == 0 and line["differences"]["window"]["standing"] == "level"
    )
    assert set(line["differences"]) == {"window", "streaming_llm", "h2o", "random_evict"}
    assert line["at_another_cost"]["oracle_topk"]["costs"] == "more", "it holds everything"
    assert line["rank"].endswith("of 5") and len(line["scores"]) == 24
    dense = line["loss_above_dense"]
    assert dense["low"] < dense["mean"] < dense["high"]
    page = (toy / "results/card/twin.methods.html").read_text()
    drawn = set(re.findall(r'data-name="(\w+)"', page))
    assert {"loss_by_bytes", "loss_k_24", "loss_k_8"} <= drawn and "class Twin(Window)" in page
    assert "twin: k=24" in (toy / "results/card/twin.methods.svg").read_text()


def test_shipped_rows_are_not_ranked_where_dense_attention_differs(toy: Path, cli: Cli) -> None:
    def off(record: Record) -> Record:
        sums = dict(record.metrics["sums"])
        sums["nll"] = [nll + 0.002 * tokens for nll, tokens in zip(sums["nll"], sums["tokens"], strict=True)]
        return replace(record, metrics={**record.metrics, "sums": sums})

    shipped_from(toy, cli, off)
    Path("loudest.py").write_text(LOUDEST)
    code, out, err = cli("card", "loudest.py", *HERE, "--json")
    assert code == 0, err
    card = json.loads(out)[0]
    assert not card["dense"]["agree"] and card["dense"]["gap"] == pytest.approx(0.002, rel=1e-3)
    assert all(line["rank"] == "" and not line["differences"] for line in card["questions"].values())
    assert "Not ranked against shipped records" in (toy / "results/card/loudest.methods.html").read_text()
    assert "not ranked: shipped records are not comparable here" in card["verdicts"][0]
    assert card["headline"] == "In short: nothing of it can be compared"

    def longer(record: Record) -> Record:
        sums = dict(record.metrics["sums"])
        return replace(record, metrics={**record.metrics, "sums": {**sums, "tokens": [1 + n for n in sums["tokens"]]}})

    shipped.write(toy / "ships", methods.SHIPPED, [longer(record) for record in shipped.records(methods.SHIPPED)])
    code, out, err = cli("card", "loudest.py", *HERE, "--json")
    assert code == 0 and "Infinity" not in out, err
    told = {"gap": None, "why": "dense attention read other documents here", "agree": False}
    assert json.loads(out)[0]["dense"] == told
    _, out, _ = cli("card", "loudest.py", *HERE)
    assert "not ranked against shipped records: dense attention read other documents here" in out and "inf " not in out


def test_dense_attention_that_failed_agrees_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "error", lambda cell: cell["error"])
    failed: Any = {"error": "out of memory"}
    found: Any = {"error": None}
    assert methods.agreement(failed, found) == methods.DenseAgreement(None, "dense attention failed here")
    assert not methods.agreement(found, failed).holds and "shipped" in methods.agreement(found, failed).why


def test_a_method_is_left_out_of_the_protocol_alone_whose_records_are_not_here() -> None:
    def asked(mine: str, *away: str) -> method_battery.Asked:
        runner: Any = SimpleNamespace(missing=lambda words: [word for word in words if word in away])
        return method_battery.Asked(runner, [mine], ["window", "tova"])

    every = (asked("h2o", "window"), asked("finch"))
    found = method_battery.MethodBattery(["h2o", "finch"], every, Path(), notes=["noted"]).of_what_is_there()
    assert [list(each.field) for each in found.asked] == [["tova"], ["window", "tova"]]
    assert found.notes == ["noted", "left out beside h2o, since their records are not all here: window"]


def test_each_protocol_takes_the_words_of_vs_that_it_can_ask(toy: Path, cli: Cli) -> None:
    code, out, err = cli("card", "h2o", "observed", "--vs", "keydiff", "finch", *HERE, "--dry-run")
    assert code == 0, err
    online, prefix = out.splitlines()
    assert "for h2o: 24, 8 slots" in online and "next to keydiff, computed here too" in online
    assert "for observed: 16, 8 slots" in prefix and "next to keydiff, finch, computed here too" in prefix


def test_methods_are_ranked_at_equal_cost_and_told_where_one_costs_less_and_loses_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cost is bytes held and attention left out; who holds less and leaves out less is no comparison."""
    monkeypatch.setattr(method_card, "sums", lambda cell, *keys: [cell[key] for key in keys])

    def measured(name: str, loss: float, held: float, left_out: float) -> Any:
        cell = {
            "tokens": [10.0] * 24,
            "nll": [10 * loss + 0.1 * (n % 5) + 0.01 * (n % 7) * len(name) for n in range(24)],
        }
        return SimpleNamespace(method=name, error="", held=held, left_out=left_out, cell=cell)

    others = [
        measured("level", 2.0, 1010, 0.81), measured("cheap", 2.5, 500, 0.8),
        measured("cheap_and_worse", 4.0, 500, 0.9),
        measured("dear", 3.5, 2000, 0.8), measured("dear_and_better", 1.0, 1000, 0.5), measured("odd", 1.0, 500, 0.5),
    ]  # fmt: skip
    found = method_card.line(measured("mine", 3.0, 1000, 0.8), others)
    assert set(found.differences) == {"level"} and found.rank == "2 of 2" and found.beyond == ("odd",)
    assert found.cheaper == {"cheap", "cheap_and_worse"}
    told = ["loses more than cheap at a higher cost", "loses less than dear at a lower cost"]
    assert method_card._all_the_same(found) == told
    losses = [one.cell["nll"] for one in (measured("mine", 3.0, 1000, 0.8), others[0])]
    gaps = [(a - b) / 10 for a, b in zip(*losses, strict=True)]
    assert found.differences["level"].deviation == pytest.approx(stdev(gaps)), "between documents, not of their mean"


def test_marks_of_recall_are_filled_where_recall_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """One method loses more over all tokens and recalls as much; another the other way round."""
    monkeypatch.setattr(method_card, "sums", lambda cell, *keys: [cell[key] for key in keys])

    def measured(name: str, loss: float, recalled: float) -> Any:
        noise = [0.1 * (n * len(name) % 7) for n in range(28)]
        cell = {"tokens": [10.0] * 28, "nll": [10 * loss + e for e in noise], "hits": [4.0] * 28}
        cell["hit_nll"] = [4 * recalled + e for e in noise]
        dense = {"tokens": [10.0] * 28, "nll": [1.0] * 28, "hits": [4.0] * 28, "hit_nll": [1.0] * 28}
        return SimpleNamespace(method=name, error="", held=1000, left_out=0.8, slots=8, cell=cell, dense=dense)

    drawn: list[dict[str, bool]] = []
    captions: list[str] = []
    monkeypatch.setattr(
        method_page, "standings", lambda rows, *_, **__: drawn.append({row["label"]: row["apart"] for row in rows})
    )
    monkeypatch.setattr(method_page.Section, "chart", lambda *_, caption: captions.append(caption))
    mine, others = measured("mine", 2.0, 3.0), [measured("loser", 4.0, 3.0), measured("in_recall", 2.0, 5.0)]
    card: Any = SimpleNamespace(name="mine", field={8: others}, marked=lambda name: name)
    method_page._budget(card, method_card.line(mine, others))
    of_loss, of_recall = drawn
    assert of_loss == {"mine": True, "loser": True, "in_recall": False}
    assert of_recall == {"mine": True, "loser": False, "in_recall": True}
    assert all("Filled: told apart from mine" in caption for caption in captions)


def test_a_method_whose_records_ship_is_computed_nowhere(toy: Path, cli: Cli) -> None:
    shipped_from(toy, cli)
    code, out, err = cli("card", "h2o", *HERE, "--stored")
    assert code == 0 and "to run" not in err and "card of h2o" in out, err
    assert "random_evict †" in out or "window †" in out or "streaming_llm †" in out
    code, out, err = cli("card", "tova", *HERE, "--stored")
    assert code == 2 and not out and "the records of tova are not all here" in err
    code, out, _ = cli("card", "h2o", "--vs", "window", *HERE, "--dry-run")
    assert code == 0 and "next to 1 method whose records ship; none to run" in out
    code, out, err = cli("card", "h2o", "--vs", "oracle_topk", *HERE, "--stored", "--json")
    assert code == 0, err
    told = json.loads(out)[0]["verdicts"]
    assert all("tokens it " in each and "; not ranked: no method costs as much" in each for each in told)
    code, out, _ = cli("card", "tova", *HERE, "--dry-run")
    lacking = methods.ship(toy / "packed", toy / "field" / "card")
    assert "methods pydoc h2o" in lacking and "methods-prefix pydoc observed" in lacking, "only whole methods ship"
    assert not [told for told in lacking if told.startswith("methods ") and "pydoc" not in told]
    packed, made = (shipped.records(methods.SHIPPED, toy / folder) for folder in ("packed", "made"))
    assert {record.run.id for record in packed} == {record.run.id for record in made} and packed
    assert code == 0 and "for tova: 24, 8 slots" in out and "5 methods whose records ship" in out and "6 to run" in out


def test_shipping_one_card_keeps_the_records_of_others(toy: Path, cli: Cli) -> None:
    words = (*HERE, "--own-baselines", "--out", "field", "--ship", "made")
    assert cli("card", "h2o", "--vs", "window", *words)[0] == 0
    whole = shipped.records(methods.SHIPPED, toy / "made")
    code, _, err = cli("card", "h2o", "--vs", "h2o", *words, "--stored")
    assert code == 0 and shipped.records(methods.SHIPPED, toy / "made") == whole, err
    again = [replace(whole[0], status="failed"), replace(whole[1], metrics={"told": "anew"})]
    shipped.add(methods.SHIPPED, toy / "made", again)
    kept = shipped.records(methods.SHIPPED, toy / "made")
    assert kept == [whole[0], again[1], *whole[2:]], "only runs that are done, and the newer record of each"
    methods.ship(toy / "made")
    assert shipped.records(methods.SHIPPED, toy / "made") == kept


def test_without_shipped_records_baselines_are_computed_here(toy: Path, cli: Cli) -> None:
    """A method that cuts down a prefix has its own protocol and field."""
    code, out, err = cli("card", "observed", "--json", *HERE)
    assert code == 0, err
    card = json.loads(out)[0]
    assert card["tier"] == "methods-prefix" and card["shipped"] == [] and card["dense"] is None
    assert set(card["questions"]["k=16"]["differences"]) == {"streaming_llm", "keydiff", "random_evict"}
    line = card["questions"]["k=16"]
    assert line["deviation"] == pytest.approx(stdev(line["scores"].values())) and line["freedom"] == 23
    assert card["headline"].startswith("In short, methods that beat it at equal cost: ")
    assert "k=16" in card["headline"] and not card["headline"].endswith(".")
    assert "at equal cost: " in (toy / "results/card/observed.methods.html").read_text()
    one, two = (toy / "results/card/observed.methods.json", toy / "other.json")
    two.write_text(one.read_text())
    code, out, err = cli("card", "diff", str(one), str(two))
    assert code == 0 and "are not told apart, +0.000 [+0.000, +0.000] for other, p 1" in out, err


def test_a_budget_that_is_too_small_is_a_line_without_a_number(toy: Path, cli: Cli) -> None:
    code, out, err = cli("card", "snapkv:window_size=12", "--vs", "keydiff", *HERE)
    assert code == 0, err
    assert "with 8 keys of a prefix of 32 tokens: no number" in out
    assert "with 16 keys of a prefix of 32 tokens it " in out and " of 1 at k=16" in out.splitlines()[1]


def test_a_method_that_looks_ahead_is_refused_by_name_of_the_promise(toy: Path, cli: Cli) -> None:
    Path("leaking.py").write_text(LEAKING)
    code, out, err = cli("card", "leaking.py", *HERE)
    assert code == 2 and not out and "breaks a promise of attention methods (does not read the future)" in err, err
    assert not (toy / "results").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["both.py"], "a card is of mixers or of attention methods"),
        (["h2o", "gru"], "a card is of mixers or of attention methods"),
        (["empty.py"], "'empty.py' has no plug-in"),
        (["task.py"], "'task.py' has neither a mixer nor an attention method"),
        (["h20"], "no mixer or attention method named 'h20'. Did you mean 'h2o'?"),
        (["h2o", "--vs", "nobody"], "no attention method named 'nobody'"),
        (["h2o", "--vs", "snapkv"], "snapkv cuts down a prefix and h2o does not: they are not compared."),
        (["h2o", "tova", "--vs", "snapkv"], "snapkv cuts down a prefix and h2o, tova do not: they are not compared."),
        (["h2o:recent=7"], "recent"),
        (["h2o", "--tier", "standard"], "--tier standard is for mixers"),
        (["h2o", "--budget", "1m"], "--budget is for mixers"),
        (["dense"], "dense attention is what methods are compared with"),
        (["submit", "twin.py", "packed"], "cards of mixers alone can be submitted"),
    ],
)
def test_a_wrong_word_is_one_line(words: list[str], said: str, toy: Path, cli: Cli) -> None:
    Path("both.py").write_text(TWIN + MIXER)
    Path("empty.py").write_text("")
    Path("twin.py").write_text(TWIN)
    Path("task.py").write_text(
        MIXER.replace("mixers.gru import GRU", "tasks.mqar import Mqar").replace("assay.mixers", "assay.tasks")
        .replace("mixers", "tasks").replace("(GRU)", "(Mqar)")
    )  # fmt: skip
    code, out, err = cli("card", *words)
    assert code == 2 and not out and said in err and err.count("\n") == 1, err


def test_the_page_shows_the_records_that_ship(script: Callable[[str], ModuleType]) -> None:
    made = script("docs/methods_card.py")
    page = made.PAGE.read_text(encoding="utf-8")
    assert made.placed(page) == page, "run python docs/methods_card.py"
    assert len(re.findall(r"^\| `[a-z]", made.table("methods"), re.MULTILINE)) >= 15
