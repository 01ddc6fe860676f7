"""Faults of the original study's code, each with a test that it is not here. Those with a home elsewhere:

a pair where tests expected a number                     test_sae_metrics: test_sparsity_is_a_pair_of_numbers
an argument scikit-learn no longer has                   test_sae_metrics: test_the_probe_reads_...
figures that read other keys than the files have,
checkpoints that are not saved, or under other keys      test_sae_study: test_the_verbs_write_...
1e-6 read as text                                        test_sae_study: test_numbers_in_yaml_are_numbers
a tuple in the history                                   test_sae_training: TestIntegration::test_full_pipeline
one model trained three times                            test_sae_study: test_the_verbs_write_...
means over positions instead of rows per token,
test sequences among the training rows,
a test part of one row once the rows are enough                   tests/vectors/test_activations.py
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.core.run import Numerics
from assay.sparse_coders import sparse_coders
from assay.studies.sae.ablation import Ablation
from assay.studies.sae.benchmark import Benchmark
from assay.studies.sae.charts import ablation_chart
from assay.studies.sae.config import load_config
from assay.studies.sae.spec.data import ResidentLoader
from assay.studies.sae.spec.model import Encoder, StandardSAE
from assay.studies.sae.spec.training import evaluate, train_epoch
from assay.train.coder_bank import CoderBank, CoderRecipe
from assay.train.device import activate

Cli = Callable[..., tuple[int, str, str]]


def test_the_default_file_is_read_and_fills_what_another_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("training: {epochs: 7}\nconfigurations: [{name: only}]\n")
    config = load_config(str(tmp_path / "mine.yaml"))
    assert config.recipe().epochs == 7 and config.recipe().batch == 128 and config.hidden_dim == 64
    assert config.encoder() == sparse_coders.parse("lse_infomax") and config.lr == 1e-3


@pytest.mark.parametrize("verb", [Ablation, Benchmark])
def test_the_optimizer_of_a_file_is_the_one_that_runs(verb: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "training: {optimizer: sgd}\ndata: {dataset: digits}\nconfigurations: [{name: a}]\nmodels: [{name: a}]\n"
    )
    assert {run.options["recipe"]["optimizer"] for run in verb(config=str(path)).plan()} == {"sgd"}


def test_the_data_folder_of_a_file_is_the_one_that_is_read(cli: Cli, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    Path("mine.yaml").write_text(f"data: {{data_dir: {tmp_path / 'nowhere'}}}\nconfigurations: [{{name: a}}]\n")
    code, _, err = cli("sae", "ablation", "--config", "mine.yaml", "--device", "cpu")
    assert code == 2 and f"'{tmp_path / 'nowhere'}' does not exist" in err


def test_redundancy_is_drawn_as_it_is_for_any_number_of_configurations() -> None:
    """The original scaled it to 64, and drew panels on one another for other than four names."""
    metrics = {"dead_units": 3, "redundancy_score": 1875.5}
    for count in (1, 3, 5):
        results = [
            {
                "config_name": f"c{i}",
                "seed": 1,
                "final_metrics": metrics,
                "feature_similarity": [[1.0, 0.0], [0.0, 1.0]],
            }
            for i in range(count)
        ]
        spec = ablation_chart(results).to_dict()
        assert "1875.5" in json.dumps(spec)
        pictures, bars = spec["vconcat"]
        assert sum(len(row["hconcat"]) for row in pictures["vconcat"]) == count and len(bars["hconcat"]) == 2


WAITING = ("item", "tolist", "__float__", "__bool__", "__int__", "cpu", "numpy", "nonzero")


@pytest.mark.parametrize("word", ["lse_infomax", "lse_infomax:scale=hinge", "lse_infomax:decorrelation=logdet",
    "relu_l1", "topk:k=2", "batch_topk:k=2", "jump_relu", "gated", "matryoshka:k=2"])  # fmt: skip
def test_nothing_in_a_step_waits_for_the_device(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The original read four numbers back after every step."""
    x = torch.randn(64, 12)
    with activate(Numerics()):
        bank = CoderBank([sparse_coders.parse(word)], [0], [1e-3], x, 8, CoderRecipe(epochs=1, batch=32))
        with torch.no_grad():
            bank._step(32)  # the first makes the buffers

            def waits(*_: Any, **__: Any) -> Any:
                raise AssertionError("the host waits for the device")

            with monkeypatch.context() as patched:
                for name in WAITING:
                    patched.setattr(torch.Tensor, name, waits)
                bank._step(32)


