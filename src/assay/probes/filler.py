"""Writes sentences without digits, of a small grammar: what a needle lies in; and makes up words, of syllables.

No model can have learned them by heart, and no two texts share more than words.
"""

from collections.abc import Sequence
from random import Random

WHO = ("baker", "sailor", "teacher", "farmer", "painter", "doctor", "gardener", "tailor", "miller", "weaver")
HOW = ("tall", "old", "quiet", "young", "careful", "tired", "cheerful", "patient", "clever", "busy")
DID = ("painted", "carried", "repaired", "cleaned", "measured", "sold", "borrowed", "moved", "admired", "opened")
WHAT = ("fence", "ladder", "window", "basket", "table", "wagon", "kettle", "blanket", "lantern", "barrel")
WHERE = ("near the river", "behind the church", "in the village", "by the old mill", "across the valley",
         "beside the road", "under the bridge", "at the harbour", "on the hill", "next to the garden")  # fmt: skip
WHEN = ("before breakfast", "after the rain", "in the evening", "at noon", "during the winter", "early in spring",
        "on a windy day", "late at night", "at harvest time", "when the bells rang")  # fmt: skip
THINGS = (
    "amber", "anchor", "apple", "arrow", "badger", "beacon", "bottle", "button", "candle", "canyon", "carpet", "castle",
    "cherry", "cotton", "dragon", "eagle", "engine", "falcon", "feather", "forest", "garlic", "ginger", "glacier",
    "guitar", "hammer", "helmet", "island", "jacket", "jungle", "kitten", "ladle", "lemon", "lizard", "magnet", "maple",
    "marble", "meadow", "mirror", "monkey", "mountain", "nectar", "oyster", "parrot", "pebble", "pepper", "pillow",
    "pirate", "planet", "pocket", "rabbit", "ribbon", "rocket", "saddle", "salmon", "shadow", "silver", "spider",
    "spoon", "sugar", "sunset", "temple", "ticket", "tiger", "tunnel", "turtle", "velvet", "violin", "walnut",
    "whistle", "willow",
)  # fmt: skip
"""Names of things that no sentence of the grammar has: keys of needles, and words to count."""


def sentence(rng: Random) -> str:
    return (
        f"The {rng.choice(HOW)} {rng.choice(WHO)} {rng.choice(DID)} the {rng.choice(WHAT)} "
        f"{rng.choice(WHERE)} {rng.choice(WHEN)}."
    )


def sentences(rng: Random, count: int) -> list[str]:
    return [sentence(rng) for _ in range(count)]


def new_words(rng: Random, count: int, *, known: Sequence[str] = ()) -> list[str]:
    """Return so many different words, such as `balino` and `ketasu`, none of them known."""
    found, taken = list[str](), set(known)
    while len(found) < count:
        word = "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(3))
        if word not in taken:
            taken.add(word)
            found.append(word)
    return found
