"""Small sizes first: each model goes its own way through the parts of a mixture, alone or in a bank."""

from pathlib import Path

import pytest
import torch

from assay.mixers import mixers
from assay.models.sequence import SequenceModel, SequenceModule
from assay.nn.random import initialised_from
from assay.tasks import tasks
from assay.tasks.base import Task
from assay.train.bank import Bank
from assay.train.checkpoint import load_checkpoint, save_checkpoint
from assay.train.recipe import Optimizer, Train
from assay.train.trainer import Members, SingleTrainer, Trainer

TASK = tasks.parse("mqar:vocab_size=64:input_seq_len=32:num_kv_pairs=8:min_kv_pairs=2:values=hidden")
TRAIN = Train(max_steps=10, micro_batch_size=2, validate_every=2, curriculum=0.9, stop_at=0.99)
SEEDS = (0, 0, 1, 1)
OPTIMIZERS = tuple(Optimizer(lr=rate) for rate in (1e-3, 3e-3, 1e-3, 1e-2))
# Accuracies by part at each validation: the first model learns at once, the second later, the third never, and the last
# is solved on the way. Given, since a model that learns for real takes a thousand steps.
LEARNS = [[1.0, 0.5, 0.1]] * 5
LATER = [[0.3, 0.1, 0.0]] * 2 + [[0.95, 0.2, 0.0]] * 3
NEVER = [[0.5, 0.3, 0.1]] * 5
SOLVED = [[1.0, 0.5, 0.1]] * 2 + [[0.99, 0.99, 0.99]] * 3
SCORES = (LEARNS, LATER, NEVER, SOLVED)


def model(seed: int, dtype: torch.dtype = torch.float32) -> SequenceModule:
    options = SequenceModel(seq_mixer=mixers.parse("delta_net:num_heads=1"), model_dim=8, num_layers=1)
    with initialised_from(seed, "test"):
        return options.build(TASK.shape()).to(dtype)


def bank(*which: int, dtype: torch.dtype = torch.float32) -> Bank:
    models = [model(SEEDS[place], dtype) for place in which]
    return Bank(models, TASK, TRAIN, [OPTIMIZERS[place] for place in which], seeds=[SEEDS[place] for place in which])


def trained(trainer: Trainer, *which: int, begin: int = 0) -> Trainer:
    """Train to the end, with the scores of these models."""
    for number, _ in enumerate(trainer.run(), start=begin):
        trainer.validated([SCORES[place][number] for place in which])
    return trainer


class Watched(SingleTrainer):
    def train_on(self, part: Task, batch: int, members: Members) -> None:
        self.seen: list[int] = [*getattr(self, "seen", []), part.num_kv_pairs]  # type: ignore[attr-defined]
        super().train_on(part, batch, members)


@pytest.mark.parametrize(
    ("place", "seen"),
    [
        (0, [2, 2, 2, 4, 4, 8, 2, 4, 8, 2]),
        (1, [2, 2, 2, 2, 2, 2, 2, 4, 8, 2]),
        (2, [2] * 10),
        (3, [2, 2, 2, 4, 4, 8]),
    ],
)
def test_a_size_opens_at_each_validation_once_the_smallest_is_learned(place: int, seen: list[int]) -> None:
    alone = Watched(model(SEEDS[place]), TASK, TRAIN, OPTIMIZERS[place], seed=SEEDS[place])
    trained(alone, place)
    assert alone.seen == seen
    assert alone.stopped_at == [6 if place == 3 else None]
    assert alone.tokens == [len(seen) * 2 * 32], "every step has as many tokens"


def test_a_bank_is_the_plain_loop_whatever_the_stage_of_each_model() -> None:
    together = trained(bank(0, 1, 2, 3, dtype=torch.float64), 0, 1, 2, 3)
    assert isinstance(together, Bank) and together.open == [3, 3, 1, 3]
    for place in range(4):
        alone = SingleTrainer(model(SEEDS[place], torch.float64), TASK, TRAIN, OPTIMIZERS[place], seed=SEEDS[place])
        trained(alone, place)
        weights = torch.cat([p.detach().flatten() for p in together.ordered(alone.model)])
        torch.testing.assert_close(together.packed[place], weights, rtol=0, atol=1e-9)
        assert alone.stopped_at == [together.stopped_at[place]] and alone.tokens == [together.tokens[place]]


def test_any_part_of_a_bank_has_the_same_bits() -> None:
    whole, part = trained(bank(0, 1, 2, 3), 0, 1, 2, 3), trained(bank(1, 3), 1, 3)
    assert isinstance(whole, Bank) and isinstance(part, Bank)
    assert torch.equal(whole.packed[[1, 3]], part.packed)


@pytest.mark.parametrize("validations", [1, 2, 3, 4])
def test_a_bank_resumes_to_the_same_bits_from_any_stage(validations: int, tmp_path: Path) -> None:
    whole, first, second = (bank(0, 1, 2, 3) for _ in range(3))
    trained(whole, 0, 1, 2, 3)
    running = first.run()
    for number in range(validations):
        next(running)
        first.validated([scores[number] for scores in SCORES])
    save_checkpoint(tmp_path / "checkpoint", first.state())
    second.restore(load_checkpoint(tmp_path / "checkpoint"))
    trained(second, 0, 1, 2, 3, begin=validations)
    assert torch.equal(whole.packed, second.packed)
    assert (whole.open, whole.stopped_at, whole.tokens) == (second.open, second.stopped_at, second.tokens)


def test_a_model_that_stopped_stays_as_it_is_and_the_last_one_ends_the_training() -> None:
    running = (solved := bank(3)).run()
    for number in range(3):
        next(running)
        before = solved.packed.detach().clone()
        solved.validated([SOLVED[number]])
    assert list(running) == [] and solved.step == 6 and torch.equal(before, solved.packed)
    pair = bank(2, 3)
    for number, step in enumerate(pair.run()):
        if step == 6:
            before = pair.packed.detach().clone()
        pair.validated([NEVER[number], SOLVED[number]])
    assert pair.step == 10 and torch.equal(before[1], pair.packed[1]) and not torch.equal(before[0], pair.packed[0])


def test_models_of_one_seed_see_the_same_batches_while_at_one_stage() -> None:
    pair = bank(0, 1)
    next(pair.run())
    states = [rng.get_state() for rng in pair.rngs.values()]
    assert len(states) == 2 and torch.equal(states[0], states[1])


def test_cells_are_trained_in_turn_with_as_many_sequences_each() -> None:
    cells = tasks.parse("mqar:vocab_size=1024:input_seq_len=1024:num_kv_pairs=256:values=hidden:cells=zoology")
    turns = [(part.shape().length, part.num_kv_pairs, batch) for part, batch in cells.turns(256)]  # type: ignore[attr-defined]
    assert len(turns) == 9 and turns.count((64, 4, 256)) == 5, "100,000 of 180,000 sequences"
    assert {turn[:2] for turn in turns} == {(64, 4), (128, 8), (256, 16), (256, 32), (256, 64)}
