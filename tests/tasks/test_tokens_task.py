"""Windows of tokens: fixed for scoring, each read once in training, with what is known of every answer."""

import torch

from assay.data import tokens
from assay.data.vocabulary import SIZE
from assay.nn.random import stream
from assay.tasks import tasks
from assay.tasks.tokens import TokenWindows

TASK = TokenWindows(input_seq_len=128)


def test_windows_cover_a_split_in_order() -> None:
    task = TASK.held_out("test")
    text = tokens.token_text("speeches").test
    batches = [task.batch(starts) for starts in task.starts().split(7)]
    inputs, targets = (
        torch.cat([getattr(batch, name) for batch in batches]).flatten() for name in ("inputs", "targets")
    )
    ids = torch.from_numpy(text.ids.astype("int64"))
    assert len(inputs) == task.windows * 128 and len(ids) - len(inputs) <= 128
    assert torch.equal(inputs, ids[: len(inputs)]) and torch.equal(targets, ids[1 : len(inputs) + 1])


def test_a_reading_takes_each_window_once_and_its_place_goes_on() -> None:
    reading, other = TASK.reading(stream(0, "data")), TASK.reading(stream(1, "data"))
    rounds = TASK.windows // 16
    starts = torch.cat([reading.starts(16) for _ in range(rounds)])
    assert len(starts.unique()) == 16 * rounds and int(reading.place) == 16 * rounds
    again = TASK.reading(stream(0, "data"))
    again.place.fill_(16)
    assert torch.equal(again.starts(16), starts[16:32])
    assert not torch.equal(other.starts(16), starts[:16])
    batch = TASK.batch(starts[:16])
    assert batch.inputs.shape == (16, 128) and torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])


def test_marks_are_what_a_loop_finds() -> None:
    task = TASK.held_out("validation")
    text, marks = tokens.token_text("speeches").validation, task.marks(task.starts())
    for row, batch in enumerate(map(task.batch, task.starts()[:40].split(1))):
        whole = [*batch.inputs[0].tolist(), batch.targets[0, -1].item()]
        last: dict[tuple[int, int], int] = {}
        for place in range(128):
            pair, at = (whole[place], whole[place + 1]), row * 128 + place + 1
            assert marks.distance[row, place] == place - last.get(pair, place)
            last[pair] = place
            document = next(n for n, end in enumerate(text.ends) if at < end)
            assert marks.document[row, place] == document and marks.source[row, place] == text.sources[document]
            assert marks.position[row, place] == at - text.starts[document]
            assert marks.rare[row, place] == text.rare[at]
    recalled = torch.cat([task.recalled(task.batch(starts)) for starts in task.starts().split(50)])
    assert torch.equal(recalled, torch.from_numpy(marks.distance > 0))
    assert 0.002 < (marks.rare & (marks.distance > 0)).mean() < 0.02


def test_the_hash_of_the_text_and_its_vocabulary_is_an_option() -> None:
    assert len(TASK.sha256) == 16 and tasks.parse(f"tokens:input_seq_len=128:sha256={TASK.sha256}") == TASK
    assert TASK.shape().inputs.vocab == SIZE


def test_long_documents_fill_their_windows() -> None:
    task = TokenWindows(input_seq_len=2048).held_out("test")
    starts, marks = task.long_documents(), task.marks(task.long_documents())
    assert len(starts) == 4 and (marks.position == range(1, 2049)).all()
    assert (marks.document == marks.document[:, :1]).all()
