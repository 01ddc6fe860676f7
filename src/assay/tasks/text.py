"""Real text (a byte-level language model) asks for the next byte after every byte of a window.

    T h e   s t a t e   o f  ->  h, e,  , s, t, a, t, e,  , o, f, ...      every place is scored, in bits per byte

Windows of L + 1 bytes begin anywhere inside a document, all places being equally likely; shorter documents are left
out. `corpus` is the speeches that come with assay (assay.data.text), or a text file or a folder of the user's: the
files are documents, a single one is cut into blocks of 8,192 bytes. Documents are split by their hashes, a tenth to
validate with and a tenth to be tested on (assay.data.splits): models and plain predictors are scored on documents that
training never saw.

A byte is *recalled* if it and the five bytes before it stood together earlier in the window, and stand in at most 5 %
of the blocks of 8,192 bytes of the training documents: a name that returns, not " of the". Perplexity's recall tokens
are the same with bigrams of tokens. The loss of recalled bytes and that of the others are given apart.

Floor: the references, all fitted to the training documents. `unigram`: how frequent each byte is. `ngram`: counts after
up to five bytes, interpolated (assay.tasks.ngrams). `copy`: the same, but where the last five bytes stood earlier in
the window, the byte that followed them last time has as much weight as such copies have earned in this window so far,
(right + 1) / (tried + 2).
Ceiling: not known. Nobody knows the entropy of real text, so there is no oracle.

No paper: a byte-level language model as everybody trains one. Recalled bytes are Arora et al. 2023's recall tokens,
with six bytes in the place of two tokens.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.errors import UserError
from assay.data.splits import BLOCK, Documents, Split, documents_of, is_here
from assay.data.text import SPEECHES
from assay.tasks import tasks
from assay.tasks.base import Batch, Task, TaskShape, Tokens
from assay.tasks.ngrams import BYTES, Model, count, last_equal, packed, widespread

CONTEXT = 5
"""Bytes before a byte, for `recalled`, `ngram` and `copy`."""
RARE = 0.05
"""What more than this share of the training blocks has is known without recalling it."""
COUNTED = 2**24
"""Most bytes of the training documents that are counted."""
DIGITS = 16


@tasks.register("text")
@dataclass(frozen=True, kw_only=True)
class Text(Task):
    """Predict the next byte of real text, held-out documents being scored."""

    bytes_of_text: ClassVar[bool] = True

    corpus: str = SPEECHES
    """`speeches`, a text file, or a folder of .txt files."""
    input_seq_len: int = 256
    """Bytes of a window."""
    split: Split = "train"
    """Which documents windows are drawn from; studies score a model on the others by themselves."""
    sha256: str = ""
    """The start of the hash of a text of one's own, found by itself: an edited text is another run. Where it is given,
    the text need not be here until a window is drawn."""

    def __post_init__(self) -> None:
        self.require_positive("input_seq_len")
        if self.sha256 and not is_here(self.corpus):
            return  # records of it can be read by their ids; whoever draws a window is told what is missing
        try:
            documents = documents_of(self.corpus)
        except UserError as error:
            raise UserError(f"task '{self.name}', corpus={self.corpus}: {error}") from None
        self.require(
            self.input_seq_len < documents.longest,
            f"input_seq_len={self.input_seq_len} is too long for corpus={self.corpus}: every split needs a document of "
            f"more bytes. Use input_seq_len={documents.longest - 1} or less, or another text.",
        )
        found = "" if self.corpus == SPEECHES else documents.sha256[:DIGITS]
        self.require(
            self.sha256 in ("", found),
            f"corpus={self.corpus} is another text than the one with sha256={self.sha256}. Leave sha256 out to run "
            "with the text as it is now.",
        )
        object.__setattr__(self, "sha256", found)

    def held_out(self, split: Literal["validation", "test"]) -> "Text":
        return replace(self, split=split)

    def shape(self) -> TaskShape:
        return TaskShape(inputs=Tokens(BYTES), outputs=Tokens(BYTES), length=self.input_seq_len)

    def sample(self, batch: int, rng: torch.Generator) -> Batch:
        length = self.input_seq_len
        windows = _windows(self.corpus, self.sha256, self.split, length, rng.device)
        drawn = torch.randint(windows.total, (batch,), generator=rng, device=rng.device)
        document = torch.searchsorted(windows.until, drawn, right=True)
        places = torch.arange(length + 1, device=rng.device)
        found = windows.data[(drawn + windows.shift[document])[:, None] + places].long()
        return Batch(inputs=found[:, :-1], targets=found[:, 1:], positions=places[:-1].expand(batch, length))

    def oracle(self, batch: Batch) -> None:
        """Return nothing: the best possible prediction of real text is not known."""
        return

    def references(self, batch: Batch) -> dict[str, Tensor]:
        model = _counts(self.corpus, self.sha256, batch.inputs.device)
        ngram = model.log_probabilities(batch.inputs)
        return {"unigram": model.unigram().expand(ngram.shape), "ngram": ngram, "copy": _copied(batch.inputs, ngram)}

    def recalled(self, batch: Batch) -> Bool[Tensor, "batch time"]:
        whole = torch.cat([batch.inputs[:, :1], batch.targets], dim=1)
        codes = _far_enough(packed(whole, CONTEXT + 1), CONTEXT)
        known = _widespread(self.corpus, self.sha256, whole.device)
        return ((last_equal(codes) >= 0) & ~torch.isin(codes, known))[:, 1:]


def _copied(inputs: Int[Tensor, "batch time"], ngram: Float[Tensor, "batch time 256"]) -> Float[Tensor, "..."]:
    """Mix the n-gram's probabilities with the byte that followed the same context last time."""
    earlier = last_equal(_far_enough(packed(inputs, CONTEXT), CONTEXT - 1))
    tried = earlier >= 0
    guess = inputs.gather(1, (earlier + 1).clamp(max=inputs.shape[1] - 1))
    right = tried[:, :-1] & (guess[:, :-1] == inputs[:, 1:])
    before = [torch.nn.functional.pad(hits.cumsum(1), (1, 0)) for hits in (right, tried[:, :-1])]
    weight = torch.where(tried, (before[0] + 1) / (before[1] + 2), 0.0)[..., None]
    mixed = ngram.exp() * (1 - weight)
    return mixed.scatter_add_(2, guess[..., None], weight).log_()


