"""Many models as one program: each is what it would be alone."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from assay.mixers import mixers
from assay.models.sequence import SequenceModel, SequenceModule
from assay.nn.random import initialised_from
from assay.tasks import tasks
from assay.train.bank import Bank
from assay.train.checkpoint import load_checkpoint, save_checkpoint
from assay.train.recipe import Optimizer, Train
from assay.train.trainer import SingleTrainer
from portable import MIXERS

TASK = tasks.parse("mqar:vocab_size=32:input_seq_len=16:num_kv_pairs=4:min_kv_pairs=2")
TRAIN = Train(max_steps=6, micro_batch_size=4, validate_every=3)
SEEDS = (0, 0, 1)
OPTIMIZERS = (Optimizer(), Optimizer(lr=3e-3, clip=0.1), Optimizer(lr=2e-3, weight_decay=0.0))


def models(mixer: str) -> list[SequenceModule]:
    options = SequenceModel(seq_mixer=mixers.parse(mixer), model_dim=16)
    built = []
    for seed in SEEDS:
        with initialised_from(seed, "test"):
            built.append(options.build(TASK.shape()).double())
    return built


def bank(mixer: str = "attention", which: slice = slice(None), train: Train = TRAIN) -> Bank:
    return Bank(models(mixer)[which], TASK, train, OPTIMIZERS[which], seeds=SEEDS[which])


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_bank_is_the_plain_loop_model_by_model(mixer: str) -> None:
    train = TRAIN if mixer == "attention" else replace(TRAIN, max_steps=3)  # gradients and moments of every mixer
    together = bank(mixer, train=train)
    list(together.run())
    for row, (model, optimizer, seed) in enumerate(zip(models(mixer), OPTIMIZERS, SEEDS, strict=True)):
        alone = SingleTrainer(model, TASK, train, optimizer, seed=seed)
        list(alone.run())
        weights = torch.cat([p.detach().flatten() for p in together.ordered(model)])
        torch.testing.assert_close(together.packed[row], weights, rtol=0, atol=1e-9)
        assert together.losses[row].item() == pytest.approx(alone.losses.item(), abs=1e-9)


def test_answers_are_those_of_each_model() -> None:
    together = bank()
    drawn = [TASK.parts()[0].sample(5, torch.Generator().manual_seed(seed)) for seed in range(3)]
    for model, batch, answers in zip(models("attention"), drawn, together.answers(drawn), strict=True):
        torch.testing.assert_close(answers, model(batch.inputs, batch.positions), rtol=0, atol=1e-12)


def test_a_model_that_diverges_takes_no_other_with_it() -> None:
    wild = [replace(OPTIMIZERS[0], lr=1e300), *OPTIMIZERS[1:]]
    mixed = Bank(models("attention"), TASK, TRAIN, wild, seeds=SEEDS)
    list(mixed.run())
    calm = bank()
    list(calm.run())
    assert mixed.losses.isfinite().tolist() == [False, True, True]
    torch.testing.assert_close(mixed.packed[1:], calm.packed[1:], rtol=0, atol=1e-12)


def test_saving_and_loading_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    whole, first, second = bank(), bank(), bank()
    list(whole.run())
    next(first.run())
    save_checkpoint(tmp_path / "checkpoint", first.state())
    second.restore(load_checkpoint(tmp_path / "checkpoint"))
    list(second.run())
    assert torch.equal(whole.packed, second.packed)


@pytest.mark.parametrize("mixer", ["attention", "delta_net", "gru"])
def test_any_part_of_a_bank_has_the_same_bits(mixer: str) -> None:
    whole, part = bank(mixer), bank(mixer, slice(1, 3))
    list(whole.run())
    list(part.run())
    assert torch.equal(whole.packed[1:3], part.packed)
