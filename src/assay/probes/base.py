"""A probe is a text with a question at its end, whose one exact answer stands in the text.

    The tall baker painted the fence. The number of amber is 5172. The old sailor ... The number of amber is -> 5172
    '------------------------ context ------------------------------------------' '----- question ----'  answer

`fitted` makes the text as long as a context window of a tokenizer; `floor` is the same text without what answers the
question, so that its likelihood shows what can be guessed.
"""

import re
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from random import Random
from typing import Any, ClassVar

from assay.core.errors import UserError
from assay.core.plugin import Registry, Sized
from assay.probes import probes
from assay.probes.filler import sentence

DIGITS = (3, 18)
"""Fewer digits would make two values of one text equal, or a guess easy; more are no number."""
Encode = Callable[[str], list[int]]
"""The tokens of a text."""


@dataclass(frozen=True)
class Text:
    """A context, a question about it, and the answer. The whole is `context + question + answer`: the question and the
    answer begin with the space before them."""

    context: str
    question: str
    answer: str
    floor: str
    """The context without what answers the question."""
    needle: str = ""
    """The sentence that answers it, where there is one."""


@dataclass(frozen=True, kw_only=True)
class Probe(Sized):
    """Base of probes/<name>.py. Its promises are in assay.contracts.probes."""

    registry: ClassVar[Registry] = probes
    placed: ClassVar[bool] = False
    """Whether what is asked for lies at a depth that can be chosen; otherwise it is spread over the context."""

    limits: ClassVar[Mapping[str, tuple[int, int]]] = {}
    """The least and the most that options of its own may be."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, (least, most) in {"digits": DIGITS, **self.limits}.items():
            if not least <= (value := getattr(self, option, least)) <= most:
                fits = f"from {least} to {most}" if least > 1 else f"at most {most}"
                raise UserError(f"probe '{self.name}': {option}={value} is {fits}.")

    def write(self, rng: Random, size: int, depth: float) -> Text:
        """Write a text of about `size` sentences (or words, where it is a list of words), what is asked for at `depth`
        of it: 0 is its start, 1 its end."""
        raise NotImplementedError(f"{type(self).__name__}.write")

    def solve(self, context: str, question: str) -> str | None:
        """Return the answer as a reader of the context gives it, or None if it is not there."""
        raise NotImplementedError(f"{type(self).__name__}.solve")


class Draws:
    """The generators of one text: what is asked for is drawn apart from what surrounds it, so that a longer text has
    the same question."""

    def __init__(self, rng: Random) -> None:
        self.asked, self.around, self.places = (Random(rng.getrandbits(63)) for _ in range(3))


def among(
    filler: Sequence[str], pieces: Sequence[str], rng: Random, *, asked: int | None = None, depth: float = 0.0
) -> str:
    """Put the pieces between sentences, in their order and at random places; piece number `asked` at a depth."""
    places = sorted(rng.randint(0, len(filler)) for _ in pieces)
    order = list(zip(places, pieces, strict=True))
    if asked is not None:
        order = [(rng.randint(0, len(filler)), piece) for number, piece in enumerate(pieces) if number != asked]
        order.append((round(depth * len(filler)), pieces[asked]))
        order.sort(key=lambda pair: pair[0])  # stable: the asked one comes last among those at one place
    words = list[str]()
    for number in range(len(filler) + 1):
        words += [piece for place, piece in order if place == number]
        words += [filler[number]] if number < len(filler) else []
    return " ".join(words)


def distinct(draw: Callable[[], str], count: int) -> list[str]:
    """Draw until there are so many different ones."""
    found = dict[str, None]()
    while len(found) < count:
        found[draw()] = None
    return list(found)


def number(rng: Random, digits: int) -> str:
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


@dataclass(frozen=True)
class Fitted:
    """The tokens of a whole text, exactly as many as were asked for; the last `answer` of them are the answer."""

    tokens: list[int]
    answer: int
    tail: int
    """Tokens of the question and the answer."""
    text: Text
    place: float | None
    """How far into the tokens the needle begins, from 0 to 1; None where there is no single one."""


def fitted(probe: Probe, encode: Encode, *, length: int, depth: float, seed: int, floor: bool = False) -> Fitted:
    """Return a text of exactly `length` tokens: the longest that fits, behind the end of a sentence that fills up the
    rest."""

    def written(size: int) -> Text:
        return probe.write(Random(seed), size, depth)

    def whole(text: Text) -> str:
        return f"{text.floor if floor else text.context}{text.question}"

    def fits(size: int) -> bool:
        text = written(size)
        return len(encode(whole(text) + text.answer)) <= length

    size = _largest(fits)
    if size is None:
        text = written(1)
        least = len(encode(whole(text) + text.answer))
        raise UserError(f"the probe {probe.label} needs a context of at least {least} tokens, not {length}.")
    text = written(size)
    tokens, asked = encode(whole(text) + text.answer), encode(whole(text))
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(tokens, asked, strict=False))))
    before, gap = len(encode(text.floor if floor else text.context)), length - len(tokens)
    place = None
    if text.needle and not floor:
        place = (gap + len(encode(text.context[: text.context.index(text.needle)]))) / length
    return Fitted(_ends(encode, gap) + tokens, len(tokens) - shared, len(tokens) - before, text, place)


def _largest(fits: Callable[[int], bool]) -> int | None:
    """Return the largest size that fits, if 1 does; sizes and lengths rise together."""
    if not fits(1):
        return None
    high = 2
    while fits(high):
        high *= 2
    return bisect(range(high), False, lo=high // 2, key=lambda size: not fits(size)) - 1


def _ends(encode: Encode, count: int) -> list[int]:
    """Return the last tokens of sentences without a digit, to fill up a gap at the start of a window."""
    rng, found = Random(0), list[int]()
    while len(found) < count:
        found = encode(sentence(rng)) + found
    return found[len(found) - count :]


def words_of(text: str) -> Iterator[str]:
    return (found[0] for found in re.finditer(r"\w+", text))


def chosen(words: Sequence[str]) -> tuple[Probe, ...]:
    """Return the probes of the words on a command line, each once; `all` are those that come with assay, and any of
    plug-in files."""
    every: list[Any] = []
    for word in words:
        every += [probes.parse(name) for name in probes.names()] if word == "all" else [probes.parse(word)]
    return tuple(dict.fromkeys(every))
