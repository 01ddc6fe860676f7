"""The study's table, ranking and extra probes, from the command."""

import csv
import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.command.cli import main
from assay.core.store import Store
from assay.core.study import Outcome
from assay.encoders import encoders
from assay.report import files
from assay.report.section import Section
from assay.studies.expressivity.expressivity import Expressivity

SPEC = [
    "Model", "k-params", "sec/run", "R2", "R2_0.75", "R2_0.50", "R2_0.25", "NCE(bits)", "RetrieveR2",
    "entropy", "sv_min", "sv_median", "Gini",
]  # fmt: skip
QUICK = [
    "--batch_eval",
    "256",
    "--retr_steps",
    "20",
    "--retr_train_steps",
    "3",
    "--jac_points",
    "4",
    "--executor",
    "serial",
]
Cli = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two seeds of an encoder, of the ceiling and of the floor."""
    out = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_pictures", lambda chart, folder: ())
        assert main(["expressivity", "--models", "StaticMLP", "--seeds", "0", "1", *QUICK, "--out", str(out)]) == 0
    return out


@pytest.fixture
def out(measured: Path, tmp_path: Path) -> Path:
    """A copy of that store, where a command computes only what it adds."""
    return shutil.copytree(measured, tmp_path / "out")


TESTER = """
from assay.studies.expressivity import register, ExpressivityTester

@register("WithNorm{tag}")
class WithNorm(ExpressivityTester):
    def code_norm(self, enc):
        task, batch = self.generator.contexts[0], self.generator.features(64)
        return {{"code_norm": self.code(enc, task, batch).norm(dim=1).mean().item()}}

    def probes(self):
        return [*super().probes(), self.code_norm]
"""


def lines_of(out: str) -> list[str]:
    """The lines from the head of the table on; the findings stand before it."""
    lines = out.splitlines()
    return lines[next(place for place, line in enumerate(lines) if line.startswith("Model ")) :]


def columns(out: str) -> list[str]:
    return lines_of(out)[0].split()


def test_the_table_has_the_specs_columns_in_its_order_then_ours(cli: Cli, out: Path) -> None:
    words = ["expressivity", "--seeds", "0", "1", *QUICK, "--out", out, "--all-columns"]
    code, said, err = cli(*words, "--models", "SelfAttn", "StaticMLP")
    assert code == 0 and "8 planned, 6 stored, 2 to run" in err and columns(said)[: len(SPEC)] == SPEC
    assert {"BA(bits)", "RetrieveR2_trained", "erank", "FLOPs/token"} <= set(columns(said)[len(SPEC) :])
    assert [line.split()[0] for line in lines_of(said)[2:6]] == ["SelfAttn", "StaticMLP", "Oracle", "Noise"]
    assert "±" in said and "log2 n = 8.00" in said and "25.3" in said and "24.6" in said
    trained = cli(*words, "--models", "StaticMLP", "--train_steps", "2")[1]
    assert columns(trained)[:5] == ["Model", "k-params", "sec/run", "R2", "AfterTrainR2"]


def test_the_answer_comes_first_and_few_columns_unless_all_are_asked_for(
    cli: Cli, cli_json: Callable[..., Any], out: Path
) -> None:
    words = ["expressivity", "--seeds", "0", "1", *QUICK, "--out", out, "--models", "StaticMLP"]
    said, err = cli(*words)[1:]
    assert said.startswith("In these runs (") and "2 seeds" in said.splitlines()[0]
    assert columns(said) == ["Model", "k-params", "R2", "NCE(bits)", "RetrieveR2_trained"]
    assert "--all-columns" in err
    found = cli_json(*words)
    assert " ".join(said[: said.index("Model ")].split()) == " ".join(found["findings"])
    assert SPEC[-1] in found["rows"][0], "what is not shown is in the files"


def test_fast_leaves_the_jacobian_columns_empty_but_there(cli: Cli, tmp_path: Path) -> None:
    out = cli(
        "expressivity", "--models", "StaticMLP", "--seeds", "0", *QUICK, "--fast", "--out", tmp_path, "--all-columns"
    )[1]
    assert columns(out)[: len(SPEC)] == SPEC
    row = dict(zip([*columns(out)[:3], "rest"], lines_of(out)[2].split(maxsplit=3), strict=True))
    assert row["Model"] == "StaticMLP" and " - " in row["rest"]
    assert "jac_points=0" in out and "fast=" not in out, "the setup says what --fast meant"


def test_json_rows_carry_intervals_and_ceilings_and_files_exist(cli_json: Callable[..., Any], out: Path) -> None:
    found = cli_json("expressivity", "--models", "StaticMLP", "--seeds", "0..2", *QUICK, "--out", out)
    row = found["rows"][0]
    assert (
        row["Model"] == "StaticMLP" and row["R2"]["n"] == 3 and row["R2"]["low"] < row["R2"]["mean"] < row["R2"]["high"]
    )
    assert row["R2_ceiling"] > 0.99 and row["RetrieveR2_ceiling"] == 1.0
    names = {Path(path).name for path in found["files"]}
    assert {"expressivity.csv", "expressivity.json", "r2_by_share.pdf", "r2_by_components.png"} <= names
    with (out / "expressivity" / "expressivity.csv").open() as file:
        first = next(csv.DictReader(file))
    assert float(first["R2"]) == pytest.approx(row["R2"]["mean"]) and first["R2_n"] == "3"


def test_a_grid_gives_a_column_and_each_row_its_own_ceiling(cli_json: Callable[..., Any], out: Path) -> None:
    words = ["--models", "StaticMLP", "--seeds", "0", *QUICK, "--grid", "noise=0.03,1.0", "--out", out]
    rows = cli_json("expressivity", *words)["rows"]
    quiet, loud = (row for row in rows if row["Model"] == "StaticMLP")
    assert (quiet["noise"], loud["noise"]) == (0.03, 1.0)
    assert quiet["R2_ceiling"] > 0.99 > 0.8 > loud["R2_ceiling"] > loud["R2"]["mean"]
    section = Section("expressivity")
    Expressivity().report(Store(out).records("expressivity"), section)
    settings = {chart.caption.partition(": ")[0] for chart in section.charts}
    assert settings == {"noise=0.03", "noise=1.0"}, "a chart of one setting says which"


def test_ambiguous_keys_show_their_low_ceiling(cli_json: Callable[..., Any], tmp_path: Path) -> None:
    words = ["--models", "StaticMLP", "--seeds", "0", *QUICK, "--keys", "ambiguous", "--out", tmp_path]
    assert cli_json("expressivity", *words)["rows"][0]["RetrieveR2_ceiling"] == pytest.approx(8 / 31)


def test_an_extra_probe_of_a_subclass_becomes_a_column(cli_json: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "probe.py"
    path.write_text(TESTER.format(tag=tmp_path.name))
    words = ["--models", "StaticMLP", "--seeds", "0", "1", *QUICK, "--plugin", path, "--out", tmp_path]
    row = cli_json("expressivity", *words, "--tester", f"WithNorm{tmp_path.name}")["rows"][0]
    assert row["code_norm"]["n"] == 2 and row["code_norm"]["mean"] > 0


FOREIGN = """
from assay.studies.expressivity import Config, nn, register

