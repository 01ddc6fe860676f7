from dataclasses import replace

import pytest

from assay.core.errors import UserError
from assay.metrics.intervals import student_t
from assay.report.rows import Row, by_setting, labels, rows, setup_of, varying


def test_seeds_are_pooled_and_settings_kept_apart_in_the_order_they_come(record):
    records = [record(seed=seed, noise=noise, metrics={"R2": noise + seed}) for noise in (0.3, 0.1) for seed in (1, 0)]
    found = rows(records)
    assert [row.options["noise"] for row in found] == [0.3, 0.1]
    assert found[0].values("R2") == {0: 0.3, 1: 1.3}
    assert found[0].interval("R2") == student_t([0.3, 1.3])


def test_only_finished_runs_are_scored_diverged_ones_are_counted_and_one_given_twice_counts_once(record):
    done = record(metrics={"R2": 1.0})
    lost = [record(seed=1, status="failed"), record(seed=2, status="diverged", metrics={"R2": 9.0})]
    (row,) = rows([done, done, *lost])
    assert row.seeds == (0, 2) and row.values("R2") == {0: 1.0}
    assert (row.n, row.diverged) == (2, 1)


def test_a_metric_that_no_seed_has_gives_no_interval(record):
    (row,) = rows([record(metrics={"R2": None, "name": "x"})])
    assert row.interval("R2") is None
    assert row.interval("name") is None
    assert row.interval("other") is None


def test_a_row_never_mixes_numerics(record):
    here, there = record(seed=0), record(seed=1, device="cuda")
    assert len(rows([here, there])) == 2
    with pytest.raises(UserError, match="device cpu and cuda"):
        Row((here, there))


def test_an_edited_plugin_is_another_row_and_shows_as_one(record):
    found = rows([record(version="a" * 64), record(version="b" * 64)])
    assert varying(found) == {"version": ["aaaaaaaa", "bbbbbbbb"]}


def test_varying_names_what_differs_and_nothing_else(record):
    found = rows([record(L=32, noise=0.1, task={"keys": 2}), record(L=32, noise=0.3, task={"keys": 4})])
    assert varying(found) == {"noise": [0.1, 0.3], "task.keys": [2, 4]}
    assert varying(found, ignore=["task"]) == {"noise": [0.1, 0.3]}


def test_devices_become_a_column_and_an_option_of_that_name_keeps_it(record):
    here, there = record(), record(device="cuda")
    assert varying(rows([here, there])) == {"device": ["cpu", "cuda"]}
    named = [
        replace(one, run=replace(one.run, options={"device": name})) for one, name in ((here, "dial"), (there, "lamp"))
    ]
    assert varying(rows(named)) == {"device": ["dial", "lamp"], "numerics.device": ["cpu", "cuda"]}


def test_an_option_that_some_rows_lack_is_none_there(record):
    assert varying(rows([record(a=1), record(a=1, b=2)])) == {"b": [None, 2]}


def test_a_plugin_is_one_column_of_shortest_labels(record):
    specs = [
        {"name": "gru", "width": 8, "depth": 1},
        {"name": "gru", "width": 16, "depth": 1},
        {"name": "mlp", "width": 99, "depth": 3},
    ]
    found = rows([record(model=spec) for spec in specs])
    assert varying(found) == {"model": ["gru:width=8", "gru:width=16", "mlp"]}


def test_labels_reach_into_nested_plugins_and_lists():
    nested = [{"name": "pooled", "mixer": {"name": "attention", "heads": heads, "bias": True}} for heads in (1, 2)]
    assert labels(nested) == ["pooled:mixer=(attention:heads=1)", "pooled:mixer=(attention:heads=2)"]
    assert labels([{"name": "pooled", "mixer": {"name": name}} for name in "ab"]) == [
        "pooled:mixer=a",
        "pooled:mixer=b",
    ]
    assert labels([[1, 2], [{"name": "a"}, {"name": "b"}]]) == ["1,2", "a,b"]


def test_no_records_give_no_rows_and_nothing_varies():
    assert rows([]) == []
    assert varying([]) == {}


def test_names_are_columns_and_the_label_has_those_that_differ(record):
    models = [{"name": "gru", "width": width} for width in (8, 16)]
    found = rows(
        [record(model=model, task={"name": "mqar"}, noise=noise) for model in models for noise in (0.1, 0.3)],
        names={"task": "task", "model": "model"},
    )
    assert [row.names for row in found][:2] == [{"task": "mqar", "model": "gru:width=8"}] * 2
    assert [row.label for row in found] == ["gru:width=8", "gru:width=8", "gru:width=16", "gru:width=16"]
    assert [row.series for row in found][:2] == ["gru:width=8 noise=0.1", "gru:width=8 noise=0.3"]
    assert list(by_setting(found)) == ["noise=0.1", "noise=0.3"]


