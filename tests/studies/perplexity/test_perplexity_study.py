"""`assay perplexity` from the command to the JSON, the figures and the table."""

import json
import math
import os
import shutil

import pytest

from assay.api import configure
from assay.attention import attention
from assay.attention.base import Budget
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
from assay.studies.perplexity.figures import _letters
from assay.studies.perplexity.perplexity import Perplexity

SIZES = ["--context-lengths", "32", "64", "--sparsity-levels", "0", "0.5", "0.8", "--fixed-sparsity", "0.8"]
PLACE = ["--executor", "serial", "--device", "cpu", "--quiet"]
METHODS = ["dense", "h2o", "window", "cab_v4:block_size=8"]


def words(tiny, text, out, *more, methods=METHODS):
    base = ["perplexity", "--model", tiny, "--datasets", text, "--methods", *methods, *SIZES, *PLACE, "--out", out]
    return [*base, *more]


@pytest.fixture(scope="module")
def results(tiny, text, tmp_path_factory):
    """A run that the tests below look at: its folder and its document."""
    from assay.cli import main

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


def test_a_budget_below_four_blocks_is_said_in_place_of_a_number(results):
    cell = results[1]["results"]["articles.txt"]["cab_v4:block_size=8"]["sparsity_sweep"]["0.8"]
    assert cell["perplexity"] is None and cell["error"].startswith("budget below 4 blocks") and not cell["failed"]
    assert "| budget below 4 blocks |" in generate_summary_table(results[1])


def test_every_context_scores_the_same_tokens(results):
    sweep = results[1]["results"]["articles.txt"]["dense"]["context_length_sweep"]
    assert {cell["num_tokens"] for cell in sweep.values()} == {24 * 64}


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
    assert sweeps("--no-sparsity-sweep", "--no-context-sweep", "--budgets", "16")[1] == [[], [], ["16"]]


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
    table = generate_summary_table(document)
    assert table.count("\n") == 2 + 1 + 3 * 4 and "Perplexity" in table.splitlines()[0]
    scaling = analyze_context_scaling(document, "articles.txt", "dense")
    assert scaling["context_lengths"] == [32, 64] and len(scaling["ppl_decrease"]) == 1
    tradeoff = analyze_sparsity_tradeoff(document, "articles.txt", "window")
    assert tradeoff["sparsity_levels"] == [0.0, 0.5, 0.8] and tradeoff["relative_degradation"][0] == 0
    with pytest.raises(UserError, match=r"they hold articles\.txt: dense, h2o"):
        analyze_context_scaling(document, "articles.txt", "nothing")


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


def test_protocols_and_positions_have_rows_of_their_own(tiny, text, cli, tmp_path):
    sizes = ["--max-samples", "3", "--max-windows", "1", "--no-context-sweep", "--no-sparsity-sweep", "--budgets", "16"]
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


def test_rows_of_methods_that_do_not_take_a_flag_say_so(tiny, text, cli, tmp_path):
    sizes = ["--max-samples", "2", "--max-windows", "1", "--no-context-sweep", "--no-sparsity-sweep", "--budgets", "16"]
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


def test_the_copy_probe_is_a_dataset(tiny, cli, tmp_path):
    given = [
        "perplexity",
        "--model",
        tiny,
        "--datasets",
        "copy",
        "--methods",
        "dense",
        "window",
        "--context-lengths",
        "64",
    ]
    assert (
        cli(*given, "--no-context-sweep", "--no-sparsity-sweep", "--budgets", "16", *PLACE, "--out", tmp_path)[0] == 0
    )
    document = json.loads((tmp_path / "perplexity" / "perplexity_latest.json").read_text())
    cell = document["results"]["copy"]["window"]["budget_sweep"]["16"]
    assert list(cell["cross_entropy_by_distance"]) == ["16", "32"] and cell["num_tokens"] == 2 * 8 * 15
    assert cell["word_perplexity"] is None


def test_the_defaults_of_the_prefix_protocol_run_under_it():
    assert {method.name for method in Perplexity(protocol="prefix").chosen()} == {
        "dense", "h2o", "streaming_llm", "window",
    }  # fmt: skip
    assert "cab_v4" in {method.name for method in Perplexity().chosen()}


def test_flags_beside_the_demo_are_heard():
    demo = configure(Perplexity, "demo", {})
    assert demo.points() == [(80, Budget(slots=20))]
    sparser = configure(Perplexity, "demo", {"sparsity_levels": (0.5,)})
    assert sparser.points() == [(80, Budget(sparsity=0.5)), (80, Budget(slots=20))]


def test_a_context_that_is_not_measured_is_not_the_longest():
    given = {"context_lengths": (512, 768, 4096), "fixed_context_length": 512, "context_sweep": False}
    assert Perplexity(**given, max_length=512).longest == 512


