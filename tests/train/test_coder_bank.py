"""Sparse coders as one program: each is what the obvious loop makes of it alone, whoever its companions are."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from assay.core.errors import UserError
from assay.core.run import Numerics
from assay.nn import infomax
from assay.nn.random import stream
from assay.sparse_coders import sparse_coders
from assay.train.checkpoint import load_checkpoint, save_checkpoint
from assay.train.coder_bank import CoderBank, CoderRecipe, StepRecipe, rectangles
from assay.train.device import activate

D_IN, D_CODE, ROWS = 24, 16, 106
RECIPE = CoderRecipe(epochs=3, batch=32)
"""Not smaller: torch has another product for tiny matrices, so that one model alone would round otherwise."""
WORDS = ["lse_infomax", "lse_infomax:lambda_lse=0.0", "lse_infomax:lambda_tc=0.0"]


@pytest.fixture(autouse=True)
def as_in_a_study() -> Iterator[None]:
    with activate(Numerics()):
        yield


def data(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Signed: on positive data some units are always on, their bias has no gradient, and Adam magnifies rounding."""
    x = torch.randn(ROWS, D_IN, generator=stream(0, "data"), dtype=dtype)
    x[:, [3, 8]] = 0  # inputs that are never lit need not be multiplied, and their weights stay as they began
    return x


def bank(words: list[str], seeds: list[int], rates: list[float], recipe: CoderRecipe = RECIPE, dtype=torch.float32):
    coders = [sparse_coders.parse(word) for word in words]
    return CoderBank(coders, seeds, rates, data(dtype), D_CODE, recipe)


def alone(word: str, seed: int, rate: float, recipe: CoderRecipe) -> tuple[nn.Linear, list[float]]:
    """The obvious loop: nn.Linear, autograd, torch's optimizer, the spec's losses."""
    coder, x, rng = sparse_coders.parse(word), data(torch.float64), stream(seed, "order")
    start = bank([word], [seed], [rate], dtype=torch.float64).model(0)
    layer = nn.Linear(D_IN, D_CODE).double()
    with torch.no_grad():
        layer.weight.copy_(start.W_enc[0])
        layer.bias.copy_(start.b_enc[0])
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[recipe.optimizer]
    optimizer, curve = kind(layer.parameters(), lr=rate), []
    for _ in range(recipe.epochs):
        losses = []
        for rows in torch.randperm(ROWS, generator=rng).split(recipe.batch):
            a = layer(x[rows]).relu()
            terms = infomax.lse(a)[0], infomax.variance(a), infomax.correlation(a)
            loss = coder.lambda_lse * terms[0] + coder.lambda_var * terms[1] + coder.lambda_tc * terms[2]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curve.append(sum(losses) / len(losses))
    return layer, curve


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_bank_is_the_plain_loop_model_by_model(optimizer) -> None:
    recipe = CoderRecipe(epochs=3, batch=32, optimizer=optimizer)
    words, seeds, rates = WORDS * 2, [0, 0, 0, 1, 1, 1], [1e-3, 1e-2, 1e-3, 1e-2, 1e-2, 1e-3]
    trained = bank(words, seeds, rates, recipe, torch.float64)
    history = list(trained.run())
    for k in range(len(words)):
        layer, curve = alone(words[k], seeds[k], rates[k], recipe)
        mine = trained.model(k)
        torch.testing.assert_close(mine.W_enc[0], layer.weight, rtol=0, atol=1e-9)
        torch.testing.assert_close(mine.b_enc[0], layer.bias, rtol=0, atol=1e-9)
        assert [epoch.terms["total"][k] for epoch in history] == pytest.approx(curve, abs=1e-9)


LEVELS = {
    "lse_infomax": ["lse_infomax:lambda_lse=0.1", "lse_infomax"],
    "relu_l1": ["relu_l1:l1=0.1", "relu_l1:l1=1.0"],
    "topk": ["topk:k=1", "topk:k=4"],
    "batch_topk": ["batch_topk:k=1", "batch_topk:k=3"],
    "jump_relu": ["jump_relu:l0=0.1", "jump_relu:l0=1.0"],
    "gated": ["gated:l1=0.1", "gated:l1=1.0"],
    "matryoshka": ["matryoshka:k=1", "matryoshka:k=3"],
}


@pytest.mark.parametrize("kind", LEVELS)
def test_levels_rates_and_seeds_together_have_the_bits_each_has_alone(kind: str) -> None:
    cells = [(word, seed, rate) for seed in (0, 1) for word in LEVELS[kind] for rate in (1e-3, 1e-2)]
    together = bank(*map(list, zip(*cells, strict=True)))
    list(together.run())
    for k in (0, 3, 5):
        single = bank(*([part] for part in cells[k]))
        list(single.run())
        for name, value in single.model(0).state_dict().items():
            assert torch.equal(together.model(k).state_dict()[name], value), name


