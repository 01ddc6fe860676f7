"""A text is tokenised once: its documents in three splits, as arrays that a language model reads and is scored by.

    ids     a b c END d e END ...       documents one after another, the end of a text after each
    ends    4 7 ...                     where each document ends
    sizes   bytes of each document's text; sources: which part of the corpus it comes from
    rare    of validation and test: whether a token and the one before it stand together at most `RARE` times in a
            million training tokens

No stretch of `STRETCH` tokens stands in two splits. Where one would, it is cut out of the test documents, or of the
validation documents if test has it too, and what is left on either side are documents of their own.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int64, UInt8, UInt16, UInt64
from safetensors import safe_open
from safetensors.numpy import save

from assay.core.errors import UserError
from assay.core.files import disk_errors, write_file
from assay.core.locks import locked
from assay.data import library2, splits
from assay.data.places import cache
from assay.data.splits import Split
from assay.data.vocabulary import BYTES, END, SIZE, Vocabulary, shipped

STRETCH = 50
SHORTEST = 64
"""Fewest tokens of what is left of a document."""
RARE = 4.4
CHUNK = 2**22
"""Tokens that are hashed or counted at a time."""
BASE = 0x9E3779B97F4A7C15
FORMAT = 1
"""Another number for other rules: it is part of the name under which tokens are kept."""
PARTS: tuple[Split, ...] = ("train", "validation", "test")
Named = Iterable[tuple[str, str]]
"""Sources and texts of documents."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """The documents of a split."""

    ids: UInt16[np.ndarray, " tokens"]
    ends: Int64[np.ndarray, " documents"]
    sizes: Int64[np.ndarray, " documents"]
    sources: UInt8[np.ndarray, " documents"]
    rare: Bool[np.ndarray, " rare_tokens"]
    """Of every token, or of none in training."""

    @property
    def starts(self) -> Int64[np.ndarray, " documents"]:
        return np.concatenate([[0], self.ends[:-1]]).astype(np.int64)


FIELDS = tuple(field.name for field in fields(Tokens))


@dataclass(frozen=True, eq=False)
class TokenText:
    """A tokenised text, and the names of its sources."""

    train: Tokens
    validation: Tokens
    test: Tokens
    sources: tuple[str, ...]

    def of(self, split: Split) -> Tokens:
        return getattr(self, split)


def tokenised(documents: Mapping[Split, Named], vocabulary: Vocabulary) -> TokenText:
    """Tokenise documents, and see to it that no stretch stands in two splits."""
    names: dict[str, int] = {}
    lengths = np.array([len(piece) for piece in vocabulary.pieces])
    train, validation, test = (_encoded(documents[split], vocabulary, names) for split in PARTS)
    test = _apart(test, [train], lengths)
    validation = _apart(validation, [train, test], lengths)
    held = [_with_rare(split, train) for split in (validation, test)]
    return TokenText(train, held[0], held[1], tuple(names))


def _encoded(documents: Named, vocabulary: Vocabulary, names: dict[str, int]) -> Tokens:
    end, rows, sizes, sources = np.array([END], np.uint16), [], [], []
    for source, document in documents:
        rows += [vocabulary.encode(document), end]
        sizes.append(len(document.encode(errors=BYTES)))
        sources.append(names.setdefault(source, len(names)))
    ends = np.cumsum([len(row) + 1 for row in rows[::2]])
    return _tokens(np.concatenate(rows), ends, sizes, sources)


def _tokens(ids: np.ndarray, ends: Iterable[int], sizes: Iterable[int], sources: Iterable[int]) -> Tokens:
    own = np.array(list(ends), np.int64), np.array(list(sizes), np.int64), np.array(list(sources), np.uint8)
    return Tokens(ids, *own, np.zeros(0, bool))


def _stretches(found: Tokens) -> Iterator[tuple[int, UInt64[np.ndarray, " n"], Bool[np.ndarray, " n"]]]:
    """Yield hashes of the stretches that begin at each token from a place on, and which of them lie in one document.

    The hash of tokens t0, t1, ... is t0 + t1 B + t2 B^2 + ... modulo 2^64, over random numbers in the tokens' place."""
    values = np.random.Generator(np.random.PCG64(0)).integers(0, 2**64, SIZE, dtype=np.uint64)
    inverse = pow(BASE, -1, 2**64)
    powers, back = (np.full(CHUNK + STRETCH, base, np.uint64) for base in (BASE, inverse))
    for table in (powers, back):
        table[0] = 1
        np.multiply.accumulate(table, out=table)
    for start in range(0, len(found.ids), CHUNK):
        ids = found.ids[start : start + CHUNK + STRETCH - 1]
        if (count := len(ids) - STRETCH + 1) > 0:
            sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values[ids] * powers[: len(ids)])])
            ended = np.concatenate([[0], np.cumsum(ids == END)])
            inside = ended[STRETCH:] == ended[:count]
            yield start, (sums[STRETCH:] - sums[:count]) * back[:count], inside


