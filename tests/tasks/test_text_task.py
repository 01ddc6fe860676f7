"""Real text: windows of held-out documents, bytes that a window has had before, and plain predictors by counting."""

import math
from collections import Counter
from pathlib import Path

import pytest
import torch

from assay.core.errors import UserError
from assay.data.splits import BLOCK, documents_of
from assay.data.text import SPEECHES_FILE, speeches
from assay.nn.random import stream
from assay.tasks.base import Batch
from assay.tasks.text import CONTEXT, RARE, Text

SPLITS = ("train", "validation", "test")
NAMES = ("Ada", "Bo", "Cy", "Di", "Ed", "Flo", "Gil", "Hal", "Ida", "Jo")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten documents of 120 bytes or more, each with a name that returns."""
    for place, name in enumerate(NAMES):
        text = f"{place}: of the people, {name}Smith said, of the people. " * 3
        (tmp_path / f"{place}.txt").write_text(text + "é" * place, encoding="utf-8")
    return tmp_path


def batch_of(*texts: bytes) -> Batch:
    whole = torch.tensor([list(text) for text in texts])
    positions = torch.arange(whole.shape[1] - 1).expand(len(texts), -1)
    return Batch(whole[:, :-1], whole[:, 1:], positions)


def windows(batch: Batch) -> list[bytes]:
    return [bytes([row[0], *after]) for row, after in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True)]


def test_the_target_of_a_place_is_the_next_byte() -> None:
    batch = Text(input_seq_len=9).sample(5, stream(0, "text"))
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert batch.positions is not None and batch.positions.tolist() == [list(range(9))] * 5


@pytest.mark.parametrize("split", SPLITS)
def test_a_window_lies_inside_one_document_of_its_split(split: str) -> None:
    found = windows(Text(split=split, input_seq_len=40).sample(50, stream(0, "text")))
    documents = documents_of("speeches").of(split)
    assert all(any(window in document for document in documents) for window in found)


def test_every_place_of_every_document_is_drawn(folder: Path) -> None:
    task = Text(corpus=str(folder), input_seq_len=120)
    documents = documents_of(str(folder)).train
    places = {d[start : start + 121] for d in documents for start in range(len(d) - 120)}
    assert set(windows(task.sample(20_000, stream(0, "text")))) == places


def test_no_document_is_in_two_splits_and_none_is_lost() -> None:
    documents = documents_of("speeches")
    split = [set(documents.of(name)) for name in SPLITS]
    assert set.union(*split) == {speech.encode() for speech in speeches()}
    assert sum(map(len, split)) == len(speeches()) == 42
    assert [len(part) for part in split] == [34, 4, 4]


def test_the_held_out_task_draws_from_documents_that_training_never_sees() -> None:
    task = Text(input_seq_len=64)
    assert [task.held_out(split).split for split in ("validation", "test")] == ["validation", "test"]
    seen = b"\f".join(documents_of("speeches").train)
    assert not any(window in seen for window in windows(task.held_out("test").sample(50, stream(0, "text"))))


def test_the_speeches_are_in_the_package_and_small() -> None:
    """What lies in the package's folder is in the wheel: hatchling takes it whole."""
    assert SPEECHES_FILE.parent.name == "data" and SPEECHES_FILE.stat().st_size < 700_000
    assert 1_900_000 < sum(len(speech.encode()) for speech in speeches()) < 2_100_000
    assert not any("  " in speech or "\n\n" in speech for speech in speeches())


def slow_recalled(window: bytes, blocks: list[bytes]) -> list[bool]:
    found = []
    for end in range(1, len(window)):
        piece = window[end - CONTEXT : end + 1] if end >= CONTEXT else b""
        before = bool(piece) and piece in window[:end]
        found.append(before and sum(piece in block for block in blocks) <= RARE * len(blocks))
    return found


def test_recalled_bytes_are_those_a_slow_search_finds(folder: Path) -> None:
    task = Text(corpus=str(folder), input_seq_len=100).held_out("test")
    documents = documents_of(str(folder))
    blocks = [d[start : start + BLOCK] for d in documents.train for start in range(0, len(d), BLOCK)]
    batch = task.sample(20, stream(0, "text"))
    expected = [slow_recalled(window, blocks) for window in windows(batch)]
    assert task.recalled(batch).tolist() == expected and 0 < sum(map(sum, expected)) < 1000


def test_recalled_bytes_of_speeches_too() -> None:
    task = Text(input_seq_len=600).held_out("test")
    documents = documents_of("speeches")
    blocks = [d[start : start + BLOCK] for d in documents.train for start in range(0, len(d), BLOCK)]
    batch = task.sample(2, stream(3, "text"))
    expected = [slow_recalled(window, blocks) for window in windows(batch)]
    assert task.recalled(batch).tolist() == expected and any(map(any, expected))


def test_a_name_that_returns_is_recalled_from_its_sixth_byte_on_and_common_words_are_not() -> None:
    (found,) = Text(input_seq_len=29).recalled(batch_of(b"Xqzvkwj of the Xqzvkwj of the "))
    assert found.tolist() == [place in range(19, 26) for place in range(29)], "from `Xqzvkw` to `j of t`"


