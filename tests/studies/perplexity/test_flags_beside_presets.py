"""A flag beside `--quick-test`, `--icml-full`, `--config` or `--preset` wins: what is planned has its value, and no
other."""

import warnings
from operator import attrgetter

import pytest

from assay.api import Execution, configure
from assay.command.flags import read
from assay.command.study_command import Shell, _configured, _preset
from assay.studies.perplexity.perplexity import Perplexity
from assay.studies.perplexity.windows import read_limits

OWN = """
name: own
model: {name: gpt2, revision: abc, max_length: 1024, torch_dtype: float16}
datasets: [wikitext-2, pydoc]
dataset_configs: {pydoc: {max_samples: 3}}
methods: [dense, h2o, quest]
budgets: [32]
context_length_sweep: {enabled: false}
sparsity_sweep: {enabled: false, fixed_context_length: 512}
output_dir: elsewhere
log_level: DEBUG
"""
PRESETS = {
    "quick": ["--quick-test"],
    "offline": ["--quick-test", "--offline"],
    "icml": ["--icml-full"],
    "ablation": ["--config", "ablation_sparsity"],
    "own": ["--config", "own.yaml"],
    "demo": ["--preset", "demo"],
}


def contexts(study):
    return {context for context, _ in study.points()}


def levels(study):
    """Sparsities that are measured; slots that an experiment asks for beside them are none."""
    return {budget.sparsity for _, budget in study.points()} - {None}


def methods(study):
    return {method.name for method in study.chosen()}


def protocols(study):
    return {study.lane(method, study.points()[0][1])["protocol"] for method in study.chosen()}


def limits(study):
    return set(read_limits(study.max_samples, study.datasets).values())


FLAGS = (
    (["--context-lengths", "512"], contexts, {512}),
    (["--context-lengths", "64"], contexts, {64}),
    (["--context-lengths", "1024", "2048"], contexts, {1024, 2048}),
    (["--context-lengths=512"], contexts, {512}),
    (["--context_lengths", "8192", "--max-length", "8192"], contexts, {8192}),
    (["context_lengths:512"], contexts, {512}),
    (["--max-length", "128"], lambda study: max(contexts(study)) <= 128, True),
    (["--sparsity-levels", "0.4"], levels, {0.4}),
    (["--sparsity-levels", "0.3", "0.4"], levels, {0.3, 0.4}),
    (["--fixed-sparsity", "0.4", "--no-sparsity-sweep", "--context-lengths", "256", "512"], levels, {0.4}),
    (["--model", "gpt2-medium"], attrgetter("model"), "gpt2-medium"),
    (["--model", "gpt2-medium"], attrgetter("revision"), None),
    (["--model", "gpt2", "--revision", "main"], attrgetter("revision"), "main"),
    (["--dtype", "bfloat16"], attrgetter("dtype"), "bfloat16"),
    (["--datasets", "c4"], attrgetter("datasets"), ("c4",)),
    (["--datasets", "c4"], lambda study: len(limits(study)), 1),
    (["--datasets", "pydoc", "--max-samples", "7"], limits, {7}),
    (["--max-samples", "7"], limits, {7}),
    (["--max-windows", "2"], attrgetter("max_windows"), 2),
    (["--methods", "tova", "window"], methods, {"dense", "tova", "window"}),
    (["methods:tova"], methods, {"dense", "tova"}),
    (["--protocol", "prefix", "--sparsity-levels", "0.4"], protocols, {"prefix"}),
    (["--no-sparsity-sweep", "--context-lengths", "256", "512"], attrgetter("sparsity_sweep"), False),
    (["--no-context-sweep"], attrgetter("swept_contexts"), ()),
    (["--context-sweep", "--context-lengths", "256", "512"], attrgetter("swept_contexts"), (256, 512)),
    (["--sparsity-sweep", "--sparsity-levels", "0.4"], attrgetter("sparsity_levels"), (0.4,)),
    (["--budgets", "24"], attrgetter("budgets"), (24,)),
    (["--name", "mine"], attrgetter("title"), "mine"),
    (["--output-dir", "here"], attrgetter("output_dir"), "here"),
    (["--seed", "5"], attrgetter("seed"), 5),
    (["--no-verbose"], attrgetter("verbose"), False),
)


def studies_of(words):
    """The studies that a command line asks for, one per experiment."""
    lines = [read(each, Perplexity, Shell, Execution) for each in Perplexity.commands(words)]
    return [_configured(configure(Perplexity, _preset(line), {}), _preset(line), line)[0] for line in lines]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("flags", "of", "wanted"), FLAGS, ids=[" ".join(flags) for flags, *_ in FLAGS])
def test_flags_win_over_presets(preset, flags, of, wanted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(OWN)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # contexts and methods that are left out are said
        for order in ([*PRESETS[preset], *flags], [*flags, *PRESETS[preset]]):
            for study in studies_of(order):
                assert of(study) == wanted, (study.title, order)


@pytest.mark.parametrize("preset", ["quick", "offline", "icml", "ablation"])
def test_no_sparsity_is_measured_that_no_flag_names(preset):
    """Not in the sweep over contexts either, whose sparsity an experiment fixes."""
    words = ["--sparsity-levels", "0.4", "--context-lengths", "256", "512"]
    for study in studies_of([*PRESETS[preset], *words]):
        assert levels(study) == {0.4} and contexts(study) == {256, 512}


def test_the_command_of_the_documentation_plans_what_it_says(cli_json, tmp_path):
    words = ["--quick-test", "--offline", "--context-lengths", "512", "--dry-run", "--device", "cpu"]
    rows = cli_json("perplexity", *words, "--out", tmp_path)["rows"]
    assert len(rows) == 2 * 13 and not any("context=" in row["run"] for row in rows), "one context needs no mention"


def test_what_gives_way_to_a_flag_is_said():
    with pytest.warns(UserWarning, match="cannot cut down a prefix are left out: cab_v4"):
        Perplexity.commands(["--quick-test", "--protocol", "prefix"])
    with pytest.warns(UserWarning, match="contexts over max_length 512 are left out: 1024"):
        Perplexity.commands(["--quick-test", "--max-length", "512"])


def test_an_axis_of_the_grid_is_a_flag_too(cli_json, tmp_path):
    words = ["--quick-test", "--offline", "--grid", "context_lengths=512", "--dry-run", "--device", "cpu"]
    rows = cli_json("perplexity", *words, "--out", tmp_path)["rows"]
    assert len(rows) == 2 * 13