def test_the_plain_loop_reads_its_losses_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    read = torch.Tensor.__float__
    monkeypatch.setattr(torch.Tensor, "__float__", lambda self: reads.append(1) or read(self))
    model = Encoder(12, 4)
    loader = ResidentLoader(torch.randn(100, 12), torch.zeros(100, dtype=torch.long), 10, shuffle=True)
    train_epoch(model, loader, torch.optim.SGD(model.parameters(), lr=1e-3))
    assert len(reads) == 5, "total, lse, var, tc and wr; ten batches"


@pytest.mark.parametrize("kind", [Encoder, StandardSAE])
def test_evaluation_is_one_pass(kind: Any) -> None:
    model, rows = kind(12, 4), torch.randn(100, 12)
    loader = ResidentLoader(rows, torch.zeros(100, dtype=torch.long), 30, shuffle=False)
    seen: list[int] = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    found = evaluate(model, loader)
    assert seen == [30, 30, 30, 10]
    if kind is StandardSAE:
        assert found["reconstruction_mse"] == pytest.approx(
            float((model(rows)[0] - rows).detach().square().mean()), rel=1e-5
        )


class Mischief:
    """What a checkpoint that is a program would do."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("mischief"),)


def test_a_checkpoint_is_read_and_never_run(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results/benchmark/checkpoints/ours_seed1"
    folder.mkdir(parents=True)
    torch.save(Mischief(), folder / "model.pt")
    code, _, err = cli("sae", "figures", "--figure", "5")
    assert code == 2 and "no checkpoint" in err and not Path("mischief").exists()


@pytest.mark.slow
def test_two_epochs_on_mnist_show_the_whole_ablation(cli: Cli, tmp_path: Path) -> None:
    """A collapses, B is redundant, C and D are not, C is the sparser: needs MNIST where ASSAY_DATA says it is."""
    from assay.core.errors import UserError
    from assay.core.store import Store
    from assay.data.mnist_arrays import locate

    try:
        locate()
    except UserError:
        pytest.skip("no MNIST here")
    words = ["--epochs", "2", "--seeds", "0", "--device", "cpu", "--quiet", "--out", tmp_path]
    assert cli("sae", "ablation", *words, "--output-dir", tmp_path)[0] == 0
    found = {}
    for record in Store(tmp_path).records("sae"):
        coder = record.run.options["coder"]
        found[tuple(coder[f"lambda_{term}"] for term in ("lse", "var", "tc"))] = record.metrics
    a, b, c, d = (found[key] for key in ((1.0, 0.0, 0.0), (1.0, 1.0, 0.0), (1.0, 1.0, 1.0), (0.0, 1.0, 1.0)))
    assert a["dead_units"] == 64 and b["dead_units"] == c["dead_units"] == d["dead_units"] == 0
    assert b["redundancy_score"] > 1500 and c["redundancy_score"] < 30 and d["redundancy_score"] < 40
    assert c["l0_sparsity"] < 35 < 50 < d["l0_sparsity"]
    assert [m["responsibility_entropy"] for m in (a, b, c, d)] == pytest.approx([4.16, 3.82, 3.98, 3.60], abs=0.03)


def test_a_goal_that_was_not_measured_is_missed(monkeypatch: pytest.MonkeyPatch, script: Any) -> None:
    speed = script("benchmarks/sae.py")
    monkeypatch.setattr("sys.argv", ["sae.py", "full", "--device", "cpu"])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    assert speed.main() == 1
