"""Tokens are those that `tokenizers` would give, and lose no byte."""

import sys
from pathlib import Path

import numpy as np
import pytest

from assay.data import vocabulary
from assay.data.text import speeches
from assay.data.vocabulary import END, SIZE, Vocabulary, shipped

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

ODD = (
    "naïve 10\u2009µg\u00a0α-β\u2028漢字 \U0001f600\x00\x0b\n\n\t  x = [1234.5]\r\n    don't_we've  \u0130ﬁ  ¼Ⅷ"
    + " " * 200
    + "=" * 150
)


@pytest.mark.parametrize("text", [ODD, "", " ", "a", speeches()[3][:3000], "cut \udce2\udc82 off"])
def test_no_byte_is_lost(text: str) -> None:
    ids = shipped().encode(text)
    assert ids.dtype == np.uint16 and shipped().decode(ids) == text.encode(errors="surrogateescape")
    assert (ids < END).all()


def test_the_shipped_vocabulary_is_full_and_every_piece_is_another() -> None:
    pieces = shipped().pieces
    assert len(pieces) == SIZE and len(set(pieces)) == SIZE and pieces[END] == b""
    assert len(shipped().sha256) == 64
    assert len(shipped().encode(speeches()[3])) < 0.3 * len(speeches()[3])


def test_the_pair_that_was_merged_first_is_merged_first() -> None:
    t, h, e = b"the"
    found = Vocabulary([(h, e), (t, h), (t, 256)])
    assert found.encode("the th e").tolist() == [258, 32, 257, 32, e]


def test_tokenizers_cuts_and_merges_the_same() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    import train_vocabulary

    letters = {byte: letter for letter, byte in train_vocabulary.bytes_of_letters().items()}
    names = [letters[byte] for byte in range(256)]
    merges = [(left, right) for left, right in shipped().merges]
    for left, right in merges:
        names.append(names[left] + names[right])
    vocabulary_of = {name: place for place, name in enumerate(names)}
    model = tokenizers.models.BPE(vocabulary_of, [(names[left], names[right]) for left, right in merges])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = train_vocabulary.splitter()
    code = Path(vocabulary.__file__).read_text()
    for text in (ODD, code, *(speech[:20000] for speech in speeches()[::8])):
        assert tokenizer.encode(text).ids == shipped().encode(text).tolist()


def test_a_vocabulary_is_learned_as_it_is_used() -> None:
    pytest.importorskip("tokenizers")
    import train_vocabulary

    merges = train_vocabulary.learned(iter(["the theme of the theory"] * 5), size=262)
    assert len(merges) == 5 and Vocabulary(merges).encode("the").size == 1