@pytest.mark.parametrize("kind", [*LEVELS, "sgd"])
def test_what_is_taken_up_again_goes_on_as_if_nothing_had_happened(kind: str, tmp_path: Path) -> None:
    words = LEVELS.get(kind, WORDS[:2])
    recipe = CoderRecipe(epochs=4, batch=32, optimizer="sgd" if kind == "sgd" else "adam")
    whole, first, second = (bank(words, [3, 3], [1e-3, 1e-2], recipe) for _ in range(3))
    history = list(whole.run())
    for _, _epoch in zip(range(2), first.run(), strict=False):
        pass
    save_checkpoint(tmp_path / "checkpoint", first.state())
    second.restore(load_checkpoint(tmp_path / "checkpoint"))
    rest = list(second.run())
    assert [epoch.number for epoch in rest] == [3, 4] and rest == history[2:]
    for name, value in whole.module.state_dict().items():
        assert torch.equal(value, second.module.state_dict()[name]), name


def test_a_model_that_diverges_takes_no_other_with_it() -> None:
    recipe = CoderRecipe(epochs=2, batch=32, optimizer="sgd")
    mixed = bank(WORDS[:2], [0, 0], [1e30, 1e-3], recipe)
    *_, last = mixed.run()
    calm = bank(WORDS[1:2], [0], [1e-3], recipe)
    list(calm.run())
    assert not torch.tensor(last.terms["total"][0]).isfinite()
    assert torch.equal(mixed.model(1).W_enc, calm.model(0).W_enc)


def test_the_last_batch_is_what_is_left_unless_it_has_no_variance() -> None:
    assert CoderRecipe(batch=128).sizes(60_000) == [128] * 468 + [96]
    assert CoderRecipe(batch=128, partial=False).sizes(60_000) == [128] * 468
    assert CoderRecipe(batch=16).sizes(33) == [16, 16]
    with pytest.raises(UserError, match="only 5 rows"):
        CoderRecipe(batch=16).sizes(5)


def test_a_rate_rises_stays_and_falls_as_a_plain_loop_would_have_it() -> None:
    recipe = StepRecipe(steps=10, batch=32, warmup=0.3, decay=0.4)
    shares = [float(recipe.share(torch.tensor(float(step)))) for step in range(10)]
    assert shares == pytest.approx([1 / 3, 2 / 3, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])
    made = bank(["topk:k=4"], [0], [1e-2], recipe, dtype=torch.float64)
    x, rng, plain = data(torch.float64), stream(0, "order"), made.model(0)
    adam = torch.optim.Adam(plain.parameters(), lr=1e-2)
    step, passes = 0, list(made.run())
    assert [epoch.number for epoch in passes] == [1, 2, 3, 4], "three steps of 106 rows, the last time one"
    for _ in passes:
        for rows in torch.randperm(ROWS, generator=rng)[:96].split(32):
            if step == 10:
                break
            adam.param_groups[0]["lr"] = 1e-2 * shares[step]
            adam.zero_grad()
            plain.loss(x[rows][None])["total"].sum().backward()
            adam.step()
            plain.after_step()
            step += 1
    for name, value in made.model(0).state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-6, atol=1e-8)


def test_a_schedule_is_checked() -> None:
    assert StepRecipe(steps=10, batch=4).passes(9) == 5 and StepRecipe(steps=10, batch=4).sizes(13, done=3) == [4]
    with pytest.raises(UserError, match="together at most 1"):
        StepRecipe(warmup=0.7, decay=0.7)
    with pytest.raises(UserError, match="only 5 rows"):
        StepRecipe(batch=16).sizes(5)


def test_a_streamed_bank_goes_on_with_what_the_buffer_holds() -> None:
    recipe, first, second = StepRecipe(steps=6, batch=32), data(), data().roll(1, 0) * 2
    made = CoderBank([sparse_coders.parse("lse_infomax")], [0], [1e-2], first.clone(), D_CODE, recipe, streamed=True)
    assert made.module.W_enc.shape[2] == D_IN, "an input that is dark in one buffer may be lit in the next"
    epochs = made.run()
    next(epochs)
    before = made.state()
    made.data.copy_(second)
    other = CoderBank([sparse_coders.parse("lse_infomax")], [0], [1e-2], second.clone(), D_CODE, recipe, streamed=True)
    other.restore({**before, "module": {k: v.clone() for k, v in before["module"].items()}})
    next(epochs)
    next(other.run())
    assert torch.equal(made.module.W_enc, other.module.W_enc)


def test_seeds_with_different_numbers_of_models_are_different_banks() -> None:
    assert rectangles([0, 0, 1, 1, 2]) == [[0, 1, 2, 3], [4]]
    assert rectangles([5, 4, 5, 4]) == [[0, 2, 1, 3]]


def test_inputs_that_are_never_lit_are_left_out_where_that_is_exact() -> None:
    assert bank(WORDS[:1], [0], [1e-3]).data.shape[1] == D_IN - 2
    for word in ("topk", "relu_l1", "lse_infomax:scale=unit_norm", "lse_infomax:lambda_wr=1.0"):
        assert bank([word], [0], [1e-3]).data.shape[1] == D_IN, word