def _apart(held: Tokens, others: list[Tokens], lengths: np.ndarray) -> Tokens:
    """Cut out of documents the stretches that others have."""
    own = list(_stretches(held))
    if not own:
        return held
    hashes = np.unique(np.concatenate([found[inside] for _, found, inside in own]))
    likely = np.zeros(2**26, bool)  # most are told to be none by 26 of their bits, without a search
    likely[hashes & (2**26 - 1)] = True
    shared = []
    for other in others:
        for _, found, inside in _stretches(other):
            found = found[inside]
            found = found[likely[found & (2**26 - 1)]]
            shared.append(np.intersect1d(found, hashes))
    common = np.unique(np.concatenate(shared)) if shared else hashes[:0]
    edges = np.zeros(len(held.ids) + 1, np.int64)
    for start, found, inside in own:
        places = start + np.flatnonzero(inside & np.isin(found, common))
        edges[places] += 1
        edges[places + STRETCH] -= 1
    return _without(held, np.cumsum(edges[:-1]) > 0, lengths) if len(common) else held


def _without(held: Tokens, cut: Bool[np.ndarray, " tokens"], lengths: np.ndarray) -> Tokens:
    rows, ends, sizes, sources, end = [], [], [], [], 0
    for start, stop, size, source in zip(held.starts, held.ends, held.sizes, held.sources, strict=True):
        steps = np.flatnonzero(np.diff(cut[start : stop - 1], prepend=True, append=True))
        for first, last in zip(start + steps[::2], start + steps[1::2], strict=True):
            whole = (first, last) == (start, stop - 1)
            if whole or last - first >= SHORTEST:
                rows += [held.ids[first:last], held.ids[stop - 1 : stop]]
                end += last - first + 1
                ends.append(end)
                sizes.append(size if whole else lengths[held.ids[first:last]].sum())
                sources.append(source)
    if not rows:
        raise UserError("no document is left to be scored: all of them stand in the training documents, too.")
    return _tokens(np.concatenate(rows), ends, sizes, sources)


def _with_rare(held: Tokens, train: Tokens) -> Tokens:
    """Mark the rare tokens."""
    counts = np.zeros(SIZE * SIZE, np.uint32)
    for start in range(0, len(train.ids), 4 * CHUNK):
        pairs = _bigrams(train.ids[start : start + 4 * CHUNK + 1])
        counts += np.bincount(pairs, minlength=SIZE * SIZE).astype(np.uint32)
    rare = counts[_bigrams(held.ids)] <= RARE * 1e-6 * len(train.ids)
    return Tokens(held.ids, held.ends, held.sizes, held.sources, np.concatenate([[False], rare]))


def _bigrams(ids: UInt16[np.ndarray, " tokens"]) -> Int64[np.ndarray, " pairs"]:
    return ids[:-1].astype(np.int64) * SIZE + ids[1:]


def token_text(corpus: str) -> TokenText:
    """Return the tokens of `library2`, or of a text that data.splits can read, tokenised once and kept in assay's
    cache. Of processes that want the same, one computes and the others wait."""
    return _opened(corpus, text_hash(corpus))


def text_hash(corpus: str) -> str:
    """Return what a text and its vocabulary are known by. That of `library2` is known where it is not here."""
    content = "".join(library2.SPLITS.values()) if corpus == library2.NAME else splits.documents_of(corpus).sha256
    return hashlib.sha256(f"{FORMAT} {content} {shipped().sha256}".encode()).hexdigest()


@lru_cache(maxsize=4)
def _opened(corpus: str, found: str) -> TokenText:
    path = kept(found)
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock")):
        if not path.is_file():
            documents = library2.rows() if corpus == library2.NAME else _rows(corpus)
            with disk_errors(path):
                write_file(path, packed(tokenised(documents, shipped())))
    return unpacked(path)


def kept(found: str) -> Path:
    """Return where the tokens of a text with this hash are, or will be."""
    return cache() / "tokens" / f"{found[:16]}.safetensors"


def _rows(corpus: str) -> dict[Split, Named]:
    found = splits.documents_of(corpus)
    return {split: [("text", document.decode(errors=BYTES)) for document in found.of(split)] for split in PARTS}


def packed(found: TokenText) -> bytes:
    arrays = {f"{split}.{name}": array for split in PARTS for name, array in vars(found.of(split)).items()}
    return save(arrays, {"sources": json.dumps(found.sources)})


def unpacked(path: Path) -> TokenText:
    with safe_open(path, "np") as file:
        parts = {split: Tokens(*(file.get_tensor(f"{split}.{name}") for name in FIELDS)) for split in PARTS}
        return TokenText(**parts, sources=tuple(json.loads(file.metadata()["sources"])))
