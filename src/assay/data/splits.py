"""A text is split by whole documents into bytes to train on, to validate with and to be tested on."""

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

from assay.core.errors import UserError
from assay.data import text

Split = Literal["train", "validation", "test"]
BLOCK = 8192
"""Bytes of a document, where a text is one document alone."""
HELD_OUT = 10
"""One document in so many is tested on, and as many are validated with; at least one."""
LEAST = 3
"""Fewest documents of a text: one to train on, one to validate with, one to be tested on."""


@dataclass(frozen=True)
class Documents:
    """The documents of a text, each once, split."""

    sha256: str
    """Hash of all of them, in any order."""
    train: tuple[bytes, ...]
    validation: tuple[bytes, ...]
    test: tuple[bytes, ...]

    def of(self, split: Split) -> tuple[bytes, ...]:
        return getattr(self, split)

    @cached_property
    def longest(self) -> int:
        """The most bytes that a window inside a document can have in every split."""
        return min(max(map(len, part)) for part in (self.train, self.validation, self.test))


def documents_of(name: str) -> Documents:
    """Return the documents of the speeches that come with assay, or of a text that assay perplexity can read: a file, a
    folder, `pydoc`."""
    if not text.is_known(name):
        shipped = f"or '{text.SPEECHES}', which comes with assay"
        raise UserError(f"no text '{name}' here. Give a text file, a folder of .txt files, {shipped}.")
    return _split_text(name, text.load_corpus(name).sha256)


def is_here(name: str) -> bool:
    """Whether a text can be read on this machine, without the hub."""
    return name in text.CARRIED or text.file_of(name) is not None


@lru_cache(maxsize=4)
def _split_text(name: str, sha256: str) -> Documents:
    """Return the split of a text as it is now; its hash tells, where thousands of documents would be compared."""
    return split(text.load_corpus(name).documents, name)


def split(documents: tuple[str, ...], name: str) -> Documents:
    """Split by the documents' hashes, so that their order and their file names do not matter. Of equal documents one is
    kept: no split has what another has."""
    found = [document.encode() for document in documents]
    if len(found) == 1:
        found = [found[0][start : start + BLOCK] for start in range(0, len(found[0]), BLOCK)]
    by_hash = {hashlib.sha256(document).hexdigest(): document for document in found}
    if len(by_hash) < LEAST:
        raise UserError(
            f"the text '{name}' has {len(by_hash)} different documents, and {LEAST} are needed, to train on, to "
            f"validate with and to be tested on. Give {LEAST} files, or one of {2 * BLOCK + 1:,} bytes or more."
        )
    held, shuffled = max(1, len(by_hash) // HELD_OUT), sorted(by_hash)
    parts = shuffled[2 * held :], shuffled[held : 2 * held], shuffled[:held]
    train, validation, test = (tuple(by_hash[each] for each in part) for part in parts)
    return Documents(hashlib.sha256("".join(shuffled).encode()).hexdigest(), train, validation, test)
