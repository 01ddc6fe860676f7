"""What the in-context study rests on, at the sizes it promises. Slow: minutes of one core each."""

import time
from dataclasses import replace

import pytest

from assay.api import configure
from assay.core.run import Numerics
from assay.mixers import mixers
from assay.nn.random import stream
from assay.studies.icl.icl import InContext
from assay.studies.icl.scoring import score
from assay.studies.icl.training import build
from assay.train.device import activate
from assay.train.trainer import SingleTrainer


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("mixer", "seconds"), [("attention", 240), ("delta_net", 480)])
def test_the_small_preset_recalls_98_percent_in_time_on_one_core(mixer: str, seconds: float) -> None:
    study = configure(InContext, "small", {})
    model = replace(study.model, seq_mixer=mixers.parse(mixer))
    with activate(Numerics()):
        begin = time.process_time()
        trainer = SingleTrainer(build(model, study.task, 2), study.task, study.train, study.optimizer, seed=2)
        for _ in trainer.run():
            (found,) = score(trainer.answers, study.task, size=study.eval_size, rngs=[stream(2, "validation")])
            spent = time.process_time() - begin
            if found["accuracy"] >= 0.98:
                break
            assert spent < seconds, f"{found['accuracy']:.3f} after {spent:.0f} s of CPU"
    assert found["accuracy"] >= 0.98 and spent < seconds
    print(f"{mixer}: {found['accuracy']:.4f} after {trainer.step} steps and {spent:.0f} s of CPU")
