"""Shortcuts for tests that look at something else."""

import pytest


def few_probe_steps(patch: pytest.MonkeyPatch) -> None:
    """Logistic probes stop after a few evaluations: fitting them takes half of the time of a small sae run."""
    from assay.metrics import logistic

    minimise = logistic.minimise
    patch.setattr(logistic, "minimise", lambda objective, start, most: minimise(objective, start, min(most, 8)))