def test_mistakes_are_one_line(tiny, text, cli, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(tiny, bare, ignore=shutil.ignore_patterns("*.safetensors"))
    for more, said in (
        (["--max-length", "32"], "a context of 64 is over --max-length 32"),
        (["--datasets", "no-such"], "no dataset 'no-such'"),
        (["--model", "./no-such"], "cannot load the model './no-such': there is no such folder"),
        (["--sparsity-levels", "1.5"], "at least 0 and below 1"),
        (["--model", tmp_path / "nowhere"], "cannot load the model"),
        (["--context-lengths", "512"], "has 512 tokens"),
        (["--context-lengths", "1024"], "has 512 positions (max_position_embeddings), fewer than a context of 1024"),
        (["--context-lengths", "48", "64"], "48 does not divide the longest, 64"),
        (["--dtype", "float8"], "--dtype float8: choose auto, float16"),
        (["--model", bare], "the folder has no file of weights"),
        (["--protocol", "prefix"], "cab_v4:block_size=8 selects anew for each query"),
        (["--protocol", "prefix", "--positions", "cache"], "--positions cache is defined for the online protocol"),
        (["--no-context-sweep", "--no-sparsity-sweep"], "nothing to measure"),
    ):
        code, _, err = cli(*words(tiny, text, tmp_path / "out"), *more)
        assert code == 2 and said in err and "Traceback" not in err, (more, err)


def test_a_hub_that_does_not_answer_is_one_line_that_names_offline(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody is there
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    tries = []

    def fetch(study, runs):
        tries.append(os.environ["HF_HUB_OFFLINE"])
        raise UserError("cannot load the model. Without the hub: --quick-test --offline.")

    monkeypatch.setattr(Perplexity, "_fetch", fetch)
    code, _, err = cli("perplexity", "--quick-test", "--quiet", "--out", tmp_path)
    assert code == 2 and tries == ["1"], "the hub's libraries do not ask again"
    assert "http://127.0.0.1:9 did not answer within 5 s" in err and "--offline" in err and len(err.splitlines()) == 1


def test_refusals_read_as_refused_while_they_come_and_afterwards(tiny, text, cli, tmp_path):
    given = words(tiny, text, tmp_path, "--max-samples", "2", "--context-lengths", "64", methods=METHODS[3:])
    given.remove("--quiet")
    _, _, err = cli(*given)
    lines = [line for line in err.splitlines() if "cab_v4" in line]
    refused = [line for line in lines if "budget below 4 blocks" in line]
    assert len(refused) == 2 and all("] refused perplexity" in line for line in refused)
    assert [line for line in lines if "] done perplexity" in line and "cross_entropy" in line]
    assert cli("show", "--out", tmp_path)[1].count("refused") == 2


def test_one_context_is_no_sweep(tiny, text, cli, tmp_path):
    """It is where sparsities and budgets are measured, and nothing else is run."""
    alone = Perplexity(context_lengths=(512,), sparsity_levels=(0.0, 0.5))
    assert alone.points() == [(512, Budget(sparsity=0.0)), (512, Budget(sparsity=0.5))]
    assert alone.sweeps().context_lengths == ()
    slots = Perplexity(context_lengths=(512,), sparsity_sweep=False, budgets=(64,))
    assert slots.points() == [(512, Budget(slots=64))]
    only = Perplexity(context_lengths=(512,), sparsity_sweep=False, fixed_sparsity=0.7)
    assert only.points() == [(512, Budget(sparsity=0.7))], "unless it is all there is to measure"
    assert len(Perplexity(context_lengths=(256, 512)).points()) == 3


def test_each_text_has_its_own_number_of_documents(tiny, text, cli, tmp_path):
    other = tmp_path / "other.txt"
    shutil.copy(text, other)
    base = ["perplexity", "--model", tiny, "--datasets", text, other, "--methods", "dense", "--context-lengths", "64"]
    assert cli(*base, "--max-samples", "3", f"{other}=5", *PLACE, "--out", tmp_path)[0] == 0
    found = json.loads((tmp_path / "perplexity" / "perplexity_latest.json").read_text())["results"]
    used = {name: found[name]["dense"]["sparsity_sweep"]["0.0"]["num_samples"] for name in found}
    assert used == {"articles.txt": 3, "other.txt": 5}
    for more, said in (
        (["0"], "a number of at least 1"),
        (["some"], "a number of at least 1"),
        (["othr.txt=3"], "'othr.txt' is none of the texts"),
        (["3", "4"], "a number for all texts twice"),
    ):
        code, _, err = cli(*base, "--max-samples", *more, *PLACE, "--out", tmp_path)
        assert code == 2 and said in err, err


def test_a_terminal_is_asked_before_a_long_run_unless_told_yes(tiny, text, cli, tmp_path, monkeypatch):
    given = words(tiny, text, tmp_path, "--max-samples", "1", "--no-context-sweep", methods=["dense"])
    given.remove("--quiet")
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda: "n")
    code, _, err = cli(*given)
    assert code == 2 and "Continue? [y/N]" in err and "nothing was started" in err
    code, _, err = cli(*given, "--yes")
    assert code == 0 and "Continue" not in err


def test_output_dir_is_where_everything_goes(tiny, text, cli, tmp_path):
    given = words(tiny, text, tmp_path / "out", "--max-samples", "1", "--no-context-sweep", methods=["dense"])
    assert cli(*given, "--output-dir", tmp_path / "here", "--verbose")[0] == 0
    assert (tmp_path / "here" / "perplexity_latest.json").is_file() and not (tmp_path / "out" / "perplexity").exists()


def test_the_python_api_gives_the_same_document(results, tiny, text, tmp_path):
    config = ExperimentConfig(
        datasets=[str(text)],
        methods=["dense", "h2o"],
        model=ModelConfig(name=str(tiny), max_length=64),
        sparsity_sweep=SparsitySweepConfig(sparsity_levels=(0.0, 0.8), fixed_context_length=64),
        context_length_sweep={"enabled": False},
        max_windows=1,
    )
    found = run_benchmark(config, out=tmp_path, device="cpu")["results"]["articles.txt"]["h2o"]["sparsity_sweep"]["0.8"]
    before = results[1]["results"]["articles.txt"]["h2o"]["sparsity_sweep"]["0.8"]
    assert found["cross_entropy"] == pytest.approx(before["cross_entropy"], rel=1e-5)
    assert (tmp_path / "perplexity" / "perplexity_latest.json").is_file()
