"""Documents become arrays of tokens; no stretch of fifty stands in two splits; what is rare was counted in training."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from assay.data import library2, tokens
from assay.data.text import speeches
from assay.data.tokens import RARE, SHORTEST, STRETCH, Tokens, TokenText, tokenised
from assay.data.vocabulary import END, shipped

SPEECHES = speeches()


def documents_of(found: Tokens) -> list[list[int]]:
    assert len(found.ends) == len(found.sizes) == len(found.sources) and found.ends[-1] == len(found.ids)
    parts = [found.ids[start:end].tolist() for start, end in zip(found.starts, found.ends, strict=True)]
    assert all(part[-1] == END and END not in part[:-1] for part in parts)
    return [part[:-1] for part in parts]


def stretches(found: Tokens) -> set[tuple[int, ...]]:
    parts = documents_of(found)
    return {tuple(part[at : at + STRETCH]) for part in parts for at in range(len(part) - STRETCH + 1)}


@pytest.fixture(scope="module")
def found() -> TokenText:
    """Speeches, of which a test document copies a training document in its middle, and validation both of them."""
    train = [("a", text[:4000]) for text in SPEECHES[:6]]
    copied = SPEECHES[20][:3000] + SPEECHES[2][1000:2500] + SPEECHES[21][:3000]
    test = [("b", copied), ("a", SPEECHES[22][:3000]), ("a", SPEECHES[1][:4000])]
    validation = [("c", SPEECHES[23][:2000] + SPEECHES[22][500:1500] + SPEECHES[24][:100])]
    return tokenised({"train": train, "validation": validation, "test": test}, shipped())


def test_documents_keep_their_tokens_bytes_and_sources(found: TokenText) -> None:
    assert found.sources == ("a", "c", "b") and found.train.sources.tolist() == [0] * 6
    assert documents_of(found.train) == [shipped().encode(text[:4000]).tolist() for text in SPEECHES[:6]]
    assert found.train.sizes.tolist() == [len(text[:4000].encode()) for text in SPEECHES[:6]]


def test_no_stretch_stands_in_two_splits_and_no_more_is_cut_than_that(found: TokenText) -> None:
    train, validation, test = map(stretches, (found.train, found.validation, found.test))
    assert not train & validation and not train & test and not validation & test
    parts = documents_of(found.test)
    assert len(parts) == 3, "two sides of the copied stretch, a whole document, and nothing of a training document"
    assert found.test.sources.tolist() == [2, 2, 0] and min(map(len, parts)) >= SHORTEST
    assert parts[2] == shipped().encode(SPEECHES[22][:3000]).tolist()
    sides = [shipped().decode(np.array(part, np.uint16)) for part in parts[:2]]
    assert found.test.sizes[:2].tolist() == [len(side) for side in sides]
    assert SPEECHES[20][:2900].encode() in sides[0] and SPEECHES[21][100:3000].encode() in sides[1]
    assert len(documents_of(found.validation)) == 1, "a hundred characters are too few for a document"


def test_rare_pairs_are_counted_in_training(found: TokenText, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counter(pairwise(found.train.ids.tolist()))
    for per_million in (RARE, 1000):
        monkeypatch.setattr(tokens, "RARE", per_million)
        marked = tokens._with_rare(found.test, found.train)
        few = per_million * 1e-6 * len(found.train.ids)
        assert marked.rare.tolist() == [False, *(counts[pair] <= few for pair in pairwise(marked.ids.tolist()))]
        assert per_million != RARE or np.array_equal(marked.rare, found.test.rare)


def hashed(found: Tokens) -> set[tuple[int, int]]:
    parts = tokens._stretches(found)
    return {(at + n, int(h)) for at, hashes, inside in parts for n, h in enumerate(hashes) if inside[n]}


def test_chunks_change_nothing(found: TokenText, monkeypatch: pytest.MonkeyPatch) -> None:
    before = hashed(found.test)
    assert len({h for _, h in before}) == len(stretches(found.test))
    monkeypatch.setattr(tokens, "CHUNK", 97)
    assert hashed(found.test) == before


def test_tokens_are_kept_to_the_byte(found: TokenText, tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(tokens.packed(found))
    again = tokens.unpacked(tmp_path / "kept")
    assert tokens.packed(again) == tokens.packed(found) and again.sources == found.sources
    assert all(np.array_equal(a, b) for a, b in zip(vars(again.test).values(), vars(found.test).values(), strict=True))


def test_a_text_is_tokenised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "mine"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number}.txt").write_text(SPEECHES[number][:5000])
    tokens._opened.cache_clear()
    found = tokens.token_text(str(folder))
    assert tokens.kept(tokens.text_hash(str(folder))).is_file() and found.sources == ("text",)
    assert [len(documents_of(found.of(split))) for split in tokens.PARTS] == [10, 1, 1]
    tokens._opened.cache_clear()
    monkeypatch.setattr(tokens, "tokenised", lambda *_: pytest.fail("it was tokenised again"))
    assert np.array_equal(tokens.token_text(str(folder)).train.ids, found.train.ids)
    tokens._opened.cache_clear()


def test_the_large_text_is_known_by_its_hashes_where_its_tokens_alone_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: TokenText
) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    with pytest.raises(Exception, match="assay data pull library2"):
        tokens.token_text("library2")
    path = tokens.kept(tokens.text_hash("library2"))
    path.write_bytes(tokens.packed(found))
    assert not library2.is_here() and tokens.token_text("library2").sources == found.sources
    tokens._opened.cache_clear()
