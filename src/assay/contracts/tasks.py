"""Every task keeps these promises: see assay.tasks.base."""

import torch
from torch import Tensor

from assay.nn.random import stream
from assay.tasks.base import Batch, Task, Tokens, Vectors


def gives_equal_batches_to_equal_generators(task: Task) -> None:
    """Equal generators give equal batches, and the next batch of one generator is another."""
    rng = stream(0, "contract")
    one, following, two = task.sample(8, rng), task.sample(8, rng), task.sample(8, stream(0, "contract"))
    for name in ("inputs", "targets", "positions"):
        a, b = getattr(one, name), getattr(two, name)
        assert (a is None and b is None) or torch.equal(a, b), f"equal generators gave different {name}"
    assert not torch.equal(one.inputs, following.inputs), "two batches in a row have the same inputs"


def draws_together_what_it_draws_alone(task: Task) -> None:
    """`sample_together` gives each generator's batch as `sample` does, also for the batch after it."""
    alone, together = ([stream(seed, "contract") for seed in range(3)] for _ in range(2))
    for _ in range(2):
        batch = task.sample_together(4, together)
        for place, rng in enumerate(alone):
            own = task.sample(4, rng)
            for name in ("inputs", "targets", "positions"):
                a, b = getattr(own, name), getattr(batch, name)
                assert (a is None and b is None) or torch.equal(a, b[place]), f"drawn together, {name} are others"


def has_the_shape_it_says(task: Task) -> None:
    """Inputs and targets have the sizes of `shape()`, for a batch of 1, 2 and 33; positions are places of the input;
    what is held out has the same shape."""
    shape = task.shape()
    for split in ("validation", "test"):
        assert task.held_out(split).shape() == shape, f"held out for {split} it has another shape"
    for size in (1, 2, 33):
        batch = _batch(task, size)
        _assert_kind("inputs", batch.inputs, (size, shape.length), shape.inputs)
        if batch.positions is None:
            _assert_kind("targets", batch.targets, (size,), shape.outputs)
            continue
        asked = batch.positions.shape[1]
        _assert_kind("positions", batch.positions, (size, asked), Tokens(shape.length))
        answers = (size, asked * shape.answers_per_position)
        targets = batch.targets.unsqueeze(-1) if shape.outputs == Vectors(1) else batch.targets
        _assert_kind("targets", targets, answers, shape.outputs)


def is_finite(task: Task) -> None:
    """Inputs, targets and the answers of the oracle and the references are finite."""
    batch = _batch(task, 64)
    for name, tensor in ({"inputs": batch.inputs, "targets": batch.targets} | _answers(task, batch)).items():
        bad = (~torch.isfinite(tensor)).sum().item()
        assert bad == 0, f"{bad} of {tensor.numel()} entries of {name} are not finite"


def leaves_the_global_generator_alone(task: Task) -> None:
    """Neither sampling nor the oracle draws from torch's global generator."""
    before = torch.get_rng_state()
    batch = task.sample(8, stream(0, "contract"))
    assert torch.equal(torch.get_rng_state(), before), "sample drew from the global generator"
    task.oracle(batch), task.references(batch)
    assert torch.equal(torch.get_rng_state(), before), "oracle drew from the global generator"


def answers_each_sequence_alone(task: Task) -> None:
    """No answer to a sequence, the oracle's or a reference's, reads the targets or the other sequences."""
    batch = _batch(task, 6)
    targets = torch.zeros_like(batch.targets[:3])
    blind = Batch(batch.inputs[:3], targets, None if batch.positions is None else batch.positions[:3])
    alone = _answers(task, blind)
    for name, together in _answers(task, batch).items():
        gap = (together[:3].double() - alone[name].double()).abs().max().item()
        assert gap < 1e-4, f"with other targets and a smaller batch the answers of {name} move by {gap:.2e}"


def draws_each_sequence_alone(task: Task) -> None:
    """Sequences drawn one at a time vary as those of one batch do, within a factor of 3 of the variance."""
    rng, drawn = stream(0, "contract", "alone"), 128
    single, batch = [task.sample(1, rng) for _ in range(drawn)], task.sample(drawn, rng)
    for name in ("inputs", "targets"):
        alone = torch.cat([getattr(one, name) for one in single]).double().var(dim=0).mean().item()
        together = getattr(batch, name).double().var(dim=0).mean().item()
        close = together / 3 <= alone <= 3 * together
        assert close, f"{name} drawn alone have a variance of {alone:.3g}, in a batch of {drawn} one of {together:.3g}"


