"""Every mixer learns on every task, and with every state mixer: the loss on one batch falls after steps on it."""

import pytest
import torch

from assay.mixers import mixers
from assay.models.sequence import SequenceModel
from assay.nn.random import initialised_from, stream
from assay.state_mixers import state_mixers
from assay.tasks import tasks
from assay.train.recipe import answer_losses

SMALL = {
    "mqar": "mqar:vocab_size=32:input_seq_len=16:num_kv_pairs=2",
    "disjoint": "disjoint:vocab_size=24:short_length=3:long_length=6",
    "regression": "regression:input_seq_len=6:input_dim=3:sparsity=2",
    "boolean": "boolean:boolean_type=int_halfspace:input_seq_len=6:input_dim=4",
    "state_tracking": "state_tracking:group=s3:length=10",
}
STEPS = 20


def fall(task_word: str, mixer: str, state_mixer: str) -> tuple[float, float]:
    """The loss on one fixed batch before and after training on it."""
    task = tasks.parse(task_word)
    options = SequenceModel(
        seq_mixer=mixers.parse(mixer), state_mixer=state_mixers.parse(state_mixer), model_dim=32, num_layers=1
    )
    with initialised_from(0, "learning"):
        model = options.build(task.shape())
    batch = task.sample(16, stream(0, "learning"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    losses = []
    for _ in range(STEPS + 1):
        optimizer.zero_grad()
        loss = answer_losses(task, model(batch.inputs, batch.positions), batch).mean()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    return losses[0], losses[-1]


@pytest.mark.parametrize("mixer", mixers.names())
@pytest.mark.parametrize("task", SMALL)
def test_every_mixer_learns_every_task(task: str, mixer: str) -> None:
    before, after = fall(SMALL[task], mixer, "mlp")
    assert after < 0.9 * before


@pytest.mark.parametrize("mixer", mixers.names())
@pytest.mark.parametrize("state_mixer", state_mixers.names())
def test_every_mixer_learns_with_every_state_mixer(mixer: str, state_mixer: str) -> None:
    before, after = fall(SMALL["mqar"], mixer, state_mixer)
    assert after < 0.9 * before


@pytest.mark.slow
@pytest.mark.parametrize("state_mixer", state_mixers.names())
@pytest.mark.parametrize("mixer", mixers.names())
@pytest.mark.parametrize("task", SMALL)
def test_every_combination_learns(task: str, mixer: str, state_mixer: str) -> None:
    before, after = fall(SMALL[task], mixer, state_mixer)
    assert after < 0.9 * before


def test_every_task_of_the_study_is_here() -> None:
    assert set(SMALL) == set(tasks.names()) - {"hybrid", "retrieval"}
