"""Base x grid -> runs, each once; resuming is planning again."""

import hashlib
import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from assay.core.errors import UserError
from assay.core.plan import assign, cohorts, labels, make_plan, parse_grid, points
from assay.core.plugin import registries
from assay.core.run import Numerics, Run, canonical
from assay.core.store import Store
from assay.core.study import Outcome


def test_a_grid_is_read_with_lists_and_ranges() -> None:
    assert parse_grid(["a=1,2", "b=0..3", "m=gru:width=8,mlp"]) == {
        "a": ["1", "2"],
        "b": ["0", "1", "2", "3"],
        "m": ["gru:width=8", "mlp"],
    }


@pytest.mark.parametrize("word", ["a", "=1", "a=", "a=4..1"])
def test_a_malformed_axis_is_an_error(word: str) -> None:
    with pytest.raises(UserError):
        parse_grid([word])
    with pytest.raises(UserError, match="twice"):
        parse_grid(["a=1", "a=2"])


def test_a_plan_is_every_combination_and_each_run_once(toy: Any) -> None:
    plan = make_plan(toy(seeds=(0,)), {"xs": [1, 2, 2], "seeds": ["0..1", "1"]}, Numerics())
    assert [(run.options["x"], run.seed) for run in plan.runs] == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_the_numerics_are_part_of_every_planned_id(toy: Any) -> None:
    ids = [{run.id for run in make_plan(toy(), {}, Numerics(device=device)).runs} for device in ("cpu", "cuda")]
    assert not ids[0] & ids[1]


def test_an_unknown_axis_names_the_nearest(toy: Any) -> None:
    with pytest.raises(UserError, match=r"study 'toy' has no option 'xz'. Did you mean 'xs'"):
        assign(toy(), {"xz": "1"})
    with pytest.raises(UserError, match="no options of its own"):
        assign(toy(), {"xs.width": "1"})


def test_the_order_of_axes_does_not_matter_and_one_of_several_may_be_named_in_the_singular() -> None:
    study = registries()["studies"]["expressivity"](seeds=(0,))
    for grid in ({"L": ["16"], "K_keys": ["4"]}, {"K_keys": ["4"], "L": ["16"]}):
        assert {run.options["L"] for run in make_plan(study, grid, Numerics()).runs} == {16}
    assert assign(study, {"seed": "3"}).seeds == (3,)
    with pytest.raises(UserError, match=r"no option 'K_key'\. Did you mean 'K_keys'"):
        assign(study, {"K_key": "3"})  # one number, not one of several


def test_an_empty_plan_is_an_error(toy: Any) -> None:
    with pytest.raises(UserError, match="nothing to run"):
        make_plan(toy(seeds=()), {}, Numerics())


def test_what_is_stored_is_left_out_failed_is_tried_again_diverged_is_not(toy: Any, tmp_path: Path) -> None:
    plan, store = make_plan(toy(seeds=(0,)), {}, Numerics()), Store(tmp_path)
    done, failed, diverged = plan.runs
    store.commit(Outcome(done, {"a": 1.0}))
    store.commit_failure(failed, "no")
    store.commit(Outcome(diverged, {"a": float("nan")}))
    assert plan.split(store)[1] == [failed]
    assert plan.split(store, retry="none")[1] == []
    assert plan.split(store, retry="diverged")[1] == [failed, diverged]
    assert plan.split(store, force=True)[1] == [done, failed, diverged]


def test_runs_of_one_key_are_one_cohort_halved_until_each_worker_has_one(toy: Any) -> None:
    runs = make_plan(toy(grouped=True), {}, Numerics()).runs
    assert [len(group) for group in cohorts(runs, 1)] == [3, 3]
    four = cohorts(runs, 4)
    assert len(four) == 4 and sorted(run.id for group in four for run in group) == sorted(run.id for run in runs)
    assert len(cohorts(runs, 100)) == len(runs)


def test_labels_tell_apart_what_differs_in_numerics_or_code_alone() -> None:
    def run(device: str, version: str, **options: int) -> Run:
        return Run("s", options, 0, {"s": "1", "mixer/mine": version}, Numerics(device=device))

    runs = [run("cpu", "a" * 64, x=1), run("cuda", "a" * 64, x=1), run("cpu", "b" * 64, x=1), run("cpu", "a" * 64)]
    found = [labels(runs)[one.id] for one in runs]
    assert len(set(found)) == 4
    assert found[1] == "s x=1 numerics.device=cuda code.mixer/mine=aaaaaaaa seed=0"


