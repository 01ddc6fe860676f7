"""The driver: every run ends as a record, whatever happens to it."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from assay.api import Execution, Session
from assay.core import store as store_module
from assay.core.drive import Drive, Event
from assay.core.errors import UserError
from assay.core.executors import executors, local
from assay.core.plan import Plan, make_plan
from assay.core.run import Numerics, Provenance, Record
from assay.core.store import Store
from assay.core.study import CHECKPOINT, Outcome


def drive(plan: Plan, store: Store, executor: str = "serial", **options: Any) -> tuple[list[Record], list[Event]]:
    events: list[Event] = []
    _, todo = plan.split(store)
    go = Drive(plan, store, executors[executor](workers=2), workers=2, watch=events.append, **options)
    return go(todo), events


def plan_of(study: Any) -> Plan:
    return make_plan(study, {}, Numerics())


@pytest.mark.parametrize("executor", ["serial", "local"])
@pytest.mark.parametrize("grouped", [False, True])
def test_a_plan_becomes_records_with_artifacts_costs_and_provenance(
    toy: Any, tmp_path: Path, executor: str, grouped: bool
) -> None:
    store, plan = Store(tmp_path), plan_of(toy(grouped=grouped))
    records, events = drive(plan, store, executor)
    assert [record.run for record in records] == list(plan.runs)
    assert [r.metrics["square"] for r in records] == [1.0, 1.1, 4.0, 4.1, 9.0, 9.1]
    assert all(r.cost["seconds"] >= 0 and r.provenance == Provenance.here() and r.status == "done" for r in records)
    assert (store.folder(plan.runs[2]) / "note.txt").read_text() == "2"
    assert sum(event.kind == "stored" for event in events) == sum(event.kind == "progress" for event in events) == 6
    assert drive(plan, store, executor)[1] == []


def test_an_exception_is_a_record_with_its_traceback_and_the_rest_goes_on(toy: Any, tmp_path: Path) -> None:
    (tmp_path / "x=2").write_text("raise always")
    store, plan = Store(tmp_path), plan_of(toy(trap=str(tmp_path)))
    records, _ = drive(plan, store)
    assert [r.status for r in records] == ["done", "done", "failed", "failed", "done", "done"]
    assert "ValueError: trapped at 2" in (records[2].error or "")
    (tmp_path / "x=2").unlink()
    again, events = drive(plan, store)
    assert all(r.status == "done" for r in again) and {e.run.options["x"] for e in events} == {2}


@pytest.mark.parametrize(("executor", "trap"), [("serial", "raise always"), ("local", "kill always")])
def test_a_bad_run_of_a_cohort_fails_alone(toy: Any, tmp_path: Path, executor: str, trap: str) -> None:
    (tmp_path / "x=2").write_text(trap)
    records, _ = drive(plan_of(toy(trap=str(tmp_path), grouped=True)), Store(tmp_path), executor)
    assert [r.status for r in records] == ["done", "done", "failed", "failed", "done", "done"]


@pytest.mark.parametrize("executor", ["serial", "local"])
def test_a_metric_that_is_no_number_is_that_runs_failure(toy: Any, tmp_path: Path, executor: str) -> None:
    (tmp_path / "x=1").write_text("object always")
    records, _ = drive(plan_of(toy(trap=str(tmp_path), seeds=(0,))), Store(tmp_path), executor)
    assert [r.status for r in records] == ["failed", "done", "done"]
    assert "not JSON serializable" in (records[0].error or "")


def test_numbers_of_numpy_are_numbers(toy: Any, tmp_path: Path) -> None:
    (tmp_path / "x=1").write_text("numpy always")
    records, _ = drive(plan_of(toy(trap=str(tmp_path), seeds=(0,))), Store(tmp_path))
    assert records[0].metrics == {"square": 1.5} and records[0].status == "done"


@pytest.mark.parametrize("executor", ["serial", "local"])
def test_an_error_after_the_last_outcome_is_said_and_the_outcome_is_kept(
    toy: Any, tmp_path: Path, executor: str
) -> None:
    (tmp_path / "x=1").write_text("twice always")
    plan, store = plan_of(toy(trap=str(tmp_path), seeds=(0,))), Store(tmp_path)
    go = Drive(plan, store, executors[executor](workers=2), workers=2)
    with pytest.warns(UserWarning, match="toy raised an error after its last run(.|\n)*gave an outcome twice"):
        records = go(plan.runs)
    assert [r.status for r in records] == ["done"] * 3
    assert len(go.errors) == 1 and "gave an outcome twice" in go.errors[0]


def test_a_worker_killed_after_its_last_outcome_is_no_error(toy: Any, tmp_path: Path) -> None:
    (tmp_path / "x=1").write_text("kill after always")
    plan, store = plan_of(toy(trap=str(tmp_path), xs=(1,), seeds=(0,))), Store(tmp_path)
    go = Drive(plan, store, executors["local"](workers=1))
    assert [r.status for r in go(plan.runs)] == ["done"] and not go.errors


@pytest.mark.parametrize("executor", ["serial", "local"])
def test_an_error_while_storing_ends_the_drive(
    toy: Any, tmp_path: Path, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(files: Mapping[Path, bytes]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module, "write_files", full)
    with pytest.raises(UserError, match="No space left"):
        drive(plan_of(toy()), Store(tmp_path), executor)


def test_a_forced_run_that_fails_keeps_the_stored_result(toy: Any, tmp_path: Path) -> None:
    store, plan = Store(tmp_path), plan_of(toy(trap=str(tmp_path), xs=(1,), seeds=(0,)))
    drive(plan, store)
    (tmp_path / "x=1").write_text("raise always")
    with pytest.warns(UserWarning, match="its stored result is kept"):
        Drive(plan, store, executors["serial"](), force=True)(plan.runs)
    record = store.get(plan.runs[0])
    assert record and record.status == "done" and record.artifact("note.txt") == b"1"


def test_a_diverged_record_of_another_driver_is_not_computed_again(toy: Any, tmp_path: Path) -> None:
    store, plan = Store(tmp_path), plan_of(toy(xs=(1,), seeds=(0,)))
    store.commit(Outcome(plan.runs[0], {"square": float("nan")}))
    records = Drive(plan, store, executors["serial"]())(plan.runs)
    assert [r.status for r in records] == ["diverged"]


def test_what_a_plugin_prints_stays_off_standard_output(toy: Any, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    (tmp_path / "x=1").write_text("print always")
    for executor in ("serial", "local"):
        drive(plan_of(toy(trap=str(tmp_path), xs=(1,), seeds=(0,))), Store(tmp_path / executor), executor)
        out, err = capfd.readouterr()
        assert out == "" and "hello from a plug-in" in err


def test_a_killed_cohort_is_sent_again_without_what_is_stored(toy: Any, tmp_path: Path) -> None:
    (tmp_path / "x=3").write_text("kill")
    plan = plan_of(toy(trap=str(tmp_path), grouped=True, seeds=(0,)))
    records, events = drive(Plan(plan.study, plan.runs), Store(tmp_path), "local")
    assert [r.status for r in records] == ["done"] * 3
    started = [event.run.options["x"] for event in events if event.kind == "progress"]
    assert sorted(started) == [1, 2, 3, 3]


def test_a_diverged_run_is_a_record_and_is_not_tried_again(toy: Any, tmp_path: Path) -> None:
    (tmp_path / "x=1").write_text("nan always")
    store, plan = Store(tmp_path), plan_of(toy(trap=str(tmp_path)))
    records, _ = drive(plan, store)
    assert [r.status for r in records][:3] == ["diverged", "diverged", "done"] and records[0].metrics == {
        "square": None
    }
    assert drive(plan, store)[1] == []


@pytest.mark.parametrize("executor", ["serial", "local"])
def test_a_run_over_its_time_is_failed_and_says_so(toy: Any, tmp_path: Path, executor: str) -> None:
    (tmp_path / "x=1").write_text("stall")
    plan = plan_of(toy(trap=str(tmp_path), xs=(1, 2), seeds=(0,)))
    records, _ = drive(plan, Store(tmp_path), executor, timeout_per_run=1.5)
    assert [r.status for r in records] == ["failed", "done"]
    assert "TimeoutError" in (records[0].error or "") and "--timeout-per-run" in (records[0].error or "")


@pytest.mark.parametrize("trap", ["deaf", "held"])
@pytest.mark.parametrize("grouped", [False, True])
def test_a_run_that_does_not_stop_at_its_limit_is_killed_and_the_others_go_on(
    toy: Any, tmp_path: Path, trap: str, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "GRACE", 1.0)
    (tmp_path / "x=1").write_text(f"{trap} always")
    plan = plan_of(toy(trap=str(tmp_path), xs=(1, 2), seeds=(0,), grouped=grouped))
    records, _ = drive(plan, Store(tmp_path), "local", timeout_per_run=1.0)
    assert [r.status for r in records] == ["failed", "done"]
    assert "over its limit of 1 s (--timeout-per-run) and did not stop: killed" in (records[0].error or "")


def test_a_run_that_another_driver_holds_is_waited_for_and_not_computed_twice(toy: Any, tmp_path: Path) -> None:
    store, plan = Store(tmp_path), plan_of(toy(xs=(1,), seeds=(0, 1)))
    held, _ = plan.runs
    other = Store(tmp_path)
    waiting = threading.Event()

    def hold() -> None:
        with other.lock(held) as mine:
            assert mine
            ready.set()
            assert waiting.wait(240)
            other.commit(Outcome(held, {"square": 77.0}))

    ready = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    assert ready.wait(240)

    go = Drive(plan, store, executors["serial"](), watch=lambda e: waiting.set() if e.kind == "waiting" else None)
    records = go(list(plan.runs))
    thread.join()
    assert [r.metrics["square"] for r in records] == [77.0, 1.1]


@pytest.mark.parametrize("kept", [False, True])
def test_an_interrupted_job_starts_over_unless_one_of_its_runs_has_the_checkpoint(
    toy: Any, tmp_path: Path, kept: bool
) -> None:
    """Runs that are computed together share a checkpoint, which lies beside one of them."""
    session = Session.open(toy(grouped=True), {}, Execution(out=tmp_path, device="cpu", executor=executors["serial"]()))
    second = [run for run in session.todo if run.seed == 1]

    def stop(event: Event) -> None:
        if event.run in second and event.kind == "progress":
            folder = session.store.folder(second[1])
            folder.mkdir(parents=True, exist_ok=True)
            if kept:
                (folder / CHECKPOINT).touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        session.compute(stop)
    said = "\n".join(getattr(stopped.value, "__notes__", []))
    assert ("start over" in said) is not kept
    assert all((session.labels[run.id] in said) is (run in second and not kept) for run in session.todo), said
