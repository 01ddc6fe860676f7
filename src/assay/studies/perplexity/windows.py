"""Chooses which tokens are scored, and from which context.

A document's tokens are cut at a multiple of the longest context; that span is scored at every context length, in
windows that do not overlap, each behind a BOS token of its own. So every token of a span, the first included, is scored
once, and the curves over context lengths compare the same tokens:

    span of 8, longest context 4     context 4:  ^ a b c -> a b c d    ^ e f g -> e f g h
                                     context 2:  ^ a -> a b    ^ c -> c d    ^ e -> e f    ^ g -> g h

A span is a cluster of the bootstrap: an article, or a block of at least 2,048 tokens where there are few documents.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from assay.core.convert import nearest
from assay.core.errors import UserError
from assay.data.text import Corpus, named
from assay.metrics.bootstrap import LEAST
from assay.nn.random import stream

BLOCK = 2048
"""Tokens per cluster, where documents are too few to be clusters."""
RARE = 0.05
"""A bigram is rare if at most this share of the other clusters has it."""
COPIED, COPIES = 16, 8
"""Tokens of the segment that the copy probe repeats, and sequences per distance."""


@dataclass(frozen=True, eq=False)
class Span:
    """Tokens that are scored together, and how much text they are."""

    document: int
    tokens: Int[Tensor, " time"]
    chars: int
    bytes: int
    words: int
    scored: Bool[Tensor, " time"] | None = None
    """The tokens to score; None: every token."""
    distance: int = 0
    """Tokens between the segment and its copy, in the copy probe."""
    answers: bool = False
    """Whether what is scored is the answer of a probe."""
    decode: bool = False
    """Whether the answer is decoded too."""
    depth: float | None = None
    """Depth at which a probe's needle was asked for; None where there is none."""


@dataclass(frozen=True)
class Spans:
    """The spans of a corpus, and how many documents were too short for one."""

    found: tuple[Span, ...]
    too_short: int = 0
    prefix: int | None = None
    """Tokens before the question of every probe: what the prefix protocol cuts down; None: half of the window."""

    @property
    def documents(self) -> int:
        return len({span.document for span in self.found})


@dataclass(frozen=True, eq=False)
class Window:
    span: int
    inputs: Int[Tensor, " time"]
    targets: Int[Tensor, " time"]
    scored: Bool[Tensor, " time"]
    hits: Bool[Tensor, " time"]
    """Associative recall: the last token of a bigram that this window has had before and that is rare elsewhere."""
    answers: bool = False
    """Whether the scored tokens are the answer of a probe, of which right ones are counted."""
    decode: bool = False
    """Whether the answer is also decoded with caches from which keys are really evicted."""


def read_limits(words: Sequence[str], datasets: Sequence[str]) -> dict[str, int | None]:
    """Read the limit of documents per text: `["20", "c4=1000"]`, ("c4", "pydoc") -> {"c4": 1000, "pydoc": 20}."""
    found: dict[str, int | None] = {}  # a number without a name is that of all other texts
    for word in words:
        name, equals, number = word.rpartition("=")
        name = name and named(name)
        if not number.isdecimal() or int(number) < 1:
            raise UserError(f"--max-samples '{word}': write a number of at least 1, or by name: c4=1000 pg19=100.")
        if equals and name not in datasets:
            raise UserError(f"--max-samples {word}: '{name}' is none of the texts.{nearest(name, datasets)}")
        if name in found:
            raise UserError(f"--max-samples names {name or 'a number for all texts'} twice: '{word}'.")
        found[name] = int(number)
    return dict.fromkeys(datasets, found.pop("", None)) | found


def spans_of(
    corpus: Corpus, tokenizer: Any, *, longest: int, max_samples: int | None = None, max_windows: int = 0
) -> Spans:
    """Cut documents that fill the longest context at least once into spans."""
    found, too_short = list[Span](), 0
    for number, text in enumerate(corpus.documents):
        if max_samples is not None and len(found) >= max_samples:
            break
        span = _span(number, text, tokenizer, longest, max_windows)
        too_short += span is None
        found += [span] if span is not None else []
    if not found:
        raise UserError(
            f"no document of '{corpus.name}' has {longest} tokens ({len(corpus.documents)} documents). Choose shorter "
            "--context-lengths, or another text."
        )
    size = -(-BLOCK // longest) * longest
    blocks = [block for span in found for block in _blocks(span, size)]
    return Spans(tuple(found if len(found) >= LEAST else blocks), too_short)


def _span(number: int, text: str, tokenizer: Any, longest: int, max_windows: int) -> Span | None:
    coded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=tokenizer.is_fast, verbose=False)
    tokens = coded["input_ids"]
    windows = len(tokens) // longest
    length = min(windows, max_windows or windows) * longest
    if not length:
        return None
    covered = text[: coded["offset_mapping"][length - 1][1]] if tokenizer.is_fast else tokenizer.decode(tokens[:length])
    sizes = len(covered), len(covered.encode()), len(covered.split())
    return Span(number, torch.tensor(tokens[:length]), *sizes)


