"""Real text in tokens asks for the next token after every token of a window: a language model.

    The| patient|s| were| ...  ->  | patient|s| were| given, ...       every place is scored, in nats and in bits a byte

Documents stand one after another, each with an end-of-text token (assay.data.tokens), and are cut into windows of L + 1
tokens, of which neighbours share one. `corpus` is `library2`, the speeches that come with assay, or a text file or
folder of the user's. Documents are split before anything else; no stretch of 50 tokens stands in two splits. `reading`
goes through the training windows in an order of its own, each once before any returns.

A token is an *AR hit* if it and the token before it stood together earlier in the window (Arora et al. 2023), *rare* if
they do so at most 4.4 times in a million training tokens: what recall can know, and counting cannot.

Floor: `bigram` answers with the token that most often follows the last one in training; `copy` the same, but where the
last two tokens stood together earlier in the window, with what followed them.
Ceiling: not known, as for every real text.

Differs from the paper: rare is a rate in training, there it is a count.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Int, Int32, UInt8, UInt16
from torch import Tensor

from assay.core.errors import UserError
from assay.data import library2, tokens
from assay.data.splits import Split, is_here
from assay.data.text import SPEECHES
from assay.data.vocabulary import END, SIZE
from assay.tasks import tasks
from assay.tasks.base import Batch, Task, TaskShape, Tokens
from assay.tasks.ngrams import last_equal

DIGITS = 16


@dataclass(frozen=True, eq=False)
class Marks:
    """What is known of each answer of a split's windows, (windows, time)."""

    document: Int32[np.ndarray, "windows time"]
    source: UInt8[np.ndarray, "windows time"]
    """Place in the text's `sources`."""
    position: UInt16[np.ndarray, "windows time"]
    """Place in the document; at most 65,535."""
    rare: Bool[np.ndarray, "windows time"]
    distance: UInt16[np.ndarray, "windows time"]
    """Tokens since it stood after the same token in this window; 0 where it did not: no AR hit."""


@dataclass(eq=False)
class Reading:
    """Where training windows begin, in an order of one seed. The place stands on the device: a captured step moves it,
    too."""

    order: Int[Tensor, " windows"]
    place: Int[Tensor, "1"]
    """How many windows were read; a checkpoint keeps it."""

    def starts(self, batch: int) -> Int[Tensor, " batch"]:
        found = self.order[(self.place + torch.arange(batch, device=self.place.device)) % len(self.order)]
        self.place += batch
        return found


