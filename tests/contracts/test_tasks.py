"""Every task keeps every promise, and the promises notice tasks that do not."""

from dataclasses import dataclass, replace

import pytest
import torch

from assay.contracts import tasks as contract
from assay.tasks import tasks
from assay.tasks.base import Batch, Task, TaskShape, Tokens, Vectors
from assay.tasks.boolean import Boolean
from assay.tasks.compression import Compression
from assay.tasks.disjoint import Disjoint
from assay.tasks.fuzzy_recall import FuzzyRecall
from assay.tasks.hybrid import Hybrid
from assay.tasks.icll import Icll
from assay.tasks.in_context_recall import InContextRecall
from assay.tasks.markov import Markov
from assay.tasks.memorization import Memorization
from assay.tasks.mqar import Mqar
from assay.tasks.multi_hop_recall import MultiHopRecall
from assay.tasks.noisy_recall import NoisyRecall
from assay.tasks.regression import Regression
from assay.tasks.retrieval import Retrieval
from assay.tasks.selective_copying import SelectiveCopying
from assay.tasks.state_tracking import StateTracking
from assay.tasks.text import Text
from promised import broken

BOOLEAN = ("dnf3", "cnf3", "int_halfspace", "sparse_threshold", "parity", "sparse_parity", "disjunction")

VARIANTS = (
    *(Hybrid(context=context) for context in (1, 2)),
    Hybrid(noise=0.0, ar_coeff=0.0),
    Hybrid(L=17, K_keys=1, V_dim=1, F_feat=2, r_global=3, r_local=1),
    Retrieval(keys="ambiguous"),
    *(Retrieval(keys=keys, L=3, K_keys=1, V_dim=1, F_feat=2) for keys in ("unique", "ambiguous")),
    *(Mqar(filler=filler, power_a=1.0) for filler in ("no_keys", "zero")),
    *(Mqar(key_pool=pool, vocab_size=68) for pool in ("train", "eval")),
    Mqar(min_kv_pairs=2, filler="no_keys"),
    Mqar(num_kv_pairs=80, input_seq_len=320, vocab_size=512),
    Mqar(num_kv_pairs=1, input_seq_len=4, vocab_size=8),
    Disjoint(vocab_size=12, short_length=1, long_length=7),
    InContextRecall(vocab_size=4, input_seq_len=4),
    NoisyRecall(vocab_size=9, noise_vocab_size=3, input_seq_len=14, frac_noise=0.5),
    Compression(vocab_size=3, input_seq_len=2),
    FuzzyRecall(vocab_size=5, input_seq_len=6, k_motif_size=2, v_motif_size=1),
    Icll(num_states=2, num_symbols=4, num_strings=2, string_length=3, likely=0.5),
    SelectiveCopying(vocab_size=5, input_seq_len=7, num_tokens_to_copy=3),
    Memorization(vocab_size=5, input_seq_len=4, map_seed=3),
    Markov(num_symbols=2, input_seq_len=5),
    Text(input_seq_len=1),
    Text(input_seq_len=7, split="test"),
    MultiHopRecall(vocab_size=3, num_nodes=2, max_hops=1, num_queries=1),
    *(StateTracking(group=group, length=17) for group in ("s3", "a5", "s5")),
    StateTracking(length="3..17"),
    StateTracking(group="s5", length=17, tokens="generators"),
    *(
        Regression(regression_type=kind, input_dim=6, input_seq_len=9)
        for kind in ("linear", "quadratic", "sparse_linear", "noisy", "outlier")
    ),
    *(Boolean(boolean_type=kind, input_dim=6, input_seq_len=9) for kind in BOOLEAN),
)


@pytest.mark.parametrize("task", [*map(tasks.parse, tasks.names()), *VARIANTS], ids=str)
def test_task_keeps_every_promise(task):
    assert not broken("tasks", task)


