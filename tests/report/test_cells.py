from dataclasses import replace

import pytest

from assay.core.errors import UserError
from assay.metrics.intervals import student_t
from assay.report.cells import Cell, cells, labels, varying


def test_seeds_are_pooled_and_settings_kept_apart_in_the_order_they_come(record):
    records = [record(seed=seed, noise=noise, metrics={"R2": noise + seed}) for noise in (0.3, 0.1) for seed in (1, 0)]
    found = cells(records)
    assert [cell.options["noise"] for cell in found] == [0.3, 0.1]
    assert found[0].values("R2") == {0: 0.3, 1: 1.3}
    assert found[0].interval("R2") == student_t([0.3, 1.3])


def test_only_finished_runs_count_and_one_given_twice_counts_once(record):
    done = record(metrics={"R2": 1.0})
    lost = [record(seed=1, status="failed"), record(seed=2, status="diverged", metrics={"R2": 9.0})]
    (cell,) = cells([done, done, *lost])
    assert cell.seeds == (0,)


def test_a_metric_that_no_seed_has_gives_no_interval(record):
    (cell,) = cells([record(metrics={"R2": None, "name": "x"})])
    assert cell.interval("R2") is None
    assert cell.interval("name") is None
    assert cell.interval("other") is None


def test_a_cell_never_mixes_numerics(record):
    here, there = record(seed=0), record(seed=1, device="cuda")
    assert len(cells([here, there])) == 2
    with pytest.raises(UserError, match="device cpu and cuda"):
        Cell((here, there))


def test_an_edited_plugin_is_another_cell_and_shows_as_one(record):
    found = cells([record(version="a" * 64), record(version="b" * 64)])
    assert varying(found) == {"version": ["aaaaaaaa", "bbbbbbbb"]}


def test_varying_names_what_differs_and_nothing_else(record):
    found = cells([record(L=32, noise=0.1, task={"keys": 2}), record(L=32, noise=0.3, task={"keys": 4})])
    assert varying(found) == {"noise": [0.1, 0.3], "task.keys": [2, 4]}
    assert varying(found, ignore=["task"]) == {"noise": [0.1, 0.3]}


def test_devices_become_a_column_and_an_option_of_that_name_keeps_it(record):
    here, there = record(), record(device="cuda")
    assert varying(cells([here, there])) == {"device": ["cpu", "cuda"]}
    named = [
        replace(one, run=replace(one.run, options={"device": name})) for one, name in ((here, "dial"), (there, "lamp"))
    ]
    assert varying(cells(named)) == {"device": ["dial", "lamp"], "numerics.device": ["cpu", "cuda"]}


def test_an_option_that_some_cells_lack_is_none_there(record):
    assert varying(cells([record(a=1), record(a=1, b=2)])) == {"b": [None, 2]}


def test_a_plugin_is_one_column_of_shortest_labels(record):
    specs = [
        {"name": "gru", "width": 8, "depth": 1},
        {"name": "gru", "width": 16, "depth": 1},
        {"name": "mlp", "width": 99, "depth": 3},
    ]
    found = cells([record(model=spec) for spec in specs])
    assert varying(found) == {"model": ["gru:width=8", "gru:width=16", "mlp"]}


def test_labels_reach_into_nested_plugins_and_lists():
    nested = [{"name": "pooled", "mixer": {"name": "attention", "heads": heads, "bias": True}} for heads in (1, 2)]
    assert labels(nested) == ["pooled:mixer=(attention:heads=1)", "pooled:mixer=(attention:heads=2)"]
    assert labels([{"name": "pooled", "mixer": {"name": name}} for name in "ab"]) == [
        "pooled:mixer=a",
        "pooled:mixer=b",
    ]
    assert labels([[1, 2], [{"name": "a"}, {"name": "b"}]]) == ["1,2", "a,b"]


def test_no_records_give_no_cells_and_nothing_varies():
    assert cells([]) == []
    assert varying([]) == {}
