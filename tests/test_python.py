"""From Python and notebooks: what completes, what is shown, and classes that a session defines itself."""

import inspect
import linecache
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import assay
from assay.api import Execution
from assay.core.drive import Event
from assay.core.plugin import registries
from assay.core.run import Record, Run
from assay.metrics.intervals import student_t
from assay.report import progress
from assay.train import numerics


def test_the_package_lists_its_public_names_and_each_is_there() -> None:
    assert dir(assay) == sorted(assay.__all__) == ["Execution", "Results", "UserError", "load", "run"]
    assert all(getattr(assay, name) for name in dir(assay))
    with pytest.raises(AttributeError, match="no attribute 'rnu'"):
        assay.rnu  # noqa: B018


def test_importing_the_package_costs_nothing() -> None:
    code = "import assay, sys; assert not {'torch', 'numpy', 'assay.api', 'dataclasses'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_run_names_every_option_of_how_to_run_and_explains_it() -> None:
    named = inspect.signature(assay.run).parameters
    for field in fields(Execution):
        assert field.name in named and field.name in (assay.run.__doc__ or ""), field.name
    for name in ("grid", "preset", "plugins", "progress", "watch"):
        assert f"    {name}: " in (assay.run.__doc__ or "")


@pytest.fixture
def found(toy: Any, tmp_path: Path) -> assay.Results:
    def report(self: Any, records: Any, out: Any) -> None:
        import altair as alt

        squares = [record.metrics["square"] for record in records]
        out.finding("3 squared is the largest of <all>.", chart="squares")
        out.table("squares", [{"what": "square", "score": student_t(squares)}], note="over all")
        out.table("more", [{"n": len(records)}])
        out.chart("squares", alt.Chart(alt.InlineData(values=[{"x": 1}])).mark_point().encode(x="x:Q"))

    toy.report = report
    return assay.run("toy", out=tmp_path, executor="serial")


def test_results_say_the_finding_and_show_a_table_with_intervals(found: assay.Results) -> None:
    assert found.finding == "3 squared is the largest of <all>."
    (row,) = found.rows()
    assert row["what"] == "square" and row["score"].n == 6 and row["score"].low < row["score"].mean
    shown = f"{row['score'].mean:.2f} ±{row['score'].high - row['score'].mean:.2f}"
    for text in (repr(found), str(found.table()), repr(found.table())):
        assert shown in text
    assert "Results(6 toy done)" in repr(found) and "3 squared" in repr(found)
    assert f"<td>{shown}</td>" in found._repr_html_() and "of &lt;all&gt;." in found._repr_html_()
    assert found.tables == {"toy": ["squares", "more"]} and found.rows("more") == [{"n": 6}]
    with pytest.raises(assay.UserError, match=r"no table 'mor'\. Did you mean 'more'"):
        found.table("mor")


def test_results_plot_their_charts(found: assay.Results) -> None:
    chart = found.plot()
    assert found.charts == {"toy": ["squares"]} and "point" in str(chart.to_dict()["mark"])
    with pytest.raises(assay.UserError, match="no chart 'nothing'"):
        found.plot("nothing")


def test_results_without_a_finished_run_can_still_be_shown(toy: Any, tmp_path: Path) -> None:
    assert repr(assay.Results([])) == "Results(empty)"
    with pytest.raises(assay.UserError, match="no run is done"):
        assay.Results([]).table()
    lost = [Record(Run("toy", {}, seed, {}), "failed", {}, error="Traceback\nValueError: no\n") for seed in range(2)]
    assert repr(assay.Results(lost)) == "Results(2 toy failed)\n\nfailed (2 runs): ValueError: no"
    with pytest.raises(assay.UserError, match=r"plugins=\[...\]"):
        assay.run("toy", plugin="mine.py", out=tmp_path)


def test_progress_is_one_line_in_a_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], toy: Any, tmp_path: Path
) -> None:
    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(config={"IPKernelApp": {}}))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    assert progress.in_notebook()
    assay.run("toy", out=tmp_path, executor="serial")
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.rpartition("\r")[2].startswith("6/6 toy")
    assay.run("toy", out=tmp_path / "again", executor="serial", progress=False)
    assert capsys.readouterr().err == ""


