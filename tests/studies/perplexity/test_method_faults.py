"""An attention method that is broken fails its own cells, by name, and no others."""

import json
import shutil

import pytest
from perplexity_commands import PLACE

from assay.studies.perplexity import scoring

METHODS = """
from dataclasses import dataclass
from assay.attention import attention
from assay.attention.base import Evict, Select, best

@attention.register("innocent")
@dataclass(frozen=True, kw_only=True)
class Innocent(Evict):
    def initial_score(self, layer):
        return layer.k.float().abs().amax(-1)

@attention.register("no_numbers")
@dataclass(frozen=True, kw_only=True)
class NoNumbers(Evict):
    def initial_score(self, layer):
        return layer.k.float()[..., 0] * float("nan")

@attention.register("now_and_then")
@dataclass(frozen=True, kw_only=True)
class NowAndThen(Evict):
    def score(self, before, step):
        return before + (step.position == 3) * float("nan") if layer_two(step) else before

def layer_two(step):
    return step.layer.index == 1

@attention.register("chooses_nothing")
@dataclass(frozen=True, kw_only=True)
class ChoosesNothing(Select):
    def keep(self, layer, budget):
        return best(layer.scores * float("nan"), layer, budget)

@attention.register("cuts_alone")
@dataclass(frozen=True, kw_only=True)
class CutsAlone(Select):
    def keep(self, layer, budget):
        taken = (layer.scores * float("nan")).topk(4).indices
        return layer.visible[:, None] & (layer.scores.isnan() | layer.causal).scatter(-1, taken, True)

@attention.register("no_heads")
@dataclass(frozen=True, kw_only=True)
class NoHeads(Evict):
    def initial_score(self, layer):
        return layer.k.float()[..., 0].mean(1)

@attention.register("cannot_be_made")
@dataclass(frozen=True, kw_only=True)
class CannotBeMade(Evict):
    def __post_init__(self):
        raise RuntimeError("not today")
"""
BROKEN = {
    "no_numbers": "no_numbers: scores must be finite, and some are no numbers (NaN)",
    "now_and_then": "now_and_then: scores must be finite",
    "chooses_nothing": "chooses_nothing: scores must be finite",
    "cuts_alone": "cuts_alone: scores must be finite",
    "no_heads": "no_heads: initial_score must be (rows, kv_heads, time)",
}
SIZES = ["--context-lengths", "32", "--sparsity-levels", "0.5", "--no-context-sweep", "--max-samples", "2"]


def test_a_method_whose_scores_are_no_numbers_fails_alone_and_says_so(tiny, text, cli, tmp_path):
    plugin = tmp_path / "methods.py"
    plugin.write_text(METHODS)
    base = ["perplexity", "--model", tiny, "--datasets", text, *SIZES, *PLACE, "--plugin", plugin]
    code, _, err = cli(*base, "--methods", "innocent", "--out", tmp_path / "alone")
    assert code == 0, err
    code, _, err = cli(*base, "--methods", "innocent", "h2o", *BROKEN, "--out", tmp_path / "out")
    assert (tmp_path / "out" / "perplexity").exists(), err
    documents = [
        json.loads((tmp_path / out / "perplexity" / "perplexity_latest.json").read_text())["results"]["articles.txt"]
        for out in ("alone", "out")
    ]
    alone, found = (document["innocent"]["sparsity_sweep"]["0.5"] for document in documents)
    assert code == 1 and found["perplexity"] == alone["perplexity"] > 1
    assert documents[1]["h2o"]["sparsity_sweep"]["0.5"]["perplexity"] > 1
    for name, said in BROKEN.items():
        cell = documents[1][name]["sparsity_sweep"]["0.5"]
        assert cell["perplexity"] is None and said in cell["error"], cell


@pytest.mark.usefixtures("undrawn")
def test_what_a_model_cannot_do_fails_its_own_cells_in_one_line_and_takes_no_second_pass(
    tiny, text, cli, tmp_path, monkeypatch
):
    """Rotary positions whose frequencies depend on the length: expected attention undoes them, snapkv does not."""
    model = tmp_path / "dynamic"
    shutil.copytree(tiny, model)
    config = json.loads((model / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    (model / "config.json").write_text(json.dumps(config))
    passes, score = [], scoring.Scorer.__call__

    def counted(self, lanes, windows):
        passes.append([lane.method.name for lane in lanes])
        return score(self, lanes, windows)

    monkeypatch.setattr(scoring.Scorer, "__call__", counted)
    methods = ["snapkv:window_size=4", "expected_attention", "ada:method=leverage"]
    base = ["perplexity", "--model", model, "--datasets", text, *SIZES, *PLACE, "--out", tmp_path / "out"]
    code, _, err = cli(*base, "--protocol", "prefix", "--methods", *methods)
    document = json.loads((tmp_path / "out" / "perplexity" / "perplexity_latest.json").read_text())
    found = document["results"]["articles.txt"]
    cells = {
        name: method["sparsity_sweep"]["0.5"] for name, method in found.items() if "0.5" in method["sparsity_sweep"]
    }
    assert code == 1 and len(cells) == 3, err
    for name, cell in cells.items():
        if name.startswith("snapkv"):
            assert cell["perplexity"] > 1
        else:
            said = (
                "positions can be counted anew for rotary positions of the kinds default, linear, llama3, yarn alone."
            )
            assert cell["perplexity"] is None and said in cell["error"]
    assert {tuple(names) for names in passes} == {("dense", "snapkv")}