@tasks.register("tokens")
@dataclass(frozen=True, kw_only=True)
class TokenWindows(Task):
    """Predict the next token of real text, held-out documents being scored."""

    corpus: str = SPEECHES
    """`library2`, `speeches`, a text file, or a folder of .txt files."""
    input_seq_len: int = 1024
    """Tokens of a window."""
    split: Split = "train"
    """Which documents windows are of; studies score a model on the others by themselves."""
    sha256: str = ""
    """The start of the hash of the text and its vocabulary, found by itself: an edited text is another run. Where it is
    given, the text need not be here until a window is drawn."""

    def __post_init__(self) -> None:
        self.require_positive("input_seq_len")
        if self.sha256 and self.corpus != library2.NAME and not is_here(self.corpus):
            return  # records of it can be read by their ids; whoever draws a window is told what is missing
        try:
            found = tokens.text_hash(self.corpus)[:DIGITS]
        except UserError as error:
            raise UserError(f"task '{self.name}', corpus={self.corpus}: {error}") from None
        self.require(
            self.sha256 in ("", found),
            f"corpus={self.corpus} is another text than the one with sha256={self.sha256}. Leave sha256 out to run "
            "with the text as it is now.",
        )
        object.__setattr__(self, "sha256", found)

    def held_out(self, split: Literal["validation", "test"]) -> "TokenWindows":
        return replace(self, split=split)

    def shape(self) -> TaskShape:
        return TaskShape(inputs=Tokens(SIZE), outputs=Tokens(SIZE), length=self.input_seq_len)

    def sample(self, batch: int, rng: torch.Generator) -> Batch:
        return self.batch(
            self.starts(rng.device)[torch.randint(self.windows, (batch,), generator=rng, device=rng.device)]
        )

    def batch(self, starts: Int[Tensor, " batch"]) -> Batch:
        """Return the windows that begin at these tokens of the split, on their device."""
        ids = _ids(self.corpus, self.sha256, self.split, starts.device)
        places = torch.arange(self.input_seq_len + 1, device=starts.device)
        found = ids[starts[:, None] + places].long()
        return Batch(found[:, :-1], found[:, 1:], places[:-1].expand(len(starts), -1))

    @property
    def windows(self) -> int:
        count = (len(self._text().ids) - 1) // self.input_seq_len
        too_long = f"input_seq_len={self.input_seq_len} is too long for the {self.split} documents of {self.corpus}."
        self.require(count > 0, too_long)
        return count

    def starts(self, device: torch.device | str = "cpu") -> Int[Tensor, " windows"]:
        """Return where the windows of the split begin, one after another: always the same."""
        return torch.arange(self.windows, device=device) * self.input_seq_len

    def long_documents(self) -> Int[Tensor, " documents"]:
        """Return where the documents begin that fill a window: their windows show the loss by position."""
        text = self._text()
        return torch.from_numpy(text.starts[text.ends - text.starts > self.input_seq_len])

    def reading(self, rng: torch.Generator) -> Reading:
        starts = self.starts(rng.device)
        order = torch.randperm(len(starts), generator=rng, device=rng.device)
        return Reading(starts[order], torch.zeros(1, dtype=torch.long, device=rng.device))

    def marks(self, starts: Int[Tensor, " windows"]) -> Marks:
        """Return what is known of each answer of windows of validation or test."""
        text, answers = self._text(), starts.numpy()[:, None] + np.arange(1, self.input_seq_len + 1)
        document = np.searchsorted(text.ends, answers, side="right")
        position = (answers - text.starts[document]).clip(max=2**16 - 1)
        ids = torch.from_numpy(text.ids.astype(np.int64))
        before = last_equal(ids[answers - 1] * SIZE + ids[answers])
        distance = torch.where(before >= 0, torch.arange(self.input_seq_len) - before, 0).numpy()
        return Marks(
            document=document.astype(np.int32),
            source=text.sources[document],
            position=position.astype(np.uint16),
            rare=text.rare[answers],
            distance=distance.astype(np.uint16),
        )

    def oracle(self, batch: Batch) -> None:
        """Return nothing: the best possible prediction of real text is not known."""
        return

    def references(self, batch: Batch) -> dict[str, Tensor]:
        inputs = batch.inputs
        bigram = _followers(self.corpus, self.sha256, inputs.device)[inputs]
        pairs = torch.nn.functional.pad(inputs[:, :-1] * SIZE + inputs[:, 1:], (1, 0), value=-1)
        before = last_equal(pairs)
        copied = inputs.gather(1, (before + 1).clamp(max=inputs.shape[1] - 1))
        return {"bigram": bigram, "copy": torch.where(before >= 0, copied, bigram)}

    def recalled(self, batch: Batch) -> Bool[Tensor, "batch time"]:
        return last_equal(batch.inputs * SIZE + batch.targets) >= 0

    def _text(self) -> tokens.Tokens:
        return _text(self.corpus, self.sha256).of(self.split)


@lru_cache(maxsize=4)
def _text(corpus: str, sha256: str) -> tokens.TokenText:
    if not tokens.text_hash(corpus).startswith(sha256):
        raise UserError(f"the text '{corpus}' was changed while it was used: start the command again.")
    return tokens.token_text(corpus)


# Cached per device: 130 MB are moved once, and a captured CUDA graph cannot copy a table from the host.
@lru_cache(maxsize=8)
def _ids(corpus: str, sha256: str, split: Split, device: torch.device) -> Tensor:
    ids = _text(corpus, sha256).of(split).ids
    return torch.from_numpy(ids.view(np.int16)).to(device)  # few operations know uint16; 8,192 fits both


@lru_cache(maxsize=4)
def _followers(corpus: str, sha256: str, device: torch.device) -> Int[Tensor, " vocabulary"]:
    """Return what most often follows each token in the first training tokens; the end of a text where nothing does."""
    ids = torch.from_numpy(_text(corpus, sha256).train.ids[: 2**22].astype(np.int64))
    pairs, counts = (ids[:-1] * SIZE + ids[1:]).unique(return_counts=True)
    order = counts.argsort(stable=True)  # of one token the most frequent is written last
    found = torch.full((SIZE,), END)
    for token, follower in zip((pairs // SIZE)[order].tolist(), (pairs % SIZE)[order].tolist(), strict=True):
        found[token] = follower
    return found.to(device)