def _blocks(span: Span, size: int) -> Iterator[Span]:
    """Split a long span; its characters, bytes and words are divided in proportion to tokens."""
    for part in span.tokens.split(size):
        share = len(part) / len(span.tokens)
        sizes = {key: round(getattr(span, key) * share) for key in ("chars", "bytes", "words")}
        yield replace(span, tokens=part, **sizes)


def bos_of(tokenizer: Any) -> int:
    """The token in front of every window."""
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    raise UserError("the tokenizer has neither a BOS nor an EOS token to put in front of a window.")


def windows_of(
    spans: Sequence[Span], *, context: int, bos: int, only: Sequence[int] | None = None, skip: int = 0
) -> Iterator[Window]:
    """Cut each span, or some of them, into windows of at most `context` tokens; the first `skip` of a window (a dense
    prefix) are not scored."""
    rare = RareBigrams(spans)
    for number in range(len(spans)) if only is None else only:
        span = spans[number]
        everything = torch.ones(len(span.tokens), dtype=torch.bool)
        scored = (everything if span.scored is None else span.scored).split(context)
        for targets, mask in zip(span.tokens.split(context), scored, strict=True):
            inputs = torch.cat([torch.tensor([bos]), targets[:-1]])
            late = torch.arange(len(targets)) >= skip
            yield Window(number, inputs, targets, mask & late, rare.repeated(targets), span.answers, span.decode)


class RareBigrams:
    """Counts the clusters that have each bigram."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.counts: Counter[tuple[int, int]] = Counter()
        for span in spans:
            self.counts.update(set(bigrams(span.tokens)))
        self.most = 1 + int(RARE * (len(spans) - 1))

    def repeated(self, tokens: Int[Tensor, " time"]) -> Bool[Tensor, " time"]:
        """Mark the ends of rare bigrams that occurred earlier in these tokens."""
        seen, hits = set[tuple[int, int]](), [False]
        for pair in bigrams(tokens):
            hits.append(pair in seen and self.counts[pair] <= self.most)
            seen.add(pair)
        return torch.tensor(hits)


def bigrams(tokens: Int[Tensor, " time"]) -> list[tuple[int, int]]:
    return list(pairwise(tokens.tolist()))


def check_copy(context: int) -> None:
    """Raise for a context without room for the segment, its copy and something between them."""
    if context < 3 * COPIED:
        raise UserError(f"the copy probe needs a context of at least {3 * COPIED} tokens, not {context}.")


def copy_spans(tokenizer: Any, *, context: int, seed: int) -> Spans:
    """Draw random words A, others, and A again at the end, at several distances: no text that a model can have seen.
    Only the second A is scored, without its first token, which is unpredictable."""
    check_copy(context)
    words, rng = torch.tensor(whole_words(tokenizer)), stream(seed, "copy", context)
    room = context - 2 * COPIED
    distances = [d for d in (2**power for power in range(4, 20)) if d < room] + [room]
    found = list[Span]()
    for distance in distances:
        for _ in range(COPIES):
            tokens = words[torch.randint(len(words), (context,), generator=rng)]
            tokens[-COPIED:] = tokens[context - 2 * COPIED - distance : context - COPIED - distance]
            scored = torch.zeros(context, dtype=torch.bool)
            scored[-COPIED + 1 :] = True
            found.append(Span(len(found), tokens, 0, 0, 0, scored, distance))
    return Spans(tuple(found))


@cache
def whole_words(tokenizer: Any) -> list[int]:
    """Tokens that are a space and a word of letters."""
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    marked = [(token, piece[1:]) for token, piece in enumerate(pieces) if piece[:1] in ("Ġ", "▁")]
    found = [token for token, word in marked if len(word) > 2 and word.isascii() and word.isalpha()]
    if len(found) < 2 * COPIED:
        raise UserError("the copy probe needs a tokenizer with tokens for whole words.")
    return found
