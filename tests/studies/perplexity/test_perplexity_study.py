"""`assay perplexity` from the command to the JSON, the figures and the table."""

import json
import math
import os

import pytest
from perplexity_commands import METHODS, words

from assay.attention import attention
from assay.core.errors import UserError
from assay.core.store import Store
from assay.studies.perplexity import (
    ExperimentConfig,
    ModelConfig,
    SparsitySweepConfig,
    analyze_context_scaling,
    analyze_sparsity_tradeoff,
    figure_4,
    figure_8,
    generate_summary_table,
    run_benchmark,
)
from assay.studies.perplexity.document import documents_of
from assay.studies.perplexity.figures import _letters, _letters_of_bytes
from assay.studies.perplexity.perplexity import Perplexity

ONE_BUDGET = ["--no-context-sweep", "--no-sparsity-sweep", "--budgets", "16", "--fixed-sparsity", "0.9"]


@pytest.fixture(scope="module")
def results(tiny, text, tmp_path_factory):
    """A run that the tests below look at: its folder and its document."""
    from assay.command.cli import main

    out = tmp_path_factory.mktemp("results")
    given = words(tiny, text, out, "--name", "mine", "--budgets", "16", "--max-windows", "1", "--seed", "7")
    assert main([str(word) for word in given]) == 0
    return out, json.loads((out / "perplexity" / "mine_latest.json").read_text())


def test_the_json_has_the_spec_s_schema(results):
    out, document = results
    found = document["results"]["articles.txt"]
    assert set(found) == set(METHODS) and document["config"]["methods"] == METHODS
    assert list(found["h2o"]["context_length_sweep"]) == ["32", "64"]
    assert set(found["h2o"]["sparsity_sweep"]) == {"0.0", "0.5", "0.8"} and set(found["h2o"]["budget_sweep"]) == {"16"}
    cell = found["h2o"]["sparsity_sweep"]["0.8"]
    assert cell["perplexity"] == pytest.approx(math.exp(cell["cross_entropy"]))
    assert cell["bits_per_token"] == pytest.approx(cell["cross_entropy"] / math.log(2))
    assert cell["num_tokens"] == 24 * 64 and cell["num_samples"] == 24 and len(cell["dataset_sha256"]) == 64
    assert cell["bits_per_byte"] == pytest.approx(cell["bits_per_token"]), "tokens are bytes here"
    low, high = cell["perplexity_interval"]
    assert low < cell["perplexity"] < high
    files = {path.name for path in (out / "perplexity").iterdir()}
    assert {"mine_latest.json", "mine_table_3.md", "mine_articles.txt_figure_4.png"} <= files
    assert len([name for name in files if name.startswith("mine_2") and name.endswith(".json")]) == 1


def test_sparsity_0_is_dense_and_what_is_realised_is_said(results):
    found = results[1]["results"]["articles.txt"]
    dense = found["dense"]["sparsity_sweep"]["0.0"]
    for method in METHODS[1:]:
        cell = found[method]["sparsity_sweep"]["0.0"]
        assert cell["cross_entropy"] == dense["cross_entropy"] and cell["realised_sparsity"] == 0
    half = found["window"]["sparsity_sweep"]["0.5"]
    assert half["realised_sparsity"] == pytest.approx(1 - (33 * 34 / 2 + 31 * 33) / (64 * 65 / 2))
    assert half["delta_cross_entropy"] == pytest.approx(half["cross_entropy"] - dense["cross_entropy"])
    assert half["kv_bytes_resident"] == 33 * 2 * 2 * 2 * 32 < dense["kv_bytes_resident"] == 64 * 2 * 2 * 2 * 32
    assert half["kl_to_dense"] > 0 and half["context_gain_kept"] in (None, 0.0)


def test_a_method_that_selects_is_not_measured_by_a_window_of_another_density(results):
    found = results[1]["results"]["articles.txt"]
    assert found["cab_v4:block_size=8"]["sparsity_sweep"]["0.5"]["context_gain_kept"] is None
    assert found["cab_v4:block_size=8"]["sparsity_sweep"]["0.5"]["perplexity"] is not None


