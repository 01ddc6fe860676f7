"""Every mixer learns every type of every task, and with every state mixer: the loss on one batch falls after steps on
it."""

from typing import get_args

import pytest
import torch

from assay.core.convert import option_types
from assay.mixers import mixers
from assay.models.sequence import SequenceModel
from assay.nn.random import initialised_from, stream
from assay.state_mixers import state_mixers
from assay.tasks import tasks
from assay.train.recipe import answer_losses
from portable import MIXERS

# Small enough for every type with every mixer to take seconds: what is asked is whether gradients reach and help.
SMALL = {
    "mqar": "mqar:vocab_size=12:input_seq_len=8:num_kv_pairs=2",
    "disjoint": "disjoint:vocab_size=12:short_length=2:long_length=3",
    "regression": "regression:input_seq_len=4:input_dim=3:sparsity=2",
    "boolean": "boolean:input_seq_len=4:input_dim=3",
    "state_tracking": "state_tracking:length=8",
    "in_context_recall": "in_context_recall:vocab_size=8:input_seq_len=12",
    "noisy_recall": "noisy_recall:vocab_size=12:noise_vocab_size=4:input_seq_len=12",
    "fuzzy_recall": "fuzzy_recall:vocab_size=9:input_seq_len=16:k_motif_size=2:v_motif_size=2",
    "selective_copying": "selective_copying:vocab_size=6:input_seq_len=9:num_tokens_to_copy=3",
    "compression": "compression:vocab_size=5:input_seq_len=4",
    "icll": "icll:num_states=2:num_strings=2:string_length=3",
    "markov": "markov:num_symbols=3:input_seq_len=8",
    "text": "text:input_seq_len=8",
    "memorization": "memorization:vocab_size=9:input_seq_len=8",
    "multi_hop_recall": "multi_hop_recall:vocab_size=8:num_nodes=4:max_hops=2:num_queries=2",
}
TYPES = {"regression": "regression_type", "boolean": "boolean_type", "state_tracking": "group"}
"""The option that says which kind of the task it is."""
KINDS = {
    name: [f"{word}:{TYPES[name]}={kind}" for kind in get_args(option_types(tasks[name])[TYPES[name]])]
    if name in TYPES
    else [word]
    for name, word in SMALL.items()
}
EVERY = [word for words in KINDS.values() for word in words]
OTHER_STATE_MIXERS = [name for name in state_mixers.names() if name != "mlp"]
MIXER = pytest.mark.parametrize("mixer", MIXERS)
STEPS = 20


def fall(task_word: str, mixer: str, state_mixer: str, *, enough: float = 0.0) -> tuple[float, float]:
    """The loss on one fixed batch before and after training on it, until it is `enough` of what it was."""
    task = tasks.parse(task_word)
    options = SequenceModel(
        seq_mixer=mixers.parse(mixer), state_mixer=state_mixers.parse(state_mixer), model_dim=16, num_layers=1
    )
    with initialised_from(0, "learning"):
        model = options.build(task.shape())
    batch = task.sample(8, stream(0, "learning"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)

    def loss() -> torch.Tensor:
        return answer_losses(task, model(batch.inputs, batch.positions), batch).mean()

    now = loss()
    before = now.item()
    for _ in range(STEPS):
        optimizer.zero_grad()
        now.backward()
        optimizer.step()
        now = loss()
        if now.item() < enough * before:
            break
    return before, now.item()


@MIXER
@pytest.mark.parametrize("task", EVERY)
def test_every_mixer_learns_every_type_of_every_task(task: str, mixer: str) -> None:
    """All pairs for the first steps; each task, and each mixer, for all of them below."""
    before, after = fall(task, mixer, "mlp", enough=0.9)
    assert after < 0.9 * before


@pytest.mark.parametrize("task", EVERY)
def test_every_type_of_every_task_stays_learned(task: str) -> None:
    before, after = fall(task, "attention", "mlp")
    assert after < 0.9 * before


@MIXER
@pytest.mark.parametrize("state_mixer", OTHER_STATE_MIXERS)
def test_every_mixer_learns_with_every_state_mixer(mixer: str, state_mixer: str) -> None:
    """All pairs for the first steps, each mixer with one of the state mixers for all of them."""
    turn = OTHER_STATE_MIXERS[MIXERS.index(mixer) % len(OTHER_STATE_MIXERS)]
    before, after = fall(SMALL["mqar"], mixer, state_mixer, enough=0.0 if state_mixer == turn else 0.9)
    assert after < 0.9 * before


@pytest.mark.slow
@MIXER
@pytest.mark.parametrize("state_mixer", OTHER_STATE_MIXERS)
@pytest.mark.parametrize("task", [word for word in EVERY if word != SMALL["mqar"]])
def test_every_combination_learns(task: str, mixer: str, state_mixer: str) -> None:
    before, after = fall(task, mixer, state_mixer)
    assert after < 0.9 * before


def test_every_task_of_the_study_and_every_type_is_here() -> None:
    others = {"tokens"}  # it is text in longer pieces
    assert set(SMALL) == {name for name in tasks.names() if tasks[name].in_context} - others
    assert len(EVERY) == len(SMALL) - 3 + 5 + 8 + 4, "regressions, boolean families, groups; one each of the others"
