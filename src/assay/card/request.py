"""A request says what a command wants of a card; mixers and attention methods have a battery each that answers it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from assay.card.judge import Compared
from assay.card.running import ComputeSession
from assay.core.run import Record
from assay.report.section import Value


@dataclass(frozen=True)
class Request:
    """A request has the flags of `assay card`."""

    compute: ComputeSession
    vs: Sequence[str] = ()
    """The field, as words; none: everything whose records ship."""
    own: bool = False
    """Whether the field is computed here, whatever ships."""
    stored: bool = False
    """Whether nothing is computed."""
    budget: float | None = None
    """Seconds."""
    tier: str | None = None
    questions: Sequence[str] | None = None
    """Those of the tier that are asked; None: all."""
    seeds: int | None = None
    """With how many seeds the plug-ins asked for are scored; None: as many as the field."""
    text: str | None = None
    """The text of the question `language`, a file or a folder; None: the tier's own."""
    placing: Mapping[str, Any] = field(default_factory=dict)
    """Options of `Execution` that were given."""


class AnyCard(Protocol):
    """A card is of a mixer or of an attention method."""

    @property
    def name(self) -> str: ...

    @property
    def lines(self) -> Sequence[Compared]:
        """One for each question, or budget."""

    @property
    def scores(self) -> Mapping[str, Value]:
        """By question: a score with its interval, or why there is none."""

    @property
    def form(self) -> str:
        """Return how scores are written, such as `.2f`."""

    @property
    def stem(self) -> str:
        """Return the name of its files, without the ending."""

    @property
    def part(self) -> Sequence[str]:
        """The questions that it has, where it lacks some."""

    @property
    def ranks(self) -> Mapping[str, str]:
        """The places it may have, by question; empty where it is not ranked."""

    @property
    def failed(self) -> Sequence[str]:
        """The questions, or of a method the budgets, that have no number because its runs failed."""

    def text(self, width: int = 118) -> str:
        """Return the screen."""

    def to_json(self) -> dict[str, Any]: ...


class Battery(Protocol):
    """Asks its questions of some plug-ins and of the field beside them."""

    @property
    def notes(self) -> Sequence[str]:
        """What was left out, and why, and what else belongs beside the cards."""

    @property
    def out(self) -> Path: ...

    def plan(self) -> list[str]:
        """Say what would be computed, and about how long it takes here."""

    def outlook(self) -> str:
        """Say about how long it takes here; empty where nothing is left to compute, or where that is told later."""

    def made(self) -> Sequence[AnyCard]:
        """Compute what is missing, and return a card for each of the plug-ins."""

    def page(self, card: Any, files: Mapping[str, str]) -> str:
        """Return the page of one of these cards as HTML; `files` are shown whole."""

    def records(self) -> Sequence[Record]:
        """Return what the cards rest on, once they are made."""

    def ships_as(self) -> str:
        """Return the name of the file in which its records ship."""


def plural(count: int, noun: str) -> str:
    """`1 method`, `2 methods`."""
    return f"{count} {noun}{'s'[: count != 1]}"


def next_to(noun: str, ships: Sequence[str], here: Sequence[str], made: str) -> str:
    """Say who stands beside: `next to 2 mixers whose records ship and gru, trained here too`."""
    told = [f"{plural(len(ships), noun)} whose records ship"] * bool(ships)
    told += [f"{', '.join(here)}, {made} here too"] * bool(here)
    return f"next to {' and '.join(told) or 'nobody'}"
