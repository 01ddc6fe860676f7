"""What a mixer says of order is what it does: only one that is blind to it is given a table of positions by `auto`."""

import pytest
import torch

from assay.mixers import mixers
from assay.models.sequence import SequenceModel
from assay.nn.random import initialised_from, stream
from assay.tasks import tasks
from portable import MIXERS

ROTARY = [f"{name}:positions=rotary" for name in ("attention", "sliding_window", "sparse_attention")]
ALONE = [name for name in MIXERS if name != "hybrid"]
"""A hybrid is several layers; of two that are blind the second can tell order from what the first one saw."""


@pytest.mark.parametrize(
    "word", [*(f"{name}:conv=0" for name in ALONE), *(f"{name}:conv=4" for name in ALONE), *ROTARY]
)
@torch.no_grad()
def test_the_order_of_the_past_changes_the_last_output_of_a_mixer_that_tells_order_and_of_no_other(word: str) -> None:
    mixer = mixers.parse(word)
    with initialised_from(0, "order"):
        module = mixer.build(32, 6).double().eval()
    x = torch.randn(4, 6, 32, generator=stream(0, "order"), dtype=torch.float64)
    moved = (module(x)[:, -1] - module(x[:, [3, 1, 4, 0, 2, 5]])[:, -1]).abs().max().item()
    assert (moved > 1e-6) is mixer.tells_order(), f"moved by {moved:.1e}"


@pytest.mark.parametrize(("word", "table"), [("attention", True), *((word, False) for word in ROTARY), ("gru", False)])
def test_auto_gives_a_table_of_positions_to_what_is_blind_without(word: str, table: bool) -> None:
    model = SequenceModel(seq_mixer=mixers.parse(word), model_dim=16, positions="auto")
    assert (
        model.build(tasks.parse("mqar:vocab_size=32:input_seq_len=8:num_kv_pairs=2").shape()).position is not None
    ) is table
