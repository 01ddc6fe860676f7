"""The perplexity document: its commands, files, flags and names work as they are written there."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.attention import attention
from assay.attention.base import Budget
from assay.core.convert import construct
from assay.core.errors import UserError
from assay.studies.perplexity import ExperimentConfig, compute_perplexity, get_dataset_config, get_method_config
from assay.studies.perplexity.execution import lane_of
from assay.studies.perplexity.perplexity import Perplexity
from assay.studies.perplexity.spec.experiment import BenchmarkConfig
from tiny_models import byte_model

Cli = Callable[..., tuple[int, str, str]]
CUSTOM = [
    "--datasets", "wikitext-103", "--methods", "dense", "h2o", "cab_v4", "--sparsity-levels", "0.0", "0.9", "0.95",
    "--context-lengths", "512", "1024", "2048", "4096",
]  # fmt: skip
DRY = ("--dry-run", "--cpu-only")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_model(tmp_path_factory.mktemp("long"), positions=1024)


def refusals(study: Perplexity) -> dict[tuple[str, int, str], str]:
    found = {}
    for options in (run.options for run in study.plan()):
        try:
            lane_of(options).check(options["context"])
        except UserError as error:
            found[options["method"]["name"], options["context"], str(options["budget"])] = str(error)
    return found


@pytest.mark.parametrize("name", ["quick_test", "quick_test_offline", "icml_full", "ablation_sparsity"])
def test_1_every_cell_of_the_shipped_configs_can_run(name: str) -> None:
    for experiment in BenchmarkConfig.load(name).placed():
        assert refusals(construct(Perplexity, experiment.options(), what=name)) == {}


def test_1_every_cell_of_the_custom_command_can_run() -> None:
    for word in ("cab_v4", "cab_v3"):
        study = Perplexity(
            methods=(attention.parse(word),), sparsity_levels=(0.0, 0.9, 0.95), context_lengths=(512, 1024, 2048, 4096)
        )
        assert refusals(study) == {}


@pytest.mark.usefixtures("undrawn")
def test_1_icml_c4_fills_every_cell_of_cab_and_names_its_blocks(tiny: Path, cli: Cli, tmp_path: Path) -> None:
    text = tmp_path / "two.jsonl"
    text.write_text("".join(json.dumps({"text": f"{start} letters of a text " * 60}) + "\n" for start in ("a", "b")))
    words = ("--config", "icml_c4", "--model", tiny, "--datasets", text, "--max-windows", "1", "--quiet")
    code, _, err = cli("perplexity", *words, "--executor", "serial", "--cpu-only", "--out", tmp_path)
    assert code == 0, err
    document = json.loads((tmp_path / "perplexity" / "icml_c4_latest.json").read_text())
    (methods,) = document["results"].values()
    assert list(methods) == ["dense", "h2o", "cab_v4", "streaming_llm"]
    cab = methods["cab_v4"]
    sizes = {
        sweep: {key: cell.get("block_size", 64) for key, cell in cab[sweep].items()}
        for sweep in ("context_length_sweep", "sparsity_sweep")
    }
    assert sizes["context_length_sweep"] == {"512": 8, "1024": 16}
    assert sizes["sparsity_sweep"] == {"0.0": 64, "0.8": 32, "0.9": 16, "0.95": 8}
    every = [cell for sweep in sizes for cell in cab[sweep].values()]
    assert all(cell["perplexity"] > 1 and cell["error"] is None for cell in every)
    assert cab["title"] == "cab_v4 (causal, blocks of 8 to 64)"
    table = (tmp_path / "perplexity" / "icml_c4_table_3.md").read_text()
    assert "| cab_v4 (causal) | 1024 | 0 |" in table and "| cab_v4 (causal, blocks of 8) | 1024 | 0.95 |" in table


def test_1_the_blocks_fit_from_python_too(tiny: Path) -> None:
    import torch

    from assay.models.causal_lm import load_model

    ids = torch.arange(257)[None] % 250
    losses = {
        word: compute_perplexity(load_model(str(tiny)), ids, method=attention.parse(word), sparsity=0.9).cross_entropy
        for word in ("cab_v4", "cab_v4:block_size=4", "dense")
    }
    assert losses["cab_v4"] == losses["cab_v4:block_size=4"] != losses["dense"]


def test_1_only_cells_that_were_refused_have_another_id() -> None:
    """Ids of before blocks were fitted; where they were refused, the blocks of today are among the options."""
    ran = {
        ("dense", 512, 0.0): "e73dc889b4a0f567",
        ("dense", 1024, 0.0): "285b4748d53ca590",
        ("cab_v3", 1024, 0.9): "8c9da24c41b5b8f0",
        ("cab_v4", 1024, 0.0): "b85546e1bcc0d2d9",
        ("cab_v3", 1024, 0.0): "65fd706e46890b01",
        ("cab_v4", 1024, 0.5): "edbcbb9ed186a215",
        ("cab_v3", 1024, 0.5): "34622f5b6088d894",
    }
    refused = {
        ("cab_v4", 512, 0.9): ("73c276e7ad706806", 8),
        ("cab_v3", 512, 0.9): ("498d84bb8598ed4e", 8),
        ("cab_v4", 1024, 0.9): ("83db21ad1c34846b", 16),
    }
    methods = tuple(map(attention.parse, ("cab_v4", "cab_v3:block_size=8")))
    sizes = {"sparsity_levels": (0.0, 0.5, 0.9), "context_lengths": (512, 1024)}
    study = Perplexity(model="gpt2", datasets=("wikitext-103",), methods=methods, **sizes)  # type: ignore[arg-type]
    runs = {
        (run.options["method"]["name"], run.options["context"], run.options["budget"]["sparsity"]): run
        for run in study.plan()
        if run.options["shard"] == 0
    }
    fitted = {cell for cell, run in runs.items() if "block_size" in run.options}
    assert {cell: run.id for cell, run in runs.items() if cell not in fitted} == ran | {
        cell: before for cell, (before, size) in refused.items() if cell not in fitted
    }
    for cell in fitted:
        before, size = refused[cell]
        assert runs[cell].id != before and runs[cell].options["block_size"] == size


def test_1_a_method_that_no_budget_suffices_is_refused_by_name(cli: Cli, tmp_path: Path) -> None:
    base = ("perplexity", "--datasets", "pydoc", "--model", "gpt2", "--context-lengths", "128", *DRY, "--out", tmp_path)
    few = ("--sparsity-levels", "0", "0.98")
    for word in ("cab_v4", "streaming_llm:num_sink_tokens=9"):
        code, out, err = cli(*base, *few, "--methods", "h2o", word)
        assert (code, out) == (2, "") and err.startswith(f"assay: {word} ") and len(err.splitlines()) == 1
        assert cli(*base, *few, "0.5", "--methods", "h2o", word)[0] == 0, "the table says which cells are refused"
        assert cli(*base, "--sparsity-levels", "0", "--methods", word)[0] == 0, "it has no sparse cells"


def test_2_the_default_model_has_positions_enough_for_the_custom_command(cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli("perplexity", *CUSTOM, *DRY, "--out", tmp_path)
    assert code == 0 and f"{Perplexity.model} (8192 positions)" in out.splitlines()[-1]


def test_2_a_dry_run_says_which_contexts_a_model_cannot_reach(tiny: Path, cli: Cli, tmp_path: Path) -> None:
    for model, beyond in ((tiny, "2048, 4096"), ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "4096")):
        code, _, err = cli("perplexity", *CUSTOM, "--model", model, *DRY, "--out", tmp_path)
        assert code == 2 and f"fewer than a context of {beyond}." in err and str(model) in err


def test_2_without_the_hub_the_message_names_what_works_here(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(study: Perplexity, runs: object) -> None:
        raise UserError("cannot load the model.")

    monkeypatch.setattr(Perplexity, "_fetch", fetch)
    monkeypatch.setattr("assay.data.hub.answers", lambda url: False)
    for more in ((), ("--offline",)):
        code, _, err = cli("perplexity", *CUSTOM, *more, "--quiet", "--cpu-only", "--out", tmp_path)
        assert code == 2 and "--model smollm2-135m --datasets speeches" in err and len(err.splitlines()) == 1
    named = ("--model", "smollm2-135m", "--datasets", "speeches")
    assert cli("perplexity", *CUSTOM, *named, *DRY, "--out", tmp_path)[0] == 0


def test_8_configs_are_found_as_the_document_writes_them(cli: Cli, tmp_path: Path) -> None:
    def planned(config: str) -> tuple[list[str], str]:
        code, out, err = cli("perplexity", "--config", config, *DRY, "--out", tmp_path)
        assert code == 0
        return [line.split()[0] for line in out.splitlines() if " to run  " in line], err

    shipped, silent = planned("quick_test")
    found, said = planned("configs/quick_test.yaml")
    assert found == shipped and "quick_test.yaml that ships with assay" in said and not silent
    Path("configs").mkdir()
    Path("configs/quick_test.yaml").write_text("{datasets: [pydoc], model: {name: gpt2, max_length: 512}}")
    own, said = planned("configs/quick_test.yaml")
    assert own != shipped and "ships with assay" not in said, "a file that is here is read"
    with pytest.raises(UserError, match="'ablation_sparsity'"):
        BenchmarkConfig.load("elsewhere/ablation_sparsity.yaml")


def test_8_methods_and_texts_have_the_names_of_the_tables() -> None:
    written = ("Dense", "H2O", "CAB V4", "CAB V3", "StreamingLLM", "Local+Strided", "Random")
    names = ("dense", "h2o", "cab_v4", "cab_v3", "streaming_llm", "local_strided", "random")
    assert tuple(attention.parse(word).name for word in written) == names
    assert Perplexity(datasets=("WikiText-103", "WikiText-2", "C4", "PG-19")).datasets == (
        "wikitext-103", "wikitext-2", "c4", "pg19",
    )  # fmt: skip
    limited = Perplexity(datasets=("PG-19",), max_samples=("PG-19=7",))
    assert limited.dataset("pg19")["max_samples"] == 7
    given = ExperimentConfig(
        datasets=("C4",), dataset_configs={"C4": {"max_samples": 7}},
        methods=("Dense", "H2O"), method_configs={"H2O": {"block_size": 3}}, model={"max_length": 16384},
    )  # fmt: skip
    study = construct(Perplexity, given.options(), what="x")
    assert study.dataset("c4")["max_samples"] == 7 and given.unheard() == ["H2O.block_size"]
    assert get_dataset_config("PG-19").name == "pg19" and get_method_config("CAB V4").name == "cab_v4"


def test_8_a_file_keeps_the_name_that_it_has(tmp_path: Path) -> None:
    Path("C4").write_text("a text")
    assert Perplexity(datasets=("C4", "c4")).datasets == ("C4", "c4")


def test_8_a_sparsity_of_a_method_points_to_the_flag() -> None:
    for word, flag in (("h2o:sparsity=.5", "--sparsity-levels"), ("cab_v4:slots=64", "--budgets")):
        with pytest.raises(UserError, match=flag):
            attention.parse(word)


@pytest.mark.parametrize(
    ("idle", "heard"),
    [
        ("--chunk 64", "--protocol chunked"),
        ("--fixed-sparsity 0.7", "--context-lengths 64 128"),
        ("--probe-samples 3", "--probes passkey"),
        ("--probe-depths 0.5", "--probes passkey"),
        ("--no-probe-decode", "--probes passkey"),
        ("--revision main", "--model gpt2"),
    ],
)
def test_8_an_option_that_nothing_reads_is_refused(idle: str, heard: str, tiny: Path, cli: Cli, tmp_path: Path) -> None:
    base = ("perplexity", "--model", tiny, "--datasets", "pydoc", "--methods", "h2o", "--context-lengths", "128")
    code, _, err = cli(*base, *idle.split(), *DRY, "--out", tmp_path)
    assert code == 2 and idle.split()[0].replace("--no-", "--") in err and "means nothing here" in err
    assert cli(*base, *idle.split(), *heard.split(), *DRY, "--out", tmp_path)[0] == 0
    # A preset may hold what a flag beside it leaves unread.
    slots = ("--budgets", "64", "--no-sparsity-sweep", "--context-lengths", "512")
    assert cli("perplexity", "--quick-test", *slots, *DRY, "--out", tmp_path)[0] == 0


def test_8_config_keys_without_meaning_are_listed_once(cli: Cli, tmp_path: Path) -> None:
    one = "{name: NAME, batch_size: 8, model: {name: gpt2, max_length: 512, device_map: cuda}, methods: [h2o], "
    one += "context_length_sweep: {context_lengths: [512]}, method_configs: {h2o: {sparsity: 0.5}}}"
    every = ", ".join(one.replace("NAME", name) for name in "abc")
    (tmp_path / "three.yaml").write_text(f"{{num_gpus: 4, experiments: [{every}]}}")
    code, _, err = cli("perplexity", "--config", tmp_path / "three.yaml", *DRY, "--out", tmp_path)
    (line,) = (line for line in err.splitlines() if "without meaning" in line)
    assert code == 0 and line.endswith(": num_gpus, batch_size, model.device_map, h2o.sparsity")


def test_1_the_rule_for_blocks_is_an_option() -> None:
    method, budget = attention.parse("cab_v4:queries=16"), Budget(sparsity=0.9)
    fitted = method.fitted(512, budget)
    assert (fitted.block_size, fitted.queries) == (8, 8) and method.fitted(4096, budget) is method
    assert attention.parse("cab_v4:least_blocks=1").fitted(512, budget).block_size == 64
    assert "least_blocks" not in method.spec(), "runs of before keep their ids"
