"""Between validations, which may be minutes apart, training says how far it is."""

import pytest

from assay.core.study import Context, Progress
from assay.studies.icl import training
from assay.studies.icl.icl import InContext
from assay.tasks import tasks
from assay.train.recipe import Train


@pytest.mark.parametrize("seeds", [(0,), (0, 1)], ids=["alone", "in a bank"])
def test_every_run_tells_its_steps_before_its_first_validation(
    seeds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SIGN", 0.0)
    task = tasks.parse("mqar:vocab_size=16:input_seq_len=8:num_kv_pairs=2")
    train = Train(max_steps=5, micro_batch_size=4, validate_every=3)
    study, events = InContext(task=task, train=train, seeds=seeds, eval_size=8), list[Progress]()
    runs = [run for run in study.plan() if run.options["model"] is not None]
    assert len(list(study.execute(runs, Context(emit=events.append)))) == len(seeds)
    for run in runs:
        own = [(event.done, bool(event.metrics)) for event in events if event.run == run]
        assert own == [(1, False), (2, False), (3, True), (4, False), (5, True)]