def _far_enough(codes: Int[Tensor, "batch time"], first: int) -> Int[Tensor, "batch time"]:
    """Give every place before the first whole code one of its own."""
    places = torch.arange(codes.shape[1], device=codes.device)
    return torch.where(places < first, -1 - places, codes)


@dataclass(frozen=True, eq=False)
class Windows:
    """Where windows may begin: drawn number n lies in document i, the first with n < until[i], at n + shift[i]."""

    data: Tensor
    until: Int[Tensor, " documents"]
    shift: Int[Tensor, " documents"]
    total: int


# Cached per device: a captured CUDA graph cannot copy a table from the host.
@lru_cache(maxsize=16)
def _windows(corpus: str, sha256: str, split: Split, length: int, device: torch.device) -> Windows:
    data, starts = _joined([document for document in _documents(corpus, sha256).of(split) if len(document) > length])
    ends = [*starts[1:], len(data)]
    until = list(accumulate(end - start - length for start, end in zip(starts, ends, strict=True)))
    shift = [start - before for start, before in zip(starts, [0, *until[:-1]], strict=True)]
    return Windows(data.to(device), torch.tensor(until).to(device), torch.tensor(shift).to(device), until[-1])


@lru_cache(maxsize=4)
def _counts(corpus: str, sha256: str, device: torch.device) -> Model:
    data, starts = _joined(_counted(_documents(corpus, sha256)))
    return count(data.to(device), starts, CONTEXT)


@lru_cache(maxsize=4)
def _widespread(corpus: str, sha256: str, device: torch.device) -> Int[Tensor, " codes"]:
    data, starts = _joined(_counted(_documents(corpus, sha256)))
    return widespread(data.to(device), starts, size=CONTEXT + 1, block=BLOCK, share=RARE)


def _documents(corpus: str, sha256: str) -> Documents:
    """Read the documents again, where they are not cached; the hash is part of what is cached by."""
    found = documents_of(corpus)
    if not found.sha256.startswith(sha256):
        raise UserError(f"the text '{corpus}' was changed while it was used: start the command again.")
    return found


def _counted(documents: Documents) -> list[bytes]:
    """Return the first training documents, COUNTED bytes at most, at least one."""
    sizes = accumulate(map(len, documents.train))
    kept = sum(size <= COUNTED for size in sizes)
    return list(documents.train[: max(1, kept)])


def _joined(documents: list[bytes]) -> tuple[Tensor, list[int]]:
    starts = [0, *accumulate(map(len, documents))][:-1]
    return torch.frombuffer(bytearray(b"".join(documents)), dtype=torch.uint8), starts