def test_letters_tell_apart_what_the_paired_interval_tells_apart():
    """Two losses whose difference is all in the largest cluster: a mean over clusters would miss it."""

    def entry(name, losses, tokens):
        loss = sum(a * b for a, b in zip(losses, tokens, strict=True)) / sum(tokens)
        clusters = {"cluster_losses": losses, "cluster_tokens": tokens}
        return {
            **{key: dict(zip(map(str, range(30)), values, strict=True)) for key, values in clusters.items()},
            **{"records": [name], "perplexity": math.exp(loss), "cross_entropy": loss, "clusters": 30},
            **{"realised_sparsity": 0.5, "context_length": 64, "nominal_sparsity": 0.5, "budget": None},
        }

    tokens = [10.0 + 90 * (number % 2) for number in range(30)]
    hard = [3.0 + 0.1 * (number % 7) for number in range(30)]
    worse = [loss + (0.05 if number % 2 else -0.06) for number, loss in enumerate(hard)]
    methods = {
        name: {"title": name, "sparsity_sweep": {"0.5": entry(name, losses, tokens)}, "budget_sweep": {}}
        for name, losses in (("x", hard), ("y", worse), ("z", hard))
    }
    found = _letters({"results": {"text": methods}}, ("sparsity_sweep", "budget_sweep"))
    assert [found["text", name, name] for name in "xyz"] == ["a", "b", "a"]


def test_letters_compare_methods_of_one_realised_sparsity_alone():
    """At one nominal sparsity a cache leaves out its square, a selection as much as it says: no comparison."""

    def entry(name, loss, sparsity):
        clusters = {str(number): loss + 0.1 * (number % 7) for number in range(30)}
        return {
            **{"cluster_losses": clusters, "cluster_tokens": dict.fromkeys(clusters, 10.0), "clusters": 30},
            **{"records": [name], "perplexity": 9.0, "cross_entropy": loss, "realised_sparsity": sparsity},
            **{"context_length": 64, "nominal_sparsity": 0.9, "budget": None},
        }

    def groups(**given):
        methods = {
            name: {"title": name, "sparsity_sweep": {"0.9": entry(name, *numbers)}, "budget_sweep": {}}
            for name, numbers in given.items()
        }
        found = _letters({"results": {"text": methods}}, ("sparsity_sweep",))
        return {name: found.get(("text", name, name)) for name in given}

    assert groups(h2o=(3.0, 0.81), window=(3.5, 0.81), cab=(3.0, 0.91), quest=(3.0, 0.905)) == {
        "h2o": "a at 0.81", "window": "b at 0.81", "cab": "a at 0.91", "quest": "a at 0.91",
    }  # fmt: skip
    assert groups(h2o=(3.0, 0.81), cab=(3.5, 0.91)) == {"h2o": None, "cab": None}, "nothing to compare"
    assert groups(h2o=(3.0, 0.90), cab=(3.5, 0.918)) == {"h2o": "a", "cab": "b"}
    chain = groups(x=(3.0, 0.90), y=(3.0, 0.915), z=(3.5, 0.93))
    assert chain == {"x": "a at 0.90", "y": "a at 0.90", "z": None}, "no two of a group lie further apart than 0.02"


