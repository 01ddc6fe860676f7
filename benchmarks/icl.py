"""Measures CPU time of the in-context-learning study against the obvious way of writing it, on one thread.

    python benchmarks/icl.py                  every measurement
    python benchmarks/icl.py generation       one of them

Each measurement prints a ratio and its goal; the exit code is 1 if any goal is missed.
"""

import sys
import time
from collections.abc import Callable

import torch
from einops import rearrange
from measuring import main, verdict
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from assay.core.run import Numerics
from assay.models.sequence import SequenceModel
from assay.nn.random import initialised_from, stream
from assay.tasks.mqar import Mqar
from assay.train.device import activate
from assay.train.recipe import Optimizer, Train
from assay.train.trainer import SingleTrainer


def cpu_seconds(work: Callable[[], object], *, repeats: int) -> float:
    """Measure seconds per call: the best of five rounds, so that other processes matter little."""
    work()
    return min(one_round(work, repeats) for _ in range(5))


def one_round(work: Callable[[], object], repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        work()
    return (time.process_time() - start) / repeats


def plain_mqar(task: Mqar, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw one example, the obvious way."""
    length, pairs, half = task.input_seq_len, task.num_kv_pairs, task.vocab_size // 2
    keys = 1 + torch.randperm(half - 1, generator=rng)[:pairs]
    values = half + torch.randperm(task.vocab_size - half, generator=rng)[:pairs]
    slots = (length - 2 * pairs) // 2
    weights = torch.arange(1, slots + 1).float() ** (task.power_a - 1)
    positions = 2 * pairs + 2 * torch.multinomial(weights, pairs, generator=rng)
    inputs = torch.zeros(length, dtype=torch.long)
    inputs[0 : 2 * pairs : 2] = keys
    inputs[1 : 2 * pairs : 2] = values
    inputs[positions] = keys
    inputs[positions + 1] = values
    filler = torch.randint(1, task.vocab_size, (length,), generator=rng)
    return torch.where(inputs == 0, filler, inputs), positions, values


def generation() -> bool:
    """Compare drawing mqar at the default size in batches of 256 with one example after another."""
    task, batch, rng = Mqar(input_seq_len=64, vocab_size=8192, num_kv_pairs=8), 256, stream(0, "benchmark")
    plain = cpu_seconds(lambda: plain_mqar(task, rng), repeats=400)
    ours = cpu_seconds(lambda: task.sample(batch, rng), repeats=100) / batch
    print(f"mqar example: plain {plain * 1e6:.1f} us, assay {ours * 1e6:.2f} us")
    ratio = plain / ours
    return verdict(f"mqar generation: {ratio:.1f}x less CPU than the plain reference", goal="60x", met=ratio >= 60)


class PlainLayer(nn.Module):
    """Attention and a perceptron, written the obvious way."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, h: Tensor) -> Tensor:
        x = self.norm_1(h)
        q, k, v = (
            rearrange(part(x), "b t (h d) -> b h t d", h=self.heads) for part in (self.query, self.key, self.value)
        )
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(rearrange(mixed, "b h t d -> b t (h d)"))
        return h + self.mlp(self.norm_2(h))


class PlainModel(nn.Module):
    """The default model with its head at every position; the table of positions is no longer than ours."""

    def __init__(self, vocab: int, length: int, *, width: int = 128, layers: int = 2, heads: int = 8) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(PlainLayer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-6), nn.Linear(width, vocab, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        h = self.embed(inputs) + self.position(torch.arange(inputs.shape[1]))
        return self.head(self.norm(self.layers(h)))


def plain_step(task: Mqar, batch: int) -> Callable[[], None]:
    """Make a plain step: logits everywhere, the loss at the queries, one update per tensor; batches are ours."""
    with initialised_from(0, "plain"):
        model = PlainModel(task.vocab_size, task.input_seq_len)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, foreach=False, fused=False)
    rng = stream(0, "plain")

    def step() -> None:
        sequences = task.sample(batch, rng)
        logits = model(sequences.inputs)
        asked = logits[torch.arange(batch)[:, None], sequences.positions]
        loss = cross_entropy(asked.flatten(0, 1), sequences.targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        optimizer.step()

    return step


def our_step(task: Mqar, batch: int) -> Callable[[], int]:
    """Make a step of the study's own trainer."""
    with initialised_from(0, "model"):
        model = SequenceModel().build(task.shape())
    steps = SingleTrainer(model, task, Train(micro_batch_size=batch, validate_every=1), Optimizer(), seed=0).run()
    return lambda: next(steps)


def training_step() -> bool:
    """Compare the study's step with a plain one, in the default configuration at batch 16."""
    task, batch = Mqar(input_seq_len=64, vocab_size=8192, num_kv_pairs=8), 16
    plain, ours = plain_step(task, batch), our_step(task, batch)
    rounds: list[tuple[float, float]] = []
    for _ in range(7):  # in turn, so that other processes slow both alike
        with activate(Numerics()):
            rounds.append((one_round(plain, 5), one_round(ours, 5)))
    # The first round warms caches and makes the optimizers' state.
    slow, fast = (min(times) for times in zip(*rounds[1:], strict=True))
    print(f"training step: straightforward {slow * 1e3:.0f} ms, assay {fast * 1e3:.0f} ms")
    ratio = fast / slow
    return verdict(f"training step: {ratio:.2f} of the straightforward one", goal="at most 0.55", met=ratio <= 0.55)


MEASUREMENTS = {function.__name__: function for function in (generation, training_step)}


if __name__ == "__main__":
    sys.exit(main(__doc__, MEASUREMENTS))
