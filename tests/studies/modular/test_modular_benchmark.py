"""benchmarks/modular.py times both sides of a ratio alike, and all sides do the same work."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from assay.models.bilinear import addition_table

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "modular.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_modular", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_bank_with_autograd_validates_too(script: ModuleType) -> None:
    bank = script.AutogradBank(script.models()[:3])
    found = bank.epoch(torch.optim.AdamW(bank.parameters(), lr=3e-3))
    a, b, target = addition_table(script.P)
    table = bank.table.detach()
    for k in range(3):
        left, right = (table[k, a] + table[k, script.P + b]).chunk(2, dim=1)
        right_answers = ((left * right) @ bank.readout[k].detach()).argmax(dim=1) == target
        assert found[k] == right_answers[3072:].double().mean()


@pytest.mark.parametrize("name", ["training", "tn", "activation", "js"])
def test_both_sides_are_timed_alike(name: str, script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = list[int]()

    def timed(work: Any, *, rounds_: list[int] = rounds, **given: int) -> float:
        rounds_.append(given.get("rounds", 3))
        return 1.0

    monkeypatch.setattr(script, "cpu_seconds", timed)
    monkeypatch.setattr(script, "once", lambda work: pytest.fail("timed once, without a round to warm up"))
    monkeypatch.setattr(np.testing, "assert_allclose", lambda *args, **kwargs: None)
    for plain in ("plain_tn", "plain_js", "plain_activation"):
        monkeypatch.setattr(script, plain, lambda *args: np.zeros(()))
    script.ALL[name]()
    assert len(rounds) >= 2 and len(set(rounds)) == 1