def test_letters_of_bytes_compare_methods_that_hold_as_much_whatever_their_budget():
    """At 32 slots h2o holds 32 and a selection everything; duo asked for 40 slots holds as much as h2o."""

    def entry(name, loss, budget, held):
        clusters = {str(number): loss + 0.1 * (number % 7) for number in range(30)}
        return {
            **{"cluster_losses": clusters, "cluster_tokens": dict.fromkeys(clusters, 10.0), "clusters": 30},
            **{"records": [name], "perplexity": 9.0, "cross_entropy": loss, "realised_sparsity": 0.8},
            **{"context_length": 64, "nominal_sparsity": None, "budget": budget, "num_tokens": 300},
            **{"kv_bytes_resident": held},
        }

    given = {"h2o": (3.0, 32, 1000), "duo": (3.5, 40, 985), "oracle": (2.0, 32, 2000), "tova": (3.0, 32, 1000)}
    methods = {
        name: {"title": name, "sparsity_sweep": {}, "budget_sweep": {str(numbers[1]): entry(name, *numbers)}}
        for name, numbers in given.items()
    }
    document = {"results": {"text": methods}}
    found, by_budget = (of(document, ("budget_sweep",)) for of in (_letters_of_bytes, _letters))
    assert {name: found.get(("text", name, name)) for name in given} == {
        "h2o": "a", "tova": "a", "duo": "b", "oracle": None,
    }  # fmt: skip
    assert by_budget["text", "oracle", "oracle"] == "a" and ("text", "duo", "duo") not in by_budget, "at one budget"


def test_blocks_that_a_budget_has_halved_are_in_the_row_s_name(results):
    found = results[1]["results"]["articles.txt"]["cab_v4:block_size=8"]
    assert {key: cell.get("block_size") for key, cell in found["sparsity_sweep"].items()} == {
        "0.0": None, "0.5": None, "0.8": 2,
    }  # fmt: skip
    assert found["context_length_sweep"]["32"]["block_size"] == 1 and found["budget_sweep"]["16"]["block_size"] == 4
    assert found["title"] == "cab_v4:block_size=8 (causal, blocks of 1 to 8)"
    lines = generate_summary_table(results[1]).splitlines()
    rows = [tuple(cell.strip() for cell in line.split("|")[2:5]) for line in lines if "cab_v4" in line]
    assert rows == [
        ("cab_v4:block_size=8 (causal)", "64", "0"),
        ("cab_v4:block_size=8 (causal)", "64", "0.5"),
        ("cab_v4:block_size=8 (causal, blocks of 2)", "64", "0.8"),
        ("cab_v4:block_size=8 (causal, blocks of 4)", "64", "k=16"),
    ]


def test_every_context_scores_the_same_tokens(results):
    sweep = results[1]["results"]["articles.txt"]["dense"]["context_length_sweep"]
    assert {cell["num_tokens"] for cell in sweep.values()} == {24 * 64}


@pytest.mark.usefixtures("undrawn")
def test_cells_stand_in_the_sweep_they_were_asked_for(tiny, text, cli, tmp_path):
    """Also where counting would guess otherwise: one context more at 0.5, which is not the fixed sparsity."""
    base = words(tiny, text, tmp_path, "--max-samples", "2", "--max-windows", "1", methods=["window"])

    def sweeps(*more):
        assert cli(*base, *more)[0] == 0
        document = json.loads((tmp_path / "perplexity" / "perplexity_latest.json").read_text())
        found = document["results"]["articles.txt"]["window"]
        kinds = ("context_length_sweep", "sparsity_sweep", "budget_sweep")
        return document["config"], [list(found[kind]) for kind in kinds]

    sizes = ["--context-lengths", "32", "--fixed-context-length", "64", "--fixed-sparsity", "0.5"]
    config, found = sweeps(*sizes, "--sparsity-levels", "0.8", "0.9", "--description", "two words")
    assert found == [["32"], ["0.8", "0.9"], []] and config["description"] == "two words"
    assert (config["fixed_sparsity"], config["fixed_context_length"], config["context_lengths"]) == (0.5, 64, [32])
    assert sweeps("--no-sparsity-sweep")[1] == [["32", "64"], [], []]
    assert sweeps(*ONE_BUDGET)[1] == [[], [], ["16"]]


