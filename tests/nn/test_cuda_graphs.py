"""Steps as CUDA graphs: the same numbers as steps that run as written. What needs a GPU is skipped without one."""

from collections.abc import Callable

import pytest
import torch

from assay.attention import attention
from assay.attention.layer import Layer
from assay.attention.lifetimes import lifetimes
from assay.core.run import Numerics
from assay.mixers import mixers
from assay.models.sequence import SequenceModel
from assay.nn.capture import Graphs
from assay.nn.random import initialised_from, stream
from assay.tasks import tasks
from assay.train.bank import Bank
from assay.train.device import activate
from assay.train.recipe import Optimizer, Train
from assay.train.trainer import SingleTrainer, Trainer

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TASK = tasks.parse("mqar:vocab_size=32:input_seq_len=16:num_kv_pairs=4:min_kv_pairs=2")  # a mixture: several graphs
TRAIN = Train(max_steps=12, micro_batch_size=8, validate_every=12)
SEEDS, RATES = (0, 0, 1), (1e-3, 3e-3, 1e-3)


def models() -> list[torch.nn.Module]:
    options, built = SequenceModel(seq_mixer=mixers.parse("attention"), model_dim=16), []
    for seed in SEEDS:
        with initialised_from(seed, "test"):
            built.append(options.build(TASK.shape()).cuda())
    return built


def bank(graph: bool) -> Trainer:
    return Bank(models(), TASK, TRAIN, [Optimizer(lr=rate) for rate in RATES], seeds=SEEDS, graph=graph)


def single(graph: bool) -> Trainer:
    return SingleTrainer(models()[0], TASK, TRAIN, Optimizer(), seed=0, graph=graph)


def weights(trainer: Trainer) -> torch.Tensor:
    if isinstance(trainer, Bank):
        return trainer.packed.detach()
    assert isinstance(trainer, SingleTrainer)
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def assert_same_way(start: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> None:
    """Training took both the same way from the start, but for rounding: Adam magnifies it where gradients vanish."""
    assert (one - other).norm() < 0.05 * (other - start).norm()


def test_off_cuda_every_step_runs_as_written() -> None:
    graphs, seen = Graphs(False, warm_up=2), list[int]()
    for step in range(6):
        graphs.play(step % 2, lambda step=step: seen.append(step))  # type: ignore[misc]
    assert seen == list(range(6))


@needs_cuda
@pytest.mark.parametrize("make", [single, bank])
def test_a_graph_trains_to_the_numbers_of_the_plain_path(make: Callable[[bool], Trainer]) -> None:
    with activate(Numerics(device="cuda")):
        graphed, plain = make(True), make(False)
        for trainer in (graphed, plain):
            list(trainer.run())
    torch.testing.assert_close(graphed.losses, plain.losses, rtol=1e-2, atol=1e-3)
    assert_same_way(weights(make(False)), weights(graphed), weights(plain))


@needs_cuda
def test_a_curriculum_of_graphs_trains_to_the_numbers_of_the_plain_path() -> None:
    """Groups of a bank change at validations: a graph of a group that is gone is dropped, a new one captured."""
    train = Train(max_steps=24, micro_batch_size=8, validate_every=4, curriculum=0.9, stop_at=0.99)
    scores = [[[0.95, 0.1]] * 6, [[0.1, 0.1]] * 3 + [[0.95, 0.1]] * 3, [[0.95, 0.1]] * 2 + [[1.0, 1.0]] * 4]
    with activate(Numerics(device="cuda")):
        optimizers = [Optimizer(lr=rate) for rate in RATES]
        graphed, plain, start = (
            Bank(models(), TASK, train, optimizers, seeds=SEEDS, graph=graph) for graph in (True, False, False)
        )
        for trainer in (graphed, plain):
            for number, _ in enumerate(trainer.run()):
                trainer.validated([each[number] for each in scores])
    assert graphed.stopped_at == plain.stopped_at == [None, None, 12] and graphed.open == [2, 2, 2]
    assert_same_way(weights(start), weights(graphed), weights(plain))


@needs_cuda
@pytest.mark.parametrize("make", [single, bank])
def test_a_graphed_trainer_resumes_from_its_state(make: Callable[[bool], Trainer]) -> None:
    """Generators, clock and rate lie on the device, and the resumed process captures graphs of its own."""
    train = Train(max_steps=12, micro_batch_size=8, validate_every=6)
    with activate(Numerics(device="cuda")):
        whole, first, second = (make(True) for _ in range(3))
        for trainer in (whole, first, second):
            trainer.train = train
        list(whole.run())
        next(first.run())
        second.restore(first.state())
        list(second.run())
    assert second.step == 12
    assert_same_way(weights(make(False)), weights(second), weights(whole))


@needs_cuda
@pytest.mark.parametrize("word", ["h2o", "tova", "keydiff", "knorm", "random_evict"])
@pytest.mark.parametrize("time", [2, 150])
def test_a_graphed_eviction_history_is_the_plain_one(word: str, time: int) -> None:
    """Tokens before the capture count; two tokens are fewer than the warm-up."""
    rng = stream(0, "cuda")
    q, k, v = (torch.randn(2, heads, time, 16, generator=rng).cuda() for heads in (4, 2, 2))
    lanes = [(attention.parse(word), slots) for slots in (12, 70)]
    layer = Layer(2 * q, k, v)
    assert torch.equal(lifetimes(lanes, layer, graph=True), lifetimes(lanes, layer, graph=False))
