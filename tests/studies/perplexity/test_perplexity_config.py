"""Config files and the flags that stand for them."""

import json
import warnings

import pytest

import assay.studies.perplexity as package
from assay.core.convert import construct
from assay.core.errors import UserError
from assay.studies.perplexity.perplexity import Perplexity
from assay.studies.perplexity.presets import commands
from assay.studies.perplexity.spec.config import MethodConfig, ModelConfig
from assay.studies.perplexity.spec.experiment import BenchmarkConfig, ExperimentConfig

SHIPPED = ("quick_test", "quick_test_offline", "icml_full", "ablation_sparsity")


@pytest.mark.parametrize("name", SHIPPED)
def test_configs_that_come_with_assay_plan_and_warn_of_nothing(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for experiment in BenchmarkConfig.load(name).placed():
            assert construct(Perplexity, experiment.options(), what=name).plan()


def test_icml_full_is_three_experiments_and_quick_test_never_asks():
    assert [command[1] for command in commands(["--icml-full"])] == ["icml_wikitext103", "icml_c4", "icml_pg19"]
    (quick,) = commands(["--quick-test", "--max-samples", "3"])
    assert "--yes" in quick and quick[-2:] == ["--max-samples", "3"] and "TinyLlama/TinyLlama-1.1B-Chat-v1.0" in quick
    (offline,) = commands(["--quick-test", "--offline"])
    assert "smollm2-135m" in offline and "pydoc" in offline
    assert commands(["--model", "gpt2"]) == [["--model", "gpt2"]]
    with pytest.raises(UserError, match="choose one of"):
        commands(["--quick-test", "--config", "icml_full"])


def test_flags_and_fields_say_the_same(cli_json):
    for name in SHIPPED[:2]:
        given = BenchmarkConfig.load(name).experiments[0]
        planned = construct(Perplexity, given.options(), what=name).plan()
        rows = cli_json("perplexity", "--config", name, "--dry-run", "--device", "cpu")["rows"]
        assert [row["id"] for row in rows] == [run.id for run in planned]


def test_yaml_and_json_of_one_experiment_and_of_several(tmp_path):
    one = {"name": "a", "methods": ["dense", "cab"], "model": {"name": "gpt2", "max_length": 512}}
    (tmp_path / "one.yaml").write_text(json.dumps(one))
    (tmp_path / "two.json").write_text(json.dumps({"experiments": [one, one | {"name": "b"}], "global_seed": 5}))
    (single,) = BenchmarkConfig.load(tmp_path / "one.yaml").experiments
    assert single.model.max_length == 512 and single.methods == ("dense", "cab")
    assert [(e.name, e.seed) for e in BenchmarkConfig.load(tmp_path / "two.json").placed()] == [("a", 5), ("b", 5)]
    several = BenchmarkConfig.load("icml_full")
    several.to_yaml(tmp_path / "copy.yaml")
    several.to_json(tmp_path / "copy.json")
    assert BenchmarkConfig.from_yaml(tmp_path / "copy.yaml") == BenchmarkConfig.from_json(tmp_path / "copy.json")
    assert BenchmarkConfig.load(tmp_path / "copy.yaml") == several


def test_an_experiments_own_seed_counts_whatever_it_is(tmp_path):
    text = "global_seed: 5\nexperiments: [{name: own, seed: 42}, {name: unset}, {name: other, seed: 7}]"
    found = BenchmarkConfig.from_text(text, what="x.yaml")
    assert [one.seed for one in found.placed()] == [42, 5, 7]
    found.to_yaml(tmp_path / "copy.yaml")
    assert BenchmarkConfig.load(tmp_path / "copy.yaml").placed() == found.placed()
    made = BenchmarkConfig(experiments=(ExperimentConfig(seed=42), ExperimentConfig()), global_seed=5)
    assert [one.options()["seed"] for one in made.placed()] == [42, 5]
    assert ExperimentConfig().options()["seed"] == 42


@pytest.mark.parametrize(
    "empty",
    [
        "sparsity_sweep: {sparsity_levels: []}",
        "budgets: []",
        "methods: []",
        "context_length_sweep: {context_lengths: []}",
    ],
)
def test_an_empty_list_means_the_same_from_python_and_the_command_line(empty, tmp_path, cli_json):
    path = tmp_path / "one.yaml"
    path.write_text(f"{{name: a, datasets: [pydoc], model: {{name: smollm2-135m, max_length: 512}}, {empty}}}")
    (given,) = BenchmarkConfig.load(path).placed()
    planned = construct(Perplexity, given.options(), what="one").plan()
    rows = cli_json("perplexity", "--config", path, "--dry-run", "--device", "cpu", "--out", tmp_path)["rows"]
    assert [row["id"] for row in rows] == [run.id for run in planned]


def test_an_experiment_without_texts_is_refused_by_both(tmp_path, cli):
    (tmp_path / "one.yaml").write_text("{datasets: [], model: {name: smollm2-135m, max_length: 512}}")
    code, _, err = cli("perplexity", "--config", tmp_path / "one.yaml", "--dry-run", "--device", "cpu")
    assert code == 2 and "nothing to run" in err
    (given,) = BenchmarkConfig.load(tmp_path / "one.yaml").placed()
    assert construct(Perplexity, given.options(), what="one").plan() == []


def test_unknown_keys_are_errors_and_meaningless_ones_are_warned_of():
    with pytest.raises(UserError, match=r"no option 'metods'. Did you mean 'methods'"):
        BenchmarkConfig.from_text("metods: [dense]", what="x.yaml")
    with pytest.raises(UserError, match="no option 'nmae'"):
        BenchmarkConfig.from_text("model: {nmae: gpt2}", what="x.yaml")
    with pytest.raises(UserError, match="no attention method named 'h3o'"):
        BenchmarkConfig.from_text("methods: [h3o]", what="x.yaml")
    with pytest.raises(UserError, match="neither YAML nor JSON"):
        BenchmarkConfig.from_text("a: [", what="x.yaml")
    for text, said in (
        ("dataset_configs: [1]", "expected a mapping from names to options"),
        ("experiments: 3", "a list of experiments"),
        ("experiments: [3]", "a list of experiments"),
        (
            "{datasets: [c4], dataset_configs: {c5: {max_samples: 3}}}",
            "'c5' is none of this experiment's. Did you mean 'c4'",
        ),
        ("{methods: [h2o], method_configs: {h3o: {block_size: 3}}}", "'h3o' is none of this experiment's"),
    ):
        with pytest.raises(UserError, match=said):
            BenchmarkConfig.from_text(text, what="x.yaml")
    given = BenchmarkConfig.from_text("{batch_size: 8, model: {device_map: cuda}}", what="x.yaml")
    assert given.experiments[0].unheard() == ["batch_size", "model.device_map"]
    with pytest.warns(UserWarning, match="8192, 16384"):
        given.experiments[0].options()


def test_a_config_that_is_not_text_is_said(tmp_path):
    (tmp_path / "x.yaml").write_bytes(b"name: \xff\xfe")
    with pytest.raises(UserError, match="not text in UTF-8"):
        BenchmarkConfig.load(tmp_path / "x.yaml")


def test_options_of_methods_reach_the_methods():
    configs = {"streaming_llm": {"num_sink_tokens": 8, "window_size": 100}, "cab_v3": MethodConfig(block_size=32)}
    given = ExperimentConfig(methods=("streaming_llm", "cab_v3", "h2o"), method_configs=configs)
    with pytest.warns(UserWarning, match="left out"):
        study = construct(Perplexity, given.options(), what="x")
    assert [m.label for m in study.methods] == [
        "streaming_llm:num_sink_tokens=8:window_size=100", "cab_v3:block_size=32", "h2o",
    ]  # fmt: skip
    without = MethodConfig(block_size=3, causal=True)
    assert without.word("h2o") == "h2o" and without.unheard("h2o") == ["h2o.block_size"]


SPEC = {
    "PerplexityDataset",
    "MethodName",
    "DatasetConfig",
    "MethodConfig",
    "ModelConfig",
    "ExperimentConfig",
    "BenchmarkConfig",
    "ContextLengthSweepConfig",
    "SparsitySweepConfig",
    "DATASET_CONFIGS",
    "METHOD_CONFIGS",
    "create_quick_test",
    "create_icml_benchmark",
    "get_dataset_config",
    "get_method_config",
    "TextChunk",
    "PerplexityDatasetLoader",
    "WikiTextDataset",
    "C4Dataset",
    "PG19Dataset",
    "create_perplexity_dataset",
    "create_dataloader",
    "get_dataset_stats",
    "load_all_datasets",
    "PerplexityResult",
    "PerplexityEvaluator",
    "compute_perplexity",
    "compute_sliding_window_perplexity",
    "aggregate_results",
    "format_perplexity_result",
    "compute_perplexity_statistics",
    "PerplexityBenchmarkRunner",
    "run_benchmark",
    "analyze_context_scaling",
    "analyze_sparsity_tradeoff",
    "generate_summary_table",
}


def test_every_name_of_the_spec_is_there():
    assert len(SPEC) == 36 and set(dir(package)) >= SPEC
    for name in dir(package):
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError):
        package.nothing  # noqa: B018


def test_each_text_of_an_experiment_has_its_own_number_of_documents():
    def limits(**configs):
        given = ExperimentConfig(
            datasets=("c4", "pg19"), dataset_configs=configs, model=ModelConfig(max_length=512),
            context_length_sweep={"context_lengths": [512]},
        )  # fmt: skip
        study = construct(Perplexity, given.options(), what="x")
        return study.max_samples, {name: study.dataset(name)["max_samples"] for name in given.datasets}

    assert limits(c4={"max_samples": 1000}, pg19={"max_samples": 100}) == (
        ("c4=1000", "pg19=100"), {"c4": 1000, "pg19": 100},
    )  # fmt: skip
    assert limits(c4={"max_samples": 7}) == (("c4=7",), {"c4": 7, "pg19": None})
    assert limits(c4={"max_samples": 7}, pg19={"max_samples": 7}) == (("7",), {"c4": 7, "pg19": 7})
    assert limits() == ((), {"c4": None, "pg19": None})