def test_labels_name_what_the_plan_varies_on_every_run_that_has_it_and_what_a_run_lacks() -> None:
    def run(model: Any, **options: Any) -> Run:
        return Run("s", {"model": model, **options}, 0, {"s": "1"})

    few, many = ({"mixer": {"name": "gru", "conv": conv, "width": 8}} for conv in (0, 4))
    other = {"mixer": {"name": "mlp", "conv": 4, "width": 9}}
    runs = [run(few), run(many), run(other), run(None), Run("t", {"model": None, "size": 3}, 1, {"t": "1"})]
    assert [labels(runs)[one.id] for one in runs] == [
        "s gru model.mixer.conv=0 seed=0",
        "s gru model.mixer.conv=4 seed=0",
        "s mlp model.mixer.conv=4 seed=0",
        "s model=none seed=0",
        "t seed=1",
    ]
    assert labels([run(None)]).popitem()[1] == "s seed=0"


def test_labels_tell_apart_numbers_that_are_equal_but_not_the_same_json() -> None:
    runs = [Run("s", {"x": x, "ys": ys}, 0, {"s": "1"}) for x, ys in ((1, [1]), (1.0, [1.0]), (True, [True]))]
    found = labels(runs)
    assert [found[run.id] for run in runs] == [
        "s x=1 ys=[1] seed=0",
        "s x=1.0 ys=[1.0] seed=0",
        "s x=True ys=[True] seed=0",
    ]


def test_a_plan_asks_a_study_for_its_defaults_once_not_for_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are words to be parsed: ten thousand runs would take minutes."""
    from assay.studies.sae import sae

    parsed, real = [], sae.parsed
    monkeypatch.setattr(sae, "parsed", lambda words: parsed.append(words) or real(words))
    study = registries()["studies"]["sae"](coders=real(["pca", "topk"]), seeds=tuple(range(40)))
    runs = make_plan(study, {}, Numerics()).runs
    assert len(runs) == 120 and len(cohorts(runs, 1)) == 41
    assert len(parsed) <= 2


def test_a_plan_is_linear_and_fast() -> None:
    """Under 1 s of CPU for 10,000 runs on a quiet core (benchmarks/planning.py); a busy one takes longer."""
    study = registries()["studies"]["modular.sweep"](dimensions=tuple(range(1, 51)), seeds=tuple(range(40)))
    make_plan(study, {}, Numerics())
    before = time.process_time()
    runs = make_plan(study, {}, Numerics()).runs
    assert len(labels(runs)) == sum(map(len, cohorts(runs, 2))) == 2000
    assert time.process_time() - before < 2


def test_what_runs_of_one_setting_have_in_common_is_written_out_once(toy: Any, monkeypatch: Any) -> None:
    """A plan of ten thousand runs is mostly seeds: to write out the options of each would take most of its time."""
    written = []
    whole = Run.setting.fget
    monkeypatch.setattr(Run, "setting", property(lambda of: written.append(of) or whole(of)))
    study = registries()["studies"]["icl"](seeds=tuple(range(50)))  # a model and references, each with 50 seeds
    planned = make_plan(study, {"optimizer.lr": [1e-3, 1e-2]}, Numerics(device="cuda")).runs
    assert len(planned) == 3 * 50
    assert len(written) == 2 * 2
    for one in planned:
        text = canonical(one.to_json())
        assert one.id == hashlib.sha256(text.encode()).hexdigest()[:16] == Run.from_json(one.to_json()).id


def test_points_of_a_grid_share_the_objects_in_which_they_do_not_differ() -> None:
    study = registries()["studies"]["icl"]()
    grid = {"model.seq_mixer": ["attention", "gru"], "optimizer.lr": [1e-3, 2e-3, 3e-3], "model.num_layers": [1]}
    found = list(points(study, grid))
    assert [(str(p.model.seq_mixer), p.optimizer.lr) for p in found] == [
        (mixer, rate) for mixer in ("attention", "gru") for rate in (1e-3, 2e-3, 3e-3)
    ]
    assert len({id(p.model) for p in found}) == 2 and len({id(p.optimizer) for p in found}) == 3
    one_by_one = [assign(study, dict(zip(grid, values, strict=True))) for values in itertools.product(*grid.values())]
    assert found == one_by_one