def test_a_setting_keeps_the_whole_path_where_two_options_end_alike(record):
    (first, _) = rows([record(a={"width": n}, b={"width": n}) for n in (1, 2)])
    assert first.where == "a.width=1 b.width=1"


def test_a_name_may_be_a_function_whose_option_is_then_ignored(record):
    found = rows(
        [record(model=f"file-{n}.py") for n in (1, 2)],
        names={"Model": lambda one: one.run.options["model"].removesuffix(".py")},
        ignore=["model"],
    )
    assert [(row.label, row.setting) for row in found] == [("file-1", {}), ("file-2", {})]


def test_numbers_are_found_by_their_path(record):
    (row,) = rows([record(seed=seed, metrics={"by_gap": {"4": seed / 2}}) for seed in (0, 1)])
    assert row.values("by_gap", "4") == {0: 0.0, 1: 0.5} and row.values("by_gap", "8") == {}


def test_rows_may_be_pooled_over_an_option_and_then_seeds_are_settings(record):
    records = [
        record(seed=seed, data={"shard": shard}, noise=0.1, metrics={"loss": 10 * seed + shard})
        for seed in (3, 4)
        for shard in (1, 0)
    ]
    found = rows([*records, records[0]], over="data.shard")
    assert [row.values("loss") for row in found] == [{0: 30, 1: 31}, {0: 40, 1: 41}]
    assert [row.setting for row in found] == [{"seed": 3}, {"seed": 4}], "neither the shard nor what all share"
    with pytest.raises(AssertionError, match="shard twice"):
        Row((records[0], records[2]), over="data.shard")


def test_runs_that_share_objects_are_told_apart_by_a_seed_that_is_not_pooled_over(record):
    one = record(seed=1, shard=0)
    shared = replace(one, run=replace(one.run, seed=2))
    assert shared.run.options is one.run.options
    assert [row.seeds for row in rows([one, shared], over="shard")] == [(1,), (2,)]
    assert [row.seeds for row in rows([one, shared])] == [(1, 2)]


def test_rows_over_an_option_may_be_tuned(record):
    records = [
        record(shard=shard, lr=lr, metrics={"valid": lr, "test": shard + lr}) for shard in (0, 1) for lr in (0.1, 0.2)
    ]
    (row,) = rows(records, over="shard", tune="lr", score=lambda one: one.metrics["valid"])
    assert row.values("test") == {0: 0.2, 1: 1.2} and row.tuned_value == 0.2


def test_failed_runs_have_rows_where_they_are_asked_for(record):
    records = [record(noise=0.1), record(noise=0.3, status="failed", error="RuntimeError: broken")]
    assert [row.options["noise"] for row in rows(records)] == [0.1]
    lost = rows(records, status=("done", "failed"))[1]
    assert lost.records[0].error == "RuntimeError: broken" and not lost.finished and lost.first == {}


def test_a_label_has_every_option_that_is_not_at_its_default():
    """`delta_net:conv=0` and `sparse_attention:method=...` once read `delta_net` and `sparse_attention`."""
    from assay.mixers import mixers

    for word in ("delta_net:conv=0", "sparse_attention:method=window:slots=8"):
        assert labels([mixers.parse(word).spec()]) == [word]
        assert labels([mixers.parse(word).spec()], short=True) == [word.partition(":")[0]]
    assert labels([mixers.parse("delta_net").spec()]) == ["delta_net"]


def test_the_setup_says_what_all_rows_share(record):
    records = [
        record(seed=seed, lr=lr, model={"name": name}, train={"steps": 300, "warmup": 0}, tied=False, noise=noise)
        for seed in (0, 1)
        for lr in (0.1, 0.2)
        for name, noise in (("a", 1.5), ("b", 2.5))
    ]
    found = rows(records, names={"model": "model"}, tune="lr", score=lambda one: 0.0)
    assert setup_of(found) == "Setup: steps=300 warmup=0; lr tried: 0.1, 0.2; 2 seeds."


def test_the_setup_says_what_only_some_rows_have_if_those_agree(record):
    fitted, trained = record(model={"name": "pca"}, recipe=None), record(model={"name": "topk"}, recipe={"epochs": 4})
    assert setup_of(rows([fitted, trained], names={"model": "model"})) == "Setup: epochs=4; 1 seed."
