"""Bilinear models of many widths as one program: each is what the obvious loop makes of it alone."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from assay.core.errors import UserError
from assay.nn.random import stream
from assay.studies.modular.bilinear import Model, addition_table, constructive_model, one_hot
from assay.studies.modular.bilinear_bank import (
    BilinearBank,
    Epoch,
    PairSplit,
    Recipe,
    _add_dense,
    _add_rows,
    fresh_models,
)

P = 11
RECIPE = Recipe(epochs=4, batch=10)
WIDTHS = [1, 3, 16, 17, 40, 3]
SEEDS = [0, 0, 0, 1, 1, 1]


def models(which: slice | list[int] = slice(None)) -> list[Model]:
    widths = torch.tensor(WIDTHS)[which].tolist()
    return fresh_models(P, widths, torch.tensor(SEEDS)[which].tolist())


def trained(given: list[Model], seeds: list[int], recipe: Recipe = RECIPE) -> tuple[BilinearBank, list[Epoch]]:
    bank = BilinearBank(given, seeds, recipe)
    return bank, list(bank.run())


def alone(model: Model, seed: int, anneal: float = 0.0) -> tuple[list[float], list[float]]:
    """The obvious loop: one-hot inputs, autograd, torch's optimizer and schedule."""
    split, rng = PairSplit.of(P, seed, RECIPE), stream(seed, "order")
    a, b, target = addition_table(P)
    inputs = one_hot(a, b, P).to(model.w_p.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RECIPE.lr, weight_decay=RECIPE.weight_decay)
    steps = RECIPE.epochs * (len(split.train) // RECIPE.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (steps - step) / (anneal * steps)) if anneal else 1.0
    )
    val_acc, losses = [], []
    for _ in range(RECIPE.epochs):
        epoch = []
        for rows in split.order(RECIPE.batch, rng):
            loss = nn.functional.cross_entropy(model(inputs[rows]), target[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            epoch.append(loss.item())
        right = model(inputs[split.val]).argmax(dim=1) == target[split.val]
        val_acc.append(right.double().mean().item())
        losses.append(sum(epoch) / len(epoch))
    return val_acc, losses


@pytest.mark.parametrize("anneal", [0.0, 0.4, 1.0])
def test_a_bank_is_the_plain_loop_model_by_model(anneal: float) -> None:
    bank, history = trained([model.double() for model in models()], SEEDS, replace(RECIPE, anneal=anneal))
    for k, (model, seed) in enumerate(zip(models(), SEEDS, strict=True)):
        val_acc, losses = alone(model.double(), seed, anneal)
        for mine, plain in zip(bank.models[k].parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(mine, plain, rtol=0, atol=1e-9)
        assert [epoch.val_acc[k] for epoch in history] == val_acc
        assert [epoch.loss[k] for epoch in history] == pytest.approx(losses, abs=1e-9)


@pytest.mark.parametrize("which", [[0], [4], [1, 5], [0, 2, 3]], ids=str)
def test_any_subset_of_models_gives_the_same_bits(which: list[int]) -> None:
    (whole, _), (some, _) = trained(models(), SEEDS), trained(models(which), [SEEDS[k] for k in which])
    for place, k in enumerate(which):
        for mine, other in zip(some.models[place].parameters(), whole.models[k].parameters(), strict=True):
            assert torch.equal(mine, other)


def test_the_loss_of_a_model_has_the_same_bits_however_many_are_trained_beside_it() -> None:
    recipe, widths, seeds = Recipe(epochs=3, batch=32, lr=1e-2), [6, 8, 12, 16, 2, 3], [0, 0, 0, 1, 1, 1]
    _, whole = trained(fresh_models(31, widths, seeds), seeds, recipe)
    for which in ([0], [5], [0, 1], [1, 2, 4], [0, 2, 3, 4, 5]):
        chosen = [seeds[k] for k in which]
        _, some = trained(fresh_models(31, [widths[k] for k in which], chosen), chosen, recipe)
        assert [[epoch.loss[place] for place in range(len(which))] for epoch in some] == [
            [epoch.loss[k] for k in which] for epoch in whole
        ]


def test_a_large_group_is_split_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = trained(models(), SEEDS)
    monkeypatch.setattr("assay.studies.modular.bilinear_bank.TOGETHER", 1)
    parts, _ = trained(models(), SEEDS)
    assert len(BilinearBank(models(), SEEDS, RECIPE).groups) == len(SEEDS)
    for mine, other in zip(parts.models, whole.models, strict=True):
        assert torch.equal(mine.w_p, other.w_p) and torch.equal(mine.bi_linear.weight, other.bi_linear.weight)


def test_a_model_stops_at_its_first_perfect_epoch_and_keeps_those_weights() -> None:
    """The constructive model is right from the start; small steps do not change that within one epoch."""
    gentle = replace(RECIPE, lr=1e-6)
    bank, history = trained([*models([1]), constructive_model(P), *models([4])], [0, 0, 1], gentle)
    first, *rest = history
    assert first.val_acc[1] == 1 and first.finished == (1,)
    assert all(1 not in epoch.val_acc for epoch in rest) and rest[-1].finished == (0, 2)
    _, (only,) = trained([constructive_model(P)], [0], gentle)
    assert only.number == 1, "a bank without models is done"
    companion, _ = trained(models([4]), [1], gentle)
    assert torch.equal(bank.models[2].w_p, companion.models[0].w_p), "who leaves takes nothing along"


def test_a_model_that_diverges_takes_no_other_with_it() -> None:
    wild = models()
    with torch.no_grad():
        wild[1].bi_linear.weight.mul_(1e25)
    (mixed, history), (calm, _) = trained(wild, SEEDS), trained(models(), SEEDS)
    first = history[0]
    assert first.finished == (1,) and not torch.tensor(first.loss[1]).isfinite()
    for k in (0, 2, 3, 4, 5):
        assert torch.equal(mixed.models[k].bi_linear.weight, calm.models[k].bi_linear.weight)


def test_a_split_is_75_to_25_and_the_same_for_every_width() -> None:
    split = PairSplit.of(64, 3, Recipe())
    assert (len(split.train), len(split.val)) == (3072, 1024)
    assert torch.equal(torch.cat([split.train, split.val]).sort().values, torch.arange(64 * 64))
    assert split.order(64, stream(3, "order")).shape == (48, 64)
    assert not torch.equal(split.val, PairSplit.of(64, 4, Recipe()).val)


def test_test_pairs_are_taken_from_validation_and_nothing_else_changes() -> None:
    plain, third = (PairSplit.of(64, 3, Recipe(test_share=share)) for share in (0.0, 0.125))
    assert (len(third.train), len(third.val), len(third.test)) == (3072, 512, 512) and len(plain.test) == 0
    assert torch.equal(third.train, plain.train) and torch.equal(torch.cat([third.val, third.test]), plain.val)


def test_gradients_of_rows_are_the_same_by_products_with_one_hot_inputs() -> None:
    """The form for CUDA, which has no scatter that is both fast and always in one order."""
    rows = torch.randint(P * P, (3, 20), generator=stream(0, "rows"))
    group = BilinearBank(models([1, 1, 1]), [0, 1, 2], RECIPE).groups[0]
    (picks,), _ = group._lookups(rows[None])
    returned = torch.randn(3, 20, 2, 16, generator=stream(0, "returned"))
    one, other = torch.full_like(group.table, torch.nan), torch.full_like(group.table, torch.nan)
    _add_rows(one, picks, returned)
    _add_dense(other, picks, returned)
    torch.testing.assert_close(one, other)


def test_a_bank_learns_addition_and_stops() -> None:
    quick = Recipe(epochs=60, batch=32, lr=1e-2, weight_decay=0.5)
    bank, history = trained(fresh_models(31, [32], [0]), [0], quick)
    assert history[0].val_acc[0] < 0.5 and history[-1].val_acc[0] == 1 and len(history) < 60
    a, b, target = addition_table(31)
    assert (bank.models[0](one_hot(a, b, 31)).argmax(dim=1) == target).double().mean() > 0.99


def test_too_few_pairs_are_refused_in_words() -> None:
    with pytest.raises(UserError, match="Lower batch"):
        PairSplit.of(5, 0, Recipe())
    with pytest.raises(UserError, match="between 0 and 1"):
        Recipe(train_share=1.5)
    with pytest.raises(UserError, match="some pairs to validate"):
        Recipe(test_share=0.25)


def test_a_model_that_has_to_settle_stops_after_so_many_perfect_epochs_in_a_row() -> None:
    quick = Recipe(epochs=80, batch=32, lr=1e-2, weight_decay=0.5, settle=4)
    _, history = trained(fresh_models(31, [32], [0]), [0], quick)
    perfect = [epoch.val_acc[0] == 1 for epoch in history]
    assert perfect[-4:] == [True] * 4 and len(history) < 80
    assert not any(all(perfect[place : place + 4]) for place in range(len(perfect) - 4)), "nor did it stop later"
    assert "settle" not in Recipe().recipe() and Recipe(settle=2).recipe()["settle"] == 2, "ids of before are kept"


def test_a_streak_of_perfect_epochs_is_resumed() -> None:
    recipe = Recipe(epochs=80, batch=32, settle=4)
    bank = BilinearBank(fresh_models(31, [4, 8], [0, 0]), [0, 0], recipe)
    bank.streaks = [3, 1]
    again = BilinearBank(fresh_models(31, [8], [0]), [0], recipe)
    again.restore(bank.state(), [1])
    assert again.streaks == [1]


def test_where_the_rate_falls_a_model_is_trained_to_its_last_epoch_and_settles() -> None:
    quick = Recipe(epochs=40, batch=32, lr=1e-2, weight_decay=0.5, anneal=0.5)
    rates = [rate for epoch in range(1, 41) for rate in quick.rates(epoch, 5)]
    assert rates[:101] == [1e-2] * 101 and sorted(rates, reverse=True) == rates and 0 < rates[-1] < 2e-4
    _, history = trained(fresh_models(31, [32], [0]), [0], quick)
    perfect = [epoch.val_acc[0] == 1 for epoch in history]
    assert len(history) == 40 and history[-1].finished == (0,) and perfect.index(True) < 35 and all(perfect[-5:])
    assert "anneal" not in Recipe().recipe() and quick.recipe()["anneal"] == 0.5, "ids of before are kept"
    with pytest.raises(UserError, match="share of the epochs"):
        Recipe(anneal=1.5)


def test_a_falling_rate_is_resumed_to_the_same_bits() -> None:
    recipe = Recipe(epochs=6, batch=10, lr=1e-2, anneal=1.0)
    whole, _ = trained(fresh_models(P, [3, 17], [0, 0]), [0, 0], recipe)
    first = BilinearBank(fresh_models(P, [3, 17], [0, 0]), [0, 0], recipe)
    for _, epoch in zip(range(4), first.run(), strict=False):
        assert epoch.number <= 4
    second = BilinearBank(fresh_models(P, [17], [0]), [0], recipe)
    second.restore(first.state(), [1])
    assert [epoch.number for epoch in second.run()] == [5, 6]
    for mine, other in zip(second.models[0].parameters(), whole.models[1].parameters(), strict=True):
        assert torch.equal(mine, other)