@register("Mine")
class Mine(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.net = nn.Linear(cfg.D_in, cfg.D_z, bias={bias})
    def forward(self, x):
        return self.net(x)[:, -1].relu()
"""


def test_the_page_tells_versions_of_a_foreign_encoder_apart_without_its_file(cli: Cli, out: Path) -> None:
    path = out.with_name("mine.py")
    for bias in (True, False):
        path.write_text(FOREIGN.format(bias=bias))
        code, _, err = cli("expressivity", "--plugin", path, "--models", "Mine", *QUICK, "--seeds", "0", "--out", out)
        assert code == 0, err
    encoders._classes.pop("Mine")
    code, _, _ = cli("report", "--out", out)
    page = (out / "report.html").read_text()
    versions = set(re.findall(r"Mine @([0-9a-f]{8})", page))
    assert code == 0 and len(versions) == 2


def test_one_studys_odd_records_do_not_take_the_page_away(cli: Cli, out: Path) -> None:
    store = Store(out)
    old = store.records()[0]
    run = dataclasses.replace(old.run, options={**old.run.options, "gone": 1, "model": {"name": "Was", "width": 3}})
    store.commit(Outcome(run, {"R2": 0.5}, {"cpu_seconds": 1.0}))
    code, _, err = cli("report", "--out", out)
    assert code == 0 and "could not be reported" not in err
    assert "Was:width=3" in (out / "report.html").read_text()


def test_the_page_shows_the_study(cli: Cli, out: Path) -> None:
    code, said, _ = cli("report", "--out", out)
    page = (out / "report.html").read_text()
    assert code == 0 and said.strip() == str(out / "report.html")
    assert "StaticMLP" in page and "RetrieveR2_trained" in page and "application/json" in page


def test_the_python_interface_runs_loads_and_tabulates(tmp_path: Path) -> None:
    import assay

    sizes = {"batch_eval": 256, "retr_steps": 5, "retr_train_steps": 0, "jac_points": 0}
    results = assay.run(
        "expressivity",
        models=["StaticMLP"],
        seeds=[0],
        grid={"noise": [0.03, 0.3]},
        executor="serial",
        out=tmp_path,
        **sizes,
    )
    assert len(results) == 6 and {record.status for record in results} == {"done"}
    frame = assay.load(tmp_path).to_pandas()
    assert set(frame["model"]) == {"static_mlp", "Oracle", "Noise"} and set(frame["noise"]) == {0.03, 0.3}
    assert frame["R2"].notna().all() and (frame["cost.seconds"] > 0).all()
    with pytest.raises(assay.UserError, match="Did you mean 'noise'"):
        assay.run("expressivity", nois=1)
    assert json.loads((next(tmp_path.rglob("record.json"))).read_text())["run"]["study"] == "expressivity"
