"""Names beside the points of a plot stand where they cover least: right or left of their point, and a little up or
down; a name that stands off its point is led to it by a line. Everything is in shares of the plot's width and height,
from its lower left."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

LETTER, LINE, GAP, LED = 0.0195, 0.062, 0.022, 0.034
"""The width of a bold letter, the height of a name, what lies between a point and its name, and how much more where a
line leads to it, in a plot of the usual size."""
ROUNDS = 4
"""How often each name chooses its place."""
PIECES = 6
"""In so many boxes a line to a name is cut, to see what it goes through."""
Side = Literal["left", "right"]
"""The end of a name that is at its point."""
SIDES: tuple[Side, ...] = ("left", "right")
STEPS, FAR = range(-12, 13), 0.4
"""How far up or down a name may stand, in half lines, and what each of them counts: to cover a line counts 1."""
DOT = 0.01, 0.018
"""How far a point reaches to either side, and up and down."""


@dataclass(frozen=True)
class Box:
    """A rectangle, or a line or a point."""

    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: "Box") -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.bottom < other.top and other.bottom < self.top


@dataclass(frozen=True)
class Place:
    """Where a name stands: which end of it is at the point, its height, how far that is off, and what it covers, and
    what the line to its point does, piece by piece."""

    align: Side
    y: float
    steps: int
    box: Box
    leader: tuple[Box, ...] = ()

    @property
    def far(self) -> bool:
        """Whether it needs a line to its point."""
        return bool(self.leader)

    def crosses(self, other: "Place") -> bool:
        """Whether the line of one of the two goes through the name of the other."""
        pairs = ((self.leader, other.box), (other.leader, self.box))
        return any(piece.meets(box) for line, box in pairs for piece in line)


def dot(x: float, y: float) -> Box:
    return Box(x - DOT[0], y - DOT[1], x + DOT[0], y + DOT[1])


def led(off: float) -> bool:
    """Whether a name so far up or down is no longer beside its point, which it would leave to guess."""
    return abs(off) > 0.6 * LINE


def length_of(name: str) -> float:
    return LETTER * len(name)


def places(
    named: Sequence[tuple[str, float, float]], points: Sequence[Box], thin: Sequence[Box], kept: Sequence[Box]
) -> list[Place]:
    """Place each name beside its x and y: on no other name and nothing of what is to be `kept` free, such as a
    reference line, if that can be, on few points, and then on few thin lines. The first names choose first; then each
    chooses again, as it knows where the later ones stand."""

    def cost(place: Place, others: Sequence[Place]) -> float:
        box = place.box
        outside = box.left < -GAP or box.bottom < 0 or box.right > 1 or box.top > 1
        taken = sum(map(box.meets, kept)) + sum(box.meets(other.box) for other in others)
        covered = 10 * taken + 3 * sum(map(box.meets, points)) + sum(map(box.meets, thin))
        return 100 * outside + covered + 5 * sum(map(place.crosses, others)) + FAR * abs(place.steps)

    found: dict[int, Place] = {}
    for _ in range(ROUNDS):
        for number, (name, x, y) in enumerate(named):
            others = [place for other, place in found.items() if other != number]
            tried = [_place(name, x, y, steps, side) for steps in STEPS for side in SIDES]
            found[number] = min(tried, key=lambda place: cost(place, others))
    return list(found.values())


def _place(name: str, x: float, y: float, steps: int, align: Side) -> Place:
    off = steps * LINE / 2
    further = LED if led(off) else 0.0
    start = x + further + GAP / 2 if align == "left" else x - further - GAP - length_of(name)
    end, middle = start + length_of(name) + GAP / 2, y + off
    box = Box(start, middle - LINE / 2, end, middle + LINE / 2)
    return Place(align, middle, steps, box, _leader(x, y, start if align == "left" else end, middle) if further else ())


def _leader(x: float, y: float, end: float, height: float) -> tuple[Box, ...]:
    """Return a line as boxes along it, thin ones together."""
    xs, ys = (
        [start + (stop - start) * n / PIECES for n in range(PIECES + 1)] for start, stop in ((x, end), (y, height))
    )
    corners = [(sorted(pair), sorted(other)) for pair, other in zip(pairwise(xs), pairwise(ys), strict=True)]
    return tuple(Box(left, bottom, right, top) for (left, right), (bottom, top) in corners)