def test_a_second_run_computes_nothing_and_says_the_same(results, tiny, text, cli):
    out, document = results
    before = {path: path.stat().st_mtime_ns for path in (out / ".store").rglob("record.json")}
    given = words(tiny, text, out, "--name", "mine", "--budgets", "16", "--max-windows", "1", "--seed", "7")
    given.remove("--quiet")
    code, _, err = cli(*given)
    assert code == 0 and "nothing to run" in err
    assert {path: path.stat().st_mtime_ns for path in (out / ".store").rglob("record.json")} == before
    assert json.loads((out / "perplexity" / "mine_latest.json").read_text()) == document


def test_figures_and_table_come_from_the_json_alone(results):
    document = json.loads(json.dumps(results[1]))
    four, eight = figure_4(document, "articles.txt").to_dict(), figure_8(document, "articles.txt").to_dict()
    assert len(eight["hconcat"]) == 2 and "(Pareto front)" in json.dumps(eight) and "h2o" in json.dumps(four)
    signs = [part for panel in eight["hconcat"] for layer in panel["layer"] for part in layer["encoding"].items()]
    named = [name for channel, sign in signs if channel in ("color", "shape") for name in sign["scale"]["domain"]]
    assert "h2o" in named and "(Pareto front)" not in named, "a grey line, and no method of its own"
    table = generate_summary_table(document)
    assert table.count("\n") == 2 + 1 + 3 * 4 and "Perplexity" in table.splitlines()[0]
    scaling = analyze_context_scaling(document, "articles.txt", "dense")
    assert scaling["context_lengths"] == [32, 64] and len(scaling["ppl_decrease"]) == 1
    tradeoff = analyze_sparsity_tradeoff(document, "articles.txt", "window")
    assert tradeoff["sparsity_levels"] == [0.0, 0.5, 0.8] and tradeoff["relative_degradation"][0] == 0
    with pytest.raises(UserError, match=r"they hold articles\.txt: dense, h2o"):
        analyze_context_scaling(document, "articles.txt", "nothing")


@pytest.mark.usefixtures("undrawn")
def test_shards_and_lanes_change_no_number(results, tiny, text, cli, tmp_path):
    """The lanes of a forward pass do not depend on one another: a method alone gives what it gave among others."""
    given = words(tiny, text, tmp_path, "--budgets", "16", "--max-windows", "1", "--seed", "7", methods=["h2o"])
    assert cli(*given)[0] == 0
    alone = {record.run.id: record.metrics for record in Store(tmp_path).records("perplexity")}
    among = {record.run.id: record.metrics for record in Store(results[0]).records("perplexity")}
    assert set(alone) <= set(among) and len(alone) >= 8
    for key, metrics in alone.items():
        if "refused" not in metrics:
            assert metrics["cross_entropy"] == pytest.approx(among[key]["cross_entropy"], rel=1e-5)
            assert metrics["usage"] == among[key]["usage"]


FAULTY = """
from dataclasses import dataclass
from assay.attention import attention
from assay.attention.base import Select

@attention.register("faulty")
@dataclass(frozen=True, kw_only=True)
class Faulty(Select):
    \"\"\"Raises.\"\"\"
    def keep(self, layer, budget):
        raise RuntimeError("broken on purpose")
"""


@pytest.mark.usefixtures("undrawn")
def test_a_failed_cell_is_null_with_its_error_and_the_command_says_so(tiny, text, cli, tmp_path):
    plugin = tmp_path / "faulty.py"
    plugin.write_text(FAULTY)
    given = words(
        tiny, text, tmp_path / "out", "--max-samples", "2", "--no-context-sweep", methods=["window", "faulty"]
    )
    code, out, err = cli(*given, "--plugin", plugin)
    assert code == 1 and "broken on purpose" in err and "broken on purpose" in out
    raw = (tmp_path / "out" / "perplexity" / "perplexity_latest.json").read_text()
    found = json.loads(raw)["results"]["articles.txt"]
    broken = found["faulty"]["sparsity_sweep"]["0.5"]
    assert broken["perplexity"] is None and broken["failed"] and "broken on purpose" in broken["error"]
    assert found["window"]["sparsity_sweep"]["0.5"]["perplexity"] > 1 and "NaN" not in raw
    assert found["window"]["sparsity_sweep"]["0.5"]["perplexity_interval"] == [None, None], "two clusters"