@dataclass(frozen=True, kw_only=True)
class Faulty(Task):
    """Which of two tokens is the larger? With one fault."""

    fault: str = ""

    @property
    def by_examples(self):
        return self.fault in ("examples", "backwards", "anywhere")

    def shape(self):
        return TaskShape(inputs=Vectors(1), outputs=Tokens(2), length=3 if self.fault == "length" else 2)

    def held_out(self, split):
        return Faulty(fault="length") if self.fault == "held out" else self

    def sample(self, batch, rng):
        source = None if self.fault == "global" else rng
        inputs = torch.randn(batch, 2, 1, generator=source)
        if self.fault == "centred":
            inputs = inputs - inputs.mean(0)
        if self.fault == "infinite":
            inputs[0, 0] = torch.inf
        if self.fault == "stuck":
            inputs = torch.arange(2 * batch).reshape(batch, 2, 1) % 3 - 0.5
        targets = inputs[..., 0].argmax(1) + 2 * (self.fault == "vocab")
        if self.fault == "positions":
            return Batch(inputs, targets[:, None], torch.full((batch, 1), 2))
        if self.fault in ("backwards", "anywhere"):
            places = torch.tensor([1, 0]) if self.fault == "backwards" else torch.arange(batch)[:, None] % 2
            places = places.expand(batch, -1)
            return Batch(inputs, targets[:, None].expand(places.shape), places)
        return Batch(inputs, targets)

    def sample_together(self, batch, rngs):
        return super().sample_together(batch, rngs[:1] * len(rngs) if self.fault == "shared" else rngs)

    def references(self, batch):
        match self.fault:
            case "reference":
                return {"first": batch.inputs * torch.nan}
            case "probabilities":
                return {"even": torch.full((len(batch.inputs), 2), -0.5)}
            case "no oracle, a constant":
                return {"even": torch.full((len(batch.inputs), 2), 0.5).log()}
        return {}

    def oracle(self, batch):
        match self.fault:
            case "cheats":
                return batch.targets
            case "constant":
                return torch.zeros_like(batch.targets)
            case "shape":
                return batch.inputs
            case "no oracle" | "no oracle, a constant":
                return None
        return batch.inputs[..., 0].argmax(1)


@pytest.mark.parametrize(
    ("fault", "promise", "seen"),
    [
        ("global", contract.gives_equal_batches_to_equal_generators, "different inputs"),
        ("stuck", contract.gives_equal_batches_to_equal_generators, "in a row"),
        ("shared", contract.draws_together_what_it_draws_alone, "drawn together, inputs are others"),
        ("length", contract.has_the_shape_it_says, r"inputs \(1, 2, 1\), not \(1, 3, 1\)"),
        ("vocab", contract.has_the_shape_it_says, r"leave 0\.\.1"),
        ("infinite", contract.is_finite, "1 of 128 entries of inputs"),
        ("global", contract.leaves_the_global_generator_alone, "sample drew"),
        ("cheats", contract.answers_each_sequence_alone, "move by"),
        ("centred", contract.draws_each_sequence_alone, "inputs drawn alone have a variance of 0"),
        ("constant", contract.has_an_oracle_better_than_any_constant, "most frequent"),
        ("shape", contract.has_an_oracle_better_than_any_constant, r"the oracle gave \(1024, 2, 1\)"),
        ("reference", contract.has_an_oracle_better_than_any_constant, r"first gave \(4, 2, 1\) for \(4,\)"),
        ("probabilities", contract.has_an_oracle_better_than_any_constant, r"even sum to 1\.2131"),
        ("no oracle", contract.has_an_oracle_better_than_any_constant, "neither an oracle nor a reference"),
        ("no oracle, a constant", contract.has_an_oracle_better_than_any_constant, "references have 0"),
        ("held out", contract.has_the_shape_it_says, "held out for validation"),
        ("reference", contract.is_finite, "128 of 128 entries of first"),
        ("positions", contract.has_the_shape_it_says, r"positions 2\.\.2 leave 0\.\.1"),
        ("examples", contract.asks_after_each_example_where_it_says_so, "one answer per sequence"),
        ("backwards", contract.asks_after_each_example_where_it_says_so, "do not rise"),
        ("anywhere", contract.asks_after_each_example_where_it_says_so, "differ between sequences"),
    ],
)
def test_a_broken_promise_is_noticed(fault, promise, seen):
    promise(Faulty())
    with pytest.raises(AssertionError, match=seen):
        promise(replace(Faulty(), fault=fault))
