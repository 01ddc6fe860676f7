"""benchmarks/modular.py times both sides of a ratio alike, and all sides do the same work."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from assay.studies.modular.bilinear import addition_table


@pytest.fixture(scope="module")
def benchmark(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("benchmarks/modular.py")


def test_the_bank_with_autograd_validates_too(benchmark: ModuleType) -> None:
    bank = benchmark.AutogradBank(benchmark.models()[:3])
    found = bank.epoch(torch.optim.AdamW(bank.parameters(), lr=3e-3))
    a, b, target = addition_table(benchmark.P)
    table = bank.table.detach()
    for k in range(3):
        left, right = (table[k, a] + table[k, benchmark.P + b]).chunk(2, dim=1)
        right_answers = ((left * right) @ bank.readout[k].detach()).argmax(dim=1) == target
        assert found[k] == right_answers[3072:].double().mean()


@pytest.mark.parametrize("name", ["training", "tn", "activation", "js"])
def test_both_sides_are_timed_alike(name: str, benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = list[int]()

    def timed(work: Any, *, rounds_: list[int] = rounds, **given: int) -> float:
        rounds_.append(given.get("rounds", 3))
        return 1.0

    monkeypatch.setattr(benchmark, "cpu_seconds", timed)
    monkeypatch.setattr(benchmark, "once", lambda work: pytest.fail("timed once, without a round to warm up"))
    monkeypatch.setattr(np.testing, "assert_allclose", lambda *args, **kwargs: None)
    for plain in ("plain_tn", "plain_js", "plain_activation"):
        monkeypatch.setattr(benchmark, plain, lambda *args: np.zeros(()))
    benchmark.ALL[name]()
    assert len(rounds) >= 2 and len(set(rounds)) == 1