def test_the_page_is_made_from_the_same_records(results, cli):
    out, _ = results
    assert cli("report", "--out", out)[0] == 0
    assert "figure_8" in (out / "report.html").read_text() or "Figure 8" in (out / "report.html").read_text()


def test_records_of_a_method_whose_file_is_not_given_stand_in_the_document(results, monkeypatch):
    out, _ = results
    known = attention.names()
    monkeypatch.setattr(attention, "names", lambda: tuple(name for name in known if name != "h2o"))
    (document,) = documents_of(Store(out).records("perplexity"), name="all")
    found = document["results"]["articles.txt"]["h2o"]
    assert found["title"] == "h2o" and found["sparsity_sweep"]["0.5"]["perplexity"] > 1


@pytest.mark.usefixtures("undrawn")
def test_protocols_and_positions_have_rows_of_their_own(tiny, text, cli, tmp_path):
    sizes = ["--max-samples", "3", "--max-windows", "1", *ONE_BUDGET]
    base = words(tiny, text, tmp_path, *sizes, methods=["streaming_llm", "h2o"])
    for more in ([], ["--positions", "cache"], ["--protocol", "chunked", "--chunk", "8"], ["--protocol", "prefix"]):
        assert cli(*base, *more)[0] == 0
    document, *others = documents_of(Store(tmp_path).records("perplexity"), name="all")
    found = document["results"]["articles.txt"]
    titles = {one["title"] for one in found.values()}
    assert not others and titles >= {
        "streaming_llm",
        "streaming_llm (absolute positions)",
        "h2o (chunks of 8)",
        "h2o (prefix)",
    }
    online, prefix = (found[key]["budget_sweep"]["16"]["num_tokens"] for key in ("h2o", "h2o@prefix"))
    assert (online, prefix) == (3 * 64, 3 * 32), "the continuation alone is scored"
    cut = found["h2o@prefix"]["budget_sweep"]["16"]
    read = sum(16 + n for n in range(1, 33)) / 32  # keys for each query of the second half
    assert cut["kv_bytes_read_per_token"] == pytest.approx(read * 2 * 2 * 2 * 32)
    assert cut["realised_sparsity"] == pytest.approx(1 - 32 * read / sum(t + 1 for t in range(32, 64)))
    dense = found["dense@prefix"]["sparsity_sweep"]["0.0"]["kv_bytes_read_per_token"]
    assert dense == pytest.approx(sum(t + 1 for t in range(32, 64)) / 32 * 2 * 2 * 2 * 32)
    with_prefix = words(tiny, text, tmp_path, methods=["snapkv"])
    code, _, err = cli(*with_prefix)
    assert code == 2 and "--protocol prefix" in err


@pytest.mark.usefixtures("undrawn")
def test_rows_of_methods_that_do_not_take_a_flag_say_so(tiny, text, cli, tmp_path):
    sizes = ["--max-samples", "2", "--max-windows", "1", *ONE_BUDGET]
    base = words(tiny, text, tmp_path, *sizes, methods=["streaming_llm", "window", "h2o"])
    latest = tmp_path / "perplexity" / "perplexity_latest.json"
    expected = {
        ("--positions", "cache"): {
            "dense": ("dense", "absolute", "online"),
            "streaming_llm@cache": ("streaming_llm", "cache", "online"),
            "window@cache": ("window", "cache", "online"),
            "h2o": ("h2o (absolute positions)", "absolute", "online"),
        },
        ("--protocol", "chunked", "--chunk", "8"): {
            "dense": ("dense", "absolute", "online"),
            "streaming_llm": ("streaming_llm (absolute positions, online)", "absolute", "online"),
            "window": ("window (online)", "absolute", "online"),
            "h2o@chunk8": ("h2o (chunks of 8)", "absolute", "chunked"),
        },
    }
    for more, rows in expected.items():
        code, _, _ = cli(*base, *more)
        found = json.loads(latest.read_text())["results"]["articles.txt"]
        said = {key: tuple(one[name] for name in ("title", "positions", "protocol")) for key, one in found.items()}
        assert code == 0 and said == rows
        table = (tmp_path / "perplexity" / "perplexity_table_3.md").read_text()
        assert all(f"| {title} |" in table for title, *_ in rows.values())