def test_the_unigram_has_the_bits_that_counting_gives() -> None:
    task = Text().held_out("test")
    batch = task.sample(20, stream(0, "text"))
    counts = Counter(b"".join(documents_of("speeches").train))
    total, kinds = sum(counts.values()), len(counts)
    bits = [
        -math.log2((counts[byte] + kinds / 256) / (total + kinds)) for row in batch.targets.tolist() for byte in row
    ]
    found = -task.references(batch)["unigram"].gather(2, batch.targets[..., None]).double().mean() / math.log(2)
    assert found.item() == pytest.approx(sum(bits) / len(bits), rel=1e-5)


def slow_ngram(context: bytes, byte: int, documents: list[bytes]) -> float:
    """The formula of assay.tasks.ngrams, from the longest context down."""
    shorter = slow_ngram(context[1:], byte, documents) if context else 1 / 256
    size = len(context)
    after = Counter(d[i + size] for d in documents for i in range(len(d) - size) if d[i : i + size] == context)
    seen, kinds = sum(after.values()), len(after)
    return (after[byte] + kinds * shorter) / (seen + kinds) if seen else shorter


def test_the_ngram_has_the_probabilities_of_its_formula(folder: Path) -> None:
    task = Text(corpus=str(folder), input_seq_len=12)
    documents = list(documents_of(str(folder)).train)
    batch = task.held_out("test").sample(4, stream(0, "text"))
    found = task.references(batch)["ngram"].gather(2, batch.targets[..., None])[..., 0].exp()
    for row, window in enumerate(windows(batch)):
        expected = [slow_ngram(window[max(0, i + 1 - CONTEXT) : i + 1], window[i + 1], documents) for i in range(12)]
        assert found[row].tolist() == pytest.approx(expected, rel=1e-4)


def test_the_copy_is_wrong_at_first_and_right_where_the_window_repeats_itself() -> None:
    batch = batch_of(b"Xqzvkwj Xqzvkwj Xqzvkwj")
    task = Text(input_seq_len=22)
    of_target = {
        name: p.gather(2, batch.targets[..., None])[0, :, 0].exp() for name, p in task.references(batch).items()
    }
    assert torch.equal(of_target["copy"][:12], of_target["ngram"][:12]), "nothing has returned yet"
    weight = [(right + 1) / (right + 2) for right in range(10)]
    assert (of_target["copy"][12:] >= torch.tensor(weight)).all(), "each copy so far was right"


def test_a_text_of_ones_own_is_another_run_when_it_is_edited(folder: Path) -> None:
    task = Text(corpus=str(folder), input_seq_len=20)
    (folder / "3.txt").write_text("something else altogether, and long enough for a window", encoding="utf-8")
    edited = Text(corpus=str(folder), input_seq_len=20)
    assert len(task.sha256) == len(edited.sha256) == 16 and task.sha256 != edited.sha256
    with pytest.raises(UserError, match="another text than the one with sha256"):
        Text(**{key: value for key, value in task.spec().items() if key != "name"})
    assert Text().spec()["sha256"] == "", "the speeches are the same everywhere"


def test_a_text_that_is_not_here_is_planned_by_its_hash_and_missed_when_it_is_drawn_from(folder: Path) -> None:
    here = Text(corpus=str(folder), input_seq_len=16)
    folder.rename(folder.parent / "elsewhere")
    absent = Text(corpus=str(folder), input_seq_len=16, sha256=here.sha256)
    assert absent == here, "the same run: what is stored of it can be found"
    with pytest.raises(UserError, match="no text"):
        absent.sample(2, torch.Generator())
    with pytest.raises(UserError, match="no text"):
        Text(corpus=str(folder), input_seq_len=16)


def test_file_names_and_equal_documents_do_not_matter(folder: Path) -> None:
    before = documents_of(str(folder))
    (folder / "0.txt").rename(folder / "renamed.txt")
    (folder / "again.txt").write_bytes((folder / "1.txt").read_bytes())
    assert documents_of(str(folder)) == before


def test_a_single_file_is_cut_into_blocks(tmp_path: Path) -> None:
    file = tmp_path / "one.txt"
    file.write_text("".join(f"{number} " for number in range(6000)), encoding="utf-8")
    found = documents_of(str(file))
    blocks = [block for split in SPLITS for block in found.of(split)]
    assert sorted(map(len, blocks))[1:] == [BLOCK] * 3 and sum(map(len, blocks)) == file.stat().st_size - 1
    assert Text(corpus=str(file)).sample(2, stream(0, "text")).inputs.shape == (2, 256)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"corpus": "nowhere.txt"}, "no text 'nowhere.txt' here. Give a text file, a folder"),
        ({"corpus": "empty.txt"}, "is empty: give a file with text"),
        ({"corpus": "short.txt"}, r"1 different documents, and 3 are needed.* 16,385 bytes or more"),
        ({"corpus": "folder", "input_seq_len": 5000}, r"input_seq_len=5000 is too long .* Use input_seq_len=1\d\d or"),
        ({"input_seq_len": 10**9}, r"Use input_seq_len=68805 or less"),
        ({"input_seq_len": 0}, "input_seq_len=0 must be at least 1"),
        ({"sha256": "0123"}, "Leave sha256 out"),
    ],
)
def test_a_text_that_cannot_be_used_is_refused_in_one_line(
    options: dict[str, str | int], says: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    (folder.parent / "empty.txt").write_text("", encoding="utf-8")
    (folder.parent / "short.txt").write_text("too short", encoding="utf-8")
    if options.get("corpus") == "folder":
        options = {**options, "corpus": str(folder)}
    with pytest.raises(UserError, match=f"task 'text'.*{says}") as refused:
        Text(**options)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
