"""The law of compression, and that all answers come from one position of the model."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from assay.core.errors import UserError
from assay.models.sequence import SequenceModel
from assay.nn.random import initialised_from, stream
from assay.tasks.base import Batch
from assay.tasks.compression import Compression

SMALL = Compression(vocab_size=5, input_seq_len=4)


def draw(task: Compression, batch: int = 256) -> Batch:
    return task.sample(batch, stream(0, "test"))


def test_the_worked_example_is_answered() -> None:
    tokens = torch.tensor([[2, 0, 1, 0, 15]])
    task = Compression(input_seq_len=5)
    batch = Batch(tokens, torch.zeros(1, 4), torch.tensor([[4]]))
    assert task.oracle(batch).tolist() == [[2, 0, 1, 0]]
    assert task.references(batch)["unordered"].tolist() == [[0, 0, 0, 0]]


def test_every_content_is_asked_at_the_last_token() -> None:
    batch = draw(Compression())
    assert (batch.inputs[:, -1] == 15).all() and (batch.inputs[:, :-1] < 15).all()
    assert (batch.positions == 31).all() and torch.equal(batch.targets, batch.inputs[:, :-1])
    share = batch.targets.flatten().bincount(minlength=15).double()
    expected = batch.targets.numel() / 15
    assert ((share - expected) ** 2 / expected).sum() < 14 + 5 * 28**0.5


def test_knowing_the_contents_without_their_order_is_worth_little() -> None:
    batch = draw(Compression())
    given = Compression().references(batch)["unordered"]
    for answer, targets in zip(given.tolist(), batch.targets.tolist(), strict=True):
        assert Counter(targets)[answer[0]] == max(Counter(targets).values())
    assert 1 / 15 < (given == batch.targets).double().mean().item() < 0.25


def test_answer_j_is_the_jth_head_of_the_last_vector_alone() -> None:
    with initialised_from(0, "test"):
        model = SequenceModel(model_dim=8, num_layers=1).build(SMALL.shape())
    batch = draw(SMALL, 6)
    answers = model(batch.inputs, batch.positions)
    assert answers.shape == (6, 3, 5)
    vector = model.hidden(batch.inputs, None)[:, -1]
    for j, head in enumerate(model.head.weight.split(5)):
        torch.testing.assert_close(answers[:, j], linear(vector, head))


def test_a_tied_head_has_one_answer_per_position() -> None:
    with pytest.raises(UserError, match="one per position: untie it with --model"):
        SequenceModel(model_dim=8, tied=True).check(SMALL.shape())


def test_the_study_trains_it_and_scores_functions_on_it(
    cli_json: Callable[..., Any], cli: Callable[..., Any], tmp_path: Path, undrawn: None
) -> None:
    words = [
        "--task.vocab_size",
        "5",
        "--task.input_seq_len",
        "4",
        "--eval_size",
        "50",
        "--device",
        "cpu",
        "--seeds",
        "0",
    ]
    sizes = ["--model.model_dim", "16", "--train.max_steps", "60", "--train.micro_batch_size", "64"]
    rate = ["--optimizer.lr", "1e-2", "--executor", "serial", "--out", tmp_path]
    rows = cli_json("icl", "task:compression", *words, *sizes, *rate)["rows"]
    scores = {row["seq_mixer"]: row["accuracy"]["mean"] for row in rows}
    assert scores["(oracle)"] == 1 and scores["attention"] > scores["(unordered)"] > 0.25
    (tmp_path / "mine.py").write_text(
        "from torch.nn.functional import one_hot\n"
        "def answer(inputs, *, positions):\n"
        "    return one_hot(inputs[:, :3], 5).float().reshape(len(inputs), 1, 15)\n"
    )
    code, out, err = cli("icl", "eval", "task:compression", *words, "--model", f"{tmp_path}/mine.py:answer", *rate[-4:])
    assert code == 0 and "1.0000" in out, out + err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"input_seq_len": 1}, "input_seq_len=1 leaves nothing to compress"),
        ({"vocab_size": 2}, "vocab_size=2 leaves no two contents"),
    ],
)
def test_impossible_options_are_refused_with_a_remedy(options: dict[str, int], says: str) -> None:
    with pytest.raises(UserError, match=f"task 'compression': .*{says}"):
        Compression(**options)