@pytest.mark.parametrize(
    ("methods", "flag", "said"),
    [
        (["h2o"], ["--positions", "cache"], "for streaming_llm and window: it means nothing to dense, h2o."),
        (["dense"], ["--positions", "cache"], "it means nothing to dense."),
        (["window", "random"], ["--protocol", "chunked"], "such as h2o: it means nothing to dense, window, random."),
        (["snapkv"], ["--protocol", "chunked"], "snapkv cuts down a prefix"),
    ],
)
def test_a_flag_that_no_method_takes_is_refused_in_one_line(methods, flag, said, tiny, text, cli, tmp_path):
    code, _, err = cli(*words(tiny, text, tmp_path, *flag, methods=methods))
    assert code == 2 and said in err and len(err.splitlines()) == 1 and not (tmp_path / "perplexity").exists()


def test_without_such_flags_rows_have_their_plain_names(results):
    titles = {one["title"] for one in results[1]["results"]["articles.txt"].values()}
    assert "h2o" in titles and not any("online" in title for title in titles)


@pytest.mark.usefixtures("undrawn")
def test_output_dir_is_where_everything_goes(tiny, text, cli, tmp_path):
    given = words(tiny, text, tmp_path / "out", "--max-samples", "1", "--no-context-sweep", methods=["dense"])
    assert cli(*given, "--output-dir", tmp_path / "here", "--verbose")[0] == 0
    assert (tmp_path / "here" / "perplexity_latest.json").is_file() and not (tmp_path / "out" / "perplexity").exists()


def experiment(tiny, text):
    return ExperimentConfig(
        datasets=[str(text)],
        methods=["dense", "h2o"],
        model=ModelConfig(name=str(tiny), max_length=64),
        sparsity_sweep=SparsitySweepConfig(sparsity_levels=(0.0, 0.8), fixed_context_length=64),
        context_length_sweep={"enabled": False},
        max_windows=1,
    )


@pytest.mark.usefixtures("undrawn")
def test_the_python_api_gives_the_same_document(results, tiny, text, tmp_path):
    config = experiment(tiny, text)
    found = run_benchmark(config, out=tmp_path, device="cpu")["results"]["articles.txt"]["h2o"]["sparsity_sweep"]["0.8"]
    before = results[1]["results"]["articles.txt"]["h2o"]["sparsity_sweep"]["0.8"]
    assert found["cross_entropy"] == pytest.approx(before["cross_entropy"], rel=1e-5)
    assert (tmp_path / "perplexity" / "perplexity_latest.json").is_file()


@pytest.mark.usefixtures("undrawn")
def test_the_python_api_places_runs_as_the_command_does(tiny, text, tmp_path, monkeypatch):
    """On the chosen GPUs, and with the environment as it was found."""
    chosen, seen = [], {}
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("assay.api.gpus_of", lambda device: (1,))
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)

    def prepare(self, runs):
        os.environ["HF_HUB_OFFLINE"] = "1"
        seen.update(os.environ)

    monkeypatch.setattr(Perplexity, "prepare", prepare)
    before = dict(os.environ)
    run_benchmark(experiment(tiny, text), out=tmp_path, device="cpu")
    assert chosen == [1] and seen["HF_HUB_OFFLINE"] == "1" and dict(os.environ) == before
    seen.clear()
    run_benchmark(experiment(tiny, text), out=tmp_path, device="cpu")
    assert not seen, "what is stored is not prepared for again"
