"""An option that comes later leaves ids and JSON of runs that do not use it as they were."""

from dataclasses import dataclass

from assay.core.convert import added, construct
from assay.core.plugin import settled, to_json
from assay.tasks import tasks
from assay.train.recipe import Train


@dataclass(frozen=True)
class Recipe:
    steps: int = 3
    curriculum: float = added(0.0)


def test_at_its_default_an_added_option_is_in_no_json() -> None:
    assert to_json(Recipe()) == settled(Recipe(), {}) == {"steps": 3}
    assert to_json(Recipe(curriculum=0.9)) == settled(Recipe(curriculum=0.9), {}) == {"steps": 3, "curriculum": 0.9}
    assert construct(Recipe, {"steps": 5}, what="recipe") == Recipe(steps=5)


def test_runs_that_hide_no_values_and_have_no_curriculum_keep_their_ids() -> None:
    assert "values" not in tasks.parse("mqar").spec() and "cells" not in tasks.parse("mqar").spec()
    hidden = tasks.parse("mqar:values=hidden")
    assert hidden.spec()["values"] == "hidden" and tasks.load(hidden.spec()) == hidden
    assert tasks.parse(hidden.label) == hidden
    assert set(to_json(Train())) == {"max_steps", "micro_batch_size", "validate_every", "warmup_ratio"}