def has_an_oracle_better_than_any_constant(task: Task) -> None:
    """The oracle and the references answer in the targets' shape, or give log-probabilities, and the oracle is better
    than the best constant; where none is known, the best reference is."""
    batch = _batch(task, 1024)
    answer, targets = task.oracle(batch), batch.targets
    if answer is not None:
        _assert_answers("the oracle", answer, targets.shape, task)
        answer = _likeliest(answer, targets)
    for name, found in task.references(_batch(task, 4)).items():
        _assert_answers(name, found, targets[:4].shape, task)
    if answer is None:
        _assert_some_reference_beats_constants(task)
    elif isinstance(task.shape().outputs, Tokens):
        right = (answer == targets).double().mean().item()
        constant = targets.flatten().bincount().max().item() / targets.numel()
        assert right > constant, f"accuracy {right:.3f}, the most frequent answer has {constant:.3f}"
    else:
        error = (answer - targets).double().square().mean().item()
        constant = targets.double().flatten(0, -2).var(0, correction=0).mean().item()
        assert error < constant, f"mean squared error {error:.4f}, the mean target has {constant:.4f}"


def asks_after_each_example_where_it_says_so(task: Task) -> None:
    """With `by_examples`, answers are read one after another, in every sequence at the same places."""
    if task.by_examples:
        positions = _batch(task, 8).positions
        assert positions is not None, "by_examples, but there is one answer per sequence"
        assert (positions[:, 1:] > positions[:, :-1]).all(), "by_examples, but positions do not rise"
        assert (positions == positions[:1]).all(), "by_examples, but positions differ between sequences"


def _answers(task: Task, batch: Batch) -> dict[str, Tensor]:
    best = task.oracle(batch)
    return ({} if best is None else {"the oracle": best}) | task.references(batch)


def _assert_answers(name: str, found: Tensor, expected: torch.Size, task: Task) -> None:
    """What was given are answers, or the log-probability of every token."""
    outputs = task.shape().outputs
    if isinstance(outputs, Tokens) and found.shape == (*expected, outputs.vocab):
        total = found.double().exp().sum(-1)
        assert (total - 1).abs().max() < 1e-3, (
            f"the probabilities of {name} sum to {total.min():.4f}..{total.max():.4f}"
        )
    else:
        assert found.shape == expected, f"{name} gave {tuple(found.shape)} for {tuple(expected)}"


def _likeliest(given: Tensor, targets: Tensor) -> Tensor:
    """Return answers as they are, and of log-probabilities the token with the largest."""
    return given.argmax(-1) if given.ndim > targets.ndim else given


def _assert_some_reference_beats_constants(task: Task) -> None:
    batch = _batch(task, 64)
    found = {name: _likeliest(given, batch.targets) for name, given in task.references(batch).items()}
    assert found, "it has neither an oracle nor a reference: return one from `references`"
    right = max((answers == batch.targets).double().mean().item() for answers in found.values())
    constant = batch.targets.flatten().bincount().max().item() / batch.targets.numel()
    assert right > constant, f"no oracle, and references have {right:.3f}, the most frequent answer {constant:.3f}"


def _batch(task: Task, size: int) -> Batch:
    return task.sample(size, stream(0, "contract", size))


def _assert_kind(name: str, tensor: Tensor, leading: tuple[int, ...], kind: Tokens | Vectors) -> None:
    if isinstance(kind, Vectors):
        assert tuple(tensor.shape) == (*leading, kind.dim), f"{name} {tuple(tensor.shape)}, not {(*leading, kind.dim)}"
        assert tensor.is_floating_point(), f"{name} are {tensor.dtype}, not floating point"
    else:
        assert tuple(tensor.shape) == leading, f"{name} {tuple(tensor.shape)}, not {leading}"
        assert not tensor.is_floating_point(), f"{name} are {tensor.dtype}, not integers"
        low, high = tensor.min().item(), tensor.max().item()
        assert low >= 0 and high < kind.vocab, f"{name} {low}..{high} leave 0..{kind.vocab - 1}"
