"""A text is tokenised once, into a file, and cut into windows of a fixed length: for training, choosing and reporting.

    documents   a b c d ...             an end-of-text token after each, if the tokenizer has one
    blocks      [a b] [c] [d d] [d]      consecutive documents, at least `BLOCK` tokens; only very long ones are cut
    windows     of `context` tokens, inside one block

Whole blocks are held out, so that no document is in two parts, or, of one that is over a twentieth of the text, no
stretch. A held-out block gives at most a quarter of what is wanted, so that several documents are judged by. The file
is memory mapped: a text may be larger than memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from assay.core.errors import UserError
from assay.core.files import write_file
from assay.core.locks import locked
from assay.nn.random import stream

BLOCK = 2**14
"""Least tokens of a block, or a 64th of the text where that is less."""
LONG = 20
"""A document of more than one part in so many of the text is cut into blocks."""
AT_LEAST = 4
"""Blocks that validation, and test, are made of at least."""
PIECE = 2**16
"""Characters that are tokenised as one text, cut at a line's end: tokenizers work on many texts at a time."""
AT_ONCE = 256
"""Most pieces given to the tokenizer in one call."""
HELD_OUT = 10
"""At most one part in so many is validation, and one in so many test."""


@dataclass(frozen=True)
class Windows:
    """Places of windows in a text's tokens, by part."""

    ids: np.ndarray
    context: int
    train: Int[Tensor, " n"]
    validation: Int[Tensor, " m"]
    test: Int[Tensor, " m"]

    def tokens(self, places: Int[Tensor, " n"]) -> Int[Tensor, "n context"]:
        spread = places[:, None] + torch.arange(self.context)
        return torch.from_numpy(self.ids[spread.numpy()].astype(np.int64))

    def training(self, first: int, count: int) -> Int[Tensor, " count"]:
        """The windows number `first` to `first + count` of an endless reading: every pass over the training windows has
        an order of its own, the same for everyone."""
        wanted = torch.arange(first, first + count)
        passes, places = wanted // len(self.train), wanted % len(self.train)
        return torch.cat([self._order(int(n))[places[passes == n]] for n in passes.unique()])

    def _order(self, number: int) -> Int[Tensor, " n"]:
        return self.train[torch.randperm(len(self.train), generator=stream(0, "windows", number))]


@dataclass(frozen=True)
class TokenFile:
    """Tokens on disk, and where each document ends."""

    ids: np.ndarray
    ends: np.ndarray

    def windows(self, context: int, held_out: int) -> Windows:
        """Cut into windows, about `held_out` tokens of them for validation and as many for test."""
        edges = _blocks(self.ends, max(context, min(BLOCK, len(self.ids) // 64)))
        places = [torch.arange(start, max(start, end - context + 1), context) for start, end in pairwise(edges)]
        total = sum(len(found) for found in places)
        wanted = max(1, min(held_out // context, total // HELD_OUT))
        parts: list[list[Tensor]] = [[], [], []]
        for number in torch.randperm(len(places), generator=stream(0, "blocks")).tolist():
            part = next((k for k in (0, 1) if sum(map(len, parts[k])) < wanted), 2)
            parts[part].append(places[number] if part == 2 else places[number][: -(-wanted // AT_LEAST)])
        if total < 10 or not parts[2]:
            raise UserError(f"the text has {len(self.ids)} tokens: too few for 10 windows of {context} and other ones.")
        validation, test, train = (torch.cat(part) for part in parts)
        return Windows(self.ids, context, train, validation, test)


def _blocks(ends: np.ndarray, size: int) -> list[int]:
    """The edges of blocks: at the first document end after `size` tokens, and inside very long documents."""
    edges, long = [0], max(2 * size, int(ends[-1]) // LONG)
    for end in ends.tolist():
        if end - edges[-1] > long:
            edges += range(edges[-1] + size, end - size + 1, size)
        if end - edges[-1] >= size:
            edges.append(end)
    return edges if edges[-1] == ends[-1] else [*edges, int(ends[-1])]


def token_file(documents: Iterator[str], tokenizer: Any, *, limit: int, folder: Path, key: str) -> TokenFile:
    """Tokenise documents until there are `limit` tokens, or read what was kept under this key. Of processes that want
    the same, one computes and the others wait."""
    ids, ends = folder / f"{key}.tokens", folder / f"{key}.ends"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / f"{key}.lock"):
        if not ends.is_file():  # written last, so that the tokens are whole
            _tokenise(documents, tokenizer, limit, ids, ends)
    return _opened(ids, ends, ends.stat().st_mtime_ns)


@lru_cache(maxsize=2)
def _opened(ids: Path, ends: Path, changed: int) -> TokenFile:
    return TokenFile(np.memmap(ids, dtype=np.uint32, mode="r"), np.fromfile(ends, dtype=np.int64))


def _tokenise(documents: Iterator[str], tokenizer: Any, limit: int, ids: Path, ends: Path) -> None:
    closing = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    places, count = list[int](), 0
    temporary = ids.with_name(f".{ids.name}.part")
    with temporary.open("wb") as file:
        pieces = _pieces(documents)
        # No more of a large text is tokenised than is asked for.
        while count < limit and (some := list(islice(pieces, min(AT_ONCE, 1 + 4 * (limit - count) // PIECE)))):
            found = tokenizer([text for text, _ in some], add_special_tokens=False, verbose=False)["input_ids"]
            for own, (_, is_last) in zip(found, some, strict=True):
                row = [*own, *(closing if is_last else ())][: limit - count]
                np.asarray(row, dtype=np.uint32).tofile(file)
                count += len(row)
                if is_last:
                    places.append(count)
    if not count:
        raise UserError("the text is empty.")
    if not places or places[-1] < count:
        places.append(count)
    temporary.replace(ids)
    write_file(ends, np.asarray(places, dtype=np.int64).tobytes())


def _pieces(documents: Iterator[str]) -> Iterator[tuple[str, bool]]:
    """Cut documents at line ends into pieces of about `PIECE` characters; the last of a document is marked."""
    for document in documents:
        start = 0
        while len(document) - start > PIECE:
            end = document.rfind("\n", start + PIECE // 2, start + PIECE) + 1 or start + PIECE
            yield document[start:end], False
            start = end
        yield document[start:], True
