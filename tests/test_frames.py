"""Records as a table: an option and a metric of one name are two columns."""

from pathlib import Path
from typing import Any

import pytest

import assay
from assay.core.run import Numerics, Run
from assay.core.store import Store
from assay.core.study import Outcome


@pytest.fixture
def frame(tmp_path: Path) -> Any:
    """Two studies; one run stopped early, one failed, one has names that stand in the first columns."""
    store = Store(tmp_path)
    early, failed = (Run("s", {"epochs": 100, "pool": 4, "lr": 0.1}, seed, {"s": "1"}, Numerics()) for seed in (0, 1))
    store.commit(Outcome(early, {"epochs": 7, "pool": 2, "loss": 0.5}, {"seconds": 1.0}))
    store.commit_failure(failed, "no")
    odd = Run("t", {"seed": "mine", "epochs": 3, "model": {"name": "gru", "device": "x"}}, 5, {"t": "1"}, Numerics())
    store.commit(Outcome(odd, {"status": 1.0, "id": 2.0}))
    return assay.load(tmp_path).to_pandas().set_index(["study", "seed"])


def test_an_option_and_a_metric_of_one_name_are_both_kept(frame: Any) -> None:
    early, failed = frame.loc[("s", 0)], frame.loc[("s", 1)]
    assert (early["epochs"], early["options.epochs"], early["pool"], early["options.pool"]) == (7, 100, 2, 4)
    assert (early["lr"], early["loss"], early["cost.seconds"]) == (0.1, 0.5, 1.0)
    # The option of a run without metrics stands in the option's column, not in the metric's.
    assert failed["options.epochs"] == 100 and failed["epochs"] != failed["epochs"]


def test_names_without_a_collision_stay_as_they_are(frame: Any) -> None:
    other = frame.loc[("t", 5)]
    assert (other["epochs"], other["model"], other["model.device"]) == (3, "gru", "x")


def test_the_first_columns_are_never_overwritten(frame: Any) -> None:
    other = frame.loc[("t", 5)]
    assert (other["options.seed"], other["status"], other["metrics.status"], other["metrics.id"]) == (
        "mine",
        "done",
        1.0,
        2.0,
    )
    assert len(other["id"]) == 16
