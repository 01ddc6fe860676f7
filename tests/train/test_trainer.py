"""The recipe: schedule, decay, exact resumption."""

import math
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from assay.core.errors import UserError
from assay.mixers import mixers
from assay.models.sequence import SequenceModel, SequenceModule
from assay.nn import norm
from assay.nn.random import initialised_from, stream
from assay.tasks import tasks
from assay.tasks.base import Task
from assay.train import recipe
from assay.train import trainer as trainers
from assay.train.checkpoint import load_checkpoint, save_checkpoint
from assay.train.recipe import Optimizer, Train, answer_losses
from assay.train.trainer import SingleTrainer

TASK = "mqar:vocab_size=64:input_seq_len=16:num_kv_pairs=2"


def task() -> Task:
    return tasks.parse(TASK)


def model(mixer: str = "attention", d_model: int = 16) -> SequenceModule:
    options = SequenceModel(seq_mixer=mixers.parse(mixer), model_dim=d_model)
    with initialised_from(0, "test"):
        return options.build(task().shape())


def trainer(steps: int = 6, **options: float) -> SingleTrainer:
    train = Train(max_steps=steps, micro_batch_size=8, validate_every=3)
    return SingleTrainer(model(), task(), train, Optimizer(**options), seed=1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lr": math.nan}, "optimizer.lr=nan: it must be a finite number above 0."),
        ({"lr": math.inf}, "optimizer.lr=inf: it must be a finite number above 0."),
        ({"beta2": math.nan}, "optimizer.beta2=nan: it must be in"),
        ({"weight_decay": math.nan}, "optimizer.weight_decay=nan: it must be a finite number, 0 or more."),
    ],
)
def test_numbers_from_python_that_no_optimizer_can_take_are_refused(options: dict[str, float], says: str) -> None:
    with pytest.raises(UserError, match=says):
        Optimizer(**options)


def test_the_rate_rises_linearly_then_falls_as_a_cosine_to_zero() -> None:
    train = Train(max_steps=100, warmup_ratio=0.1)
    rates = [train.rate(step) for step in range(101)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[10] == 1 and rates[55] == pytest.approx(0.5) and rates[100] == pytest.approx(0)
    assert all(a > b for a, b in pairwise(rates[10:]))
    assert Train(max_steps=100, warmup_ratio=0.0).rate(0) == 1


def test_weight_decay_is_for_matrices_and_not_for_gains_or_tables() -> None:
    decayed, rest = trainer().optimizer.groups.values()
    assert decayed.options["weight_decay"] == 0.1 and rest.options["weight_decay"] == 0
    assert all(p.ndim >= 2 for p in decayed.tensors)
    names = {id(p): name for name, p in trainer().model.named_parameters()}
    kept = model()
    sizes = {tuple(p.shape) for p in rest.tensors}
    assert tuple(kept.embed.weight.shape) in sizes and tuple(kept.position.shape) in sizes and len(names) > 10


def test_saving_and_loading_in_the_middle_changes_no_bit(tmp_path: Path) -> None:
    whole = trainer()
    list(whole.run())
    first = trainer()
    for step in first.run():
        assert step == 3
        save_checkpoint(tmp_path / "checkpoint", first.state())
        break
    second = trainer()
    second.restore(load_checkpoint(tmp_path / "checkpoint"))
    assert second.step == 3
    list(second.run())
    for one, other in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
    (tmp_path / "checkpoint").write_bytes((tmp_path / "checkpoint").read_bytes()[:-50])
    with pytest.warns(UserWarning, match="starts anew"):
        assert load_checkpoint(tmp_path / "checkpoint") is None


def test_a_run_does_not_depend_on_the_global_generator() -> None:
    finals = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        one = trainer()
        list(one.run())
        finals.append(one.losses.item())
    assert finals[0] == finals[1]


def test_the_loss_is_the_mean_over_all_answers() -> None:
    batch = task().sample(8, torch.Generator().manual_seed(0))
    answers = torch.randn(8, 2, 64, generator=torch.Generator().manual_seed(1))
    each = [
        -answers[row, place].double().log_softmax(-1)[batch.targets[row, place]]
        for row in range(8)
        for place in range(2)
    ]
    assert answer_losses(task(), answers, batch).mean().item() == pytest.approx(
        torch.stack(each).mean().item(), rel=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_loss_takes_the_kernel_where_there_is_one_but_not_in_float64(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kernel(logits: Tensor, targets: Tensor) -> Tensor:
        asked.append(logits.dtype)
        return torch.zeros(targets.shape)

    asked: list[torch.dtype] = []
    monkeypatch.setattr(recipe, "has_kernels", lambda device: True)
    monkeypatch.setattr(recipe, "kernels", SimpleNamespace(cross_entropy=kernel))
    batch = task().sample(8, torch.Generator().manual_seed(0))
    answer_losses(task(), torch.zeros(8, 2, 64, dtype=dtype), batch)
    assert asked == ([] if dtype == torch.float64 else [dtype])


@pytest.mark.parametrize(
    ("dtype", "trains", "kernels"),
    [(torch.bfloat16, True, 1), (torch.float32, True, 1), (torch.float32, False, 0), (torch.float64, True, 0)],
)
def test_a_norm_takes_the_kernel_where_it_trains_but_not_in_float64(
    dtype: torch.dtype, trains: bool, kernels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kernel(x: Tensor, gains: Tensor, eps: float) -> Tensor:
        asked.append(x.shape)
        return x

    asked: list[torch.Size] = []
    monkeypatch.setattr(norm, "has_kernels", lambda device: True)
    monkeypatch.setattr(norm, "kernels", SimpleNamespace(rms_norm=kernel))
    found = norm.Norm(4)(torch.ones(2, 3, 4, dtype=dtype, requires_grad=trains))
    assert found.shape == (2, 3, 4) and asked == kernels * [torch.Size((1, 2, 3, 4))]


def test_the_head_at_scored_places_is_the_head_everywhere_read_there() -> None:
    net, batch = model(), task().sample(4, torch.Generator().manual_seed(0))
    assert batch.positions is not None
    everywhere = net(batch.inputs)
    picked = everywhere[torch.arange(4)[:, None], batch.positions]
    torch.testing.assert_close(net(batch.inputs, batch.positions), picked)


@pytest.mark.parametrize("bad", [{"max_steps": 0}, {"micro_batch_size": 0}, {"warmup_ratio": 1.0}])
def test_a_recipe_that_cannot_run_is_refused(bad: dict) -> None:
    with pytest.raises(UserError):
        Train(**bad)


@pytest.mark.parametrize("mixer", ["attention", "delta_net"])
def test_sequences_that_are_answered_a_few_at_a_time_have_the_same_answers(
    mixer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = SingleTrainer(model(mixer), task(), Train(max_steps=1), Optimizer(), seed=1)
    batch = task().sample(50, stream(0, "some"))
    (whole,) = alone.answers([batch])
    monkeypatch.setattr(trainers, "AT_ONCE", 7 * batch.inputs.shape[1])
    (cut,) = alone.answers([batch])
    torch.testing.assert_close(cut, whole, rtol=1e-5, atol=1e-6)  # products of few rows round differently