def test_progress_and_a_watcher_both_see_events(toy: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events: list[Event] = []
    assay.run("toy", xs=(1,), seeds=(0,), out=tmp_path, executor="serial", progress=True, watch=events.append)
    assert [event.kind for event in events][-1] == "stored" and "1/1" in capsys.readouterr().err


CELL = """
from dataclasses import dataclass
from assay.core.study import Outcome, Study
from assay.studies import studies

@studies.register("of_a_cell")
@dataclass(frozen=True, kw_only=True)
class OfACell(Study):
    question = "What is twice the seed?"
    seeds: tuple[int, ...] = (0, 1)

    def plan(self):
        return [self.cell(seed=seed) for seed in self.seeds]

    def execute(self, runs, ctx):
        for run in runs:
            yield Outcome(run, {"twice": twice(run.seed)})

    def report(self, records, out):
        out.table("of_a_cell", [{"twice": record.metrics["twice"]} for record in records])
"""
HELPER = "def twice(number):\n    return FACTOR * number\n"


def executed(**cells: str) -> dict[str, Any]:
    """Runs cells as IPython does: their texts are known to linecache under names of their own."""
    space: dict[str, Any] = {"__name__": "__main__", "FACTOR": 2}
    for name, text in cells.items():
        file = f"<ipython-input-{name}-{hash(text)}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(text, file, "exec"), space)
    return space


def test_classes_of_a_notebook_run_in_this_process_and_are_known_by_their_text(tmp_path: Path) -> None:
    executed(helper=HELPER, cell=CELL)
    first = assay.run("of_a_cell", out=tmp_path, executor="serial")
    assert first.rows() == [{"twice": 0}, {"twice": 2}]
    executed(helper=HELPER, cell=CELL)
    assert [record.run.id for record in assay.run("of_a_cell", out=tmp_path, executor="serial")] == [
        record.run.id for record in first
    ], "the same text is the same code"
    for changed in (
        {"helper": HELPER.replace("FACTOR *", "1 + FACTOR *"), "cell": CELL},
        {"helper": HELPER, "cell": CELL.replace('{"twice": twice', '{"twice": 5 + twice')},
    ):
        executed(**changed)
        again = assay.run("of_a_cell", out=tmp_path, executor="serial")
        assert {record.run.id for record in again}.isdisjoint(record.run.id for record in first)
    with pytest.raises(assay.UserError, match=r"of_a_cell: defined in this session.*executor='serial'"):
        assay.run("of_a_cell", out=tmp_path)


def test_a_class_whose_text_nobody_knows_is_refused(tmp_path: Path) -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(CELL, "<stdin>", "exec"), space)
    with pytest.raises(assay.UserError, match=r"source cannot be read.*plugins="):
        assay.run("of_a_cell", out=tmp_path, executor="serial")


def test_mps_is_taken_where_torch_offers_it_and_said_to_be_untested(
    monkeypatch: pytest.MonkeyPatch, toy: Any, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(assay.UserError, match="torch offers no MPS on this machine"):
        numerics.numerics_for("mps")
    with pytest.raises(assay.UserError, match="choose auto, cpu, cuda, cuda:N or mps"):
        numerics.numerics_for("mps:1")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    chosen = numerics.numerics_for("mps", autocast=True)
    assert (chosen.device, chosen.dtype) == ("mps", "float32") and numerics.gpus_of("mps") == ()
    assert numerics.numerics_for("auto").device != "mps", "what nobody has tested is not chosen by itself"
    with pytest.raises(assay.UserError, match="triton runs on CUDA alone"):
        numerics.numerics_for("mps", backend="triton")
    with pytest.warns(UserWarning, match="never run on mps"):
        assay.run("toy", xs=(1,), out=tmp_path, executor="serial", device="mps")


def test_no_cohorts_or_half_precision_are_planned_for_mps() -> None:
    from assay.core.run import Numerics

    study = registries()["studies"]["icl"]()
    (run, *_) = study.plan()
    placed = Run(run.study, run.options, run.seed, run.versions, Numerics(device="mps"))
    assert study.cohort(placed) == placed.id
