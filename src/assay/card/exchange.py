"""Cards travel: two are compared for CI, one is packed for a pull request, and its reader verifies a packed one.

FOLDER/mixer.py            the file, whole
FOLDER/records.jsonl.xz    every run the card rests on, the field's too
FOLDER/card.json           the card that follows from them
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import stdev
from typing import Any

from assay.card import protocol
from assay.card.battery import Records
from assay.card.judge import Difference, Tested, difference_of, told_of
from assay.core import shipped
from assay.core.errors import UserError
from assay.core.files import disk_errors, read_file, write_file
from assay.core.reading import read_json
from assay.core.run import Record, canonical
from assay.metrics.intervals import holm, paired_difference, paired_p
from assay.mixers import mixers

SPREAD = {"deviation": float, "freedom": float}
LINE = {"scores": {str: float}, "lower_is_better": bool, "comparable": bool, "paired": (SPREAD, ...), **SPREAD}
CARD = {
    "mixer": (str, ...), "method": (str, ...), "questions": {str: LINE}, "protocol": (int, str), "tier": str,
    "text": (str, ...),
}  # fmt: skip
"""What a card has, for it to be compared (core.reading)."""
NAMES = {str: [str]}
SUBMITTED = {
    **CARD, "mixer": str, "seeds": [int], "field": NAMES, "shipped": NAMES, "anchors": {str: {"agree": bool}}
}  # fmt: skip
"""What a card of a mixer has, for its records to be read."""
PAIRED = 5
"""Seeds from which on two cards are compared seed by seed: the differences of fewer say little of how far they vary."""
MIXER, RECORDS, FILE = "mixer.py", "records", "card.json"


MEASURED_THERE = ("speed", "anchors", "shipped")
"""What a card says of the machine that made it: its reader cannot find it in the records."""


def read_card(path: Path, shape: Any = CARD, made_by: str = "assay card NAME --json") -> dict[str, Any]:
    """Read one card from a JSON file, which `assay card --json` writes as a list of one."""
    if path.suffix in (".html", ".svg"):  # what is written beside it: the page and the badge
        beside = path.with_suffix(".json")
        told = (
            f"give '{beside}'" if beside.is_file() else f"there is no '{beside}'; `assay card NAME --json` prints one"
        )
        raise UserError(f"'{path}' is a card to look at, and the JSON beside it is wanted: {told}.")
    found = read_json(path, ([shape], shape), what="a card", remedy=f"`{made_by}` writes one.")
    cards = found if isinstance(found, list) else [found]
    if len(cards) != 1:
        raise UserError(f"'{path}' is not one card: give a file that `assay card NAME --json` printed.")
    return dict(cards[0])


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Compare two cards of one protocol and tier in the questions that both ask, Holm over those: seed by seed where
    they share PAIRED or more. With fewer the deviation is that of the field, the larger of the two, since both may rest
    on the same runs of it, with the fewer degrees of freedom; the same seeds are paired too, where both cards do."""
    for key in ("protocol", "tier", "text"):
        one, two = (card.get(key, "that of the tier") for card in (before, after))
        if one != two:
            raise UserError(f"the cards differ in their {key}, {one} and {two}: they do not compare.")
    shared = [name for name in before["questions"] if name in after["questions"]]
    if not shared:
        raise UserError("the cards share no question: they do not compare.")
    found: dict[str, Tested] = {}
    for name in shared:
        one, two = before["questions"][name], after["questions"][name]
        same = one["scores"].keys() == two["scores"].keys()
        paired = bool(same and one.get("paired") and two.get("paired"))
        sides = [each["paired"] if paired else each for each in (one, two)]
        deviation, freedom = max(each["deviation"] for each in sides), min(each["freedom"] for each in sides)
        if not freedom:
            raise UserError("cards of one seed do not compare: nothing says how far two of one mixer would lie apart.")
        if one["comparable"] and two["comparable"]:  # a rate at an edge or a diverged run says nothing
            found[name] = (
                _paired(one["scores"], two["scores"])
                if same and len(one["scores"]) >= PAIRED
                else difference_of(two["scores"], one["scores"], deviation, freedom, paired=paired)
            )
    adjusted = holm({name: each.p for name, each in found.items()})
    lower = {name: bool(one["lower_is_better"]) for name, one in before["questions"].items()}
    return [told_of(name, each, adjusted[name], lower=lower[name]) for name, each in found.items()]


def _paired(before: Mapping[str, float], after: Mapping[str, float]) -> Tested:
    """Return the mean of the seeds' differences with its interval, the p of a paired t test and their deviation."""
    one, two = (dict(enumerate(scores[seed] for seed in before)) for scores in (before, after))
    deviation = stdev(two[place] - one[place] for place in one)
    return Tested(paired_difference(two, one), paired_p(two, one), deviation, len(one) - 1)


def pack(folder: Path, source: Path, records: Records, card: Mapping[str, Any]) -> None:
    """Write a folder that a stranger can verify."""
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / MIXER, read_file(source))
        write_file(folder / FILE, (json.dumps(card, indent=1) + "\n").encode())
    shipped.write(folder, RECORDS, {record.run.id: record for record in records.values()}.values())


def packed_records(folder: Path) -> dict[str, Record]:
    return {record.run.id: record for record in shipped.records(RECORDS, folder)}


def follows(card: Any, told: Any) -> bool:
    """Return whether two cards are the same as far as they follow from records, numbers to nine digits."""
    if isinstance(card, Mapping) and isinstance(told, Mapping):
        keys = {key for key in (*card, *told) if key not in MEASURED_THERE}
        return all(key in card and key in told and follows(card[key], told[key]) for key in keys)
    if isinstance(card, list | tuple) and isinstance(told, list | tuple):
        return len(card) == len(told) and all(map(follows, card, told))
    if isinstance(card, float) and isinstance(told, int | float):
        return math.isclose(card, told, rel_tol=1e-9, abs_tol=1e-12)
    return bool(card == told)


def check_kind(card: Mapping[str, Any]) -> None:
    """Raise for a card that this assay cannot verify, or that is next to nobody."""
    mixer, tier = card["mixer"], protocol.TIERS.get(card["tier"])
    if tier is None or card["protocol"] != protocol.VERSION:
        told = f"the card is of the tier {card['tier']} and protocol {card['protocol']}"
        raise UserError(f"{told}, and this assay has {', '.join(protocol.TIERS)} and protocol {protocol.VERSION}.")
    if mixer in {word for each in mixers.folder.values() for word in (each.name, *each.aliases)}:
        raise UserError(f"the card is of '{mixer}', which comes with assay: give it another name.")
    if alone := [question.name for question in tier.questions if not card["field"].get(question.name)]:
        raise UserError(f"the card has nobody beside {mixer} in {', '.join(alone)}: its field may not be empty.")


def _digits(curve: Any) -> str:
    return json.dumps(json.loads(canonical(curve), parse_float=lambda word: f"{float(word):.5e}"))


def copied(own: Iterable[Record], others: Iterable[Record]) -> tuple[str, str] | None:
    """Name a run and one of another mixer whose losses are the same to six digits, which no two trainings are."""
    curves = {_digits(each.metrics["curve"]): each.run for each in others if each.metrics.get("curve")}
    pairs = ((each.run, curves.get(_digits(each.metrics["curve"]))) for each in own if each.metrics.get("curve"))
    return next(((f"{one.id} ({one.label})", f"{two.id} ({two.label})") for one, two in pairs if two), None)
