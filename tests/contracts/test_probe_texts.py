"""Every probe keeps every promise, and the promises notice probes that do not."""

from dataclasses import dataclass, replace
from random import Random

import pytest

from assay.contracts import probes as contract
from assay.core.errors import UserError
from assay.probes import probes
from assay.probes.base import Draws, Probe, Text, among, chosen, fitted, number
from promised import broken

VARIANTS = (
    "passkey:digits=9",
    "multi_key:keys=12",
    "multi_value:values=5",
    "variable_tracking:hops=4",
    "common_words:common=6",
    "frequent_words:asked=2",
)


@pytest.mark.parametrize("word", [*probes.names(), *VARIANTS])
def test_probe_keeps_every_promise(word):
    assert not broken("probes", probes.parse(word))


@dataclass(frozen=True, kw_only=True)
class Faulty(Probe):
    """A number in filler, with one fault."""

    fault: str = ""

    @property
    def placed(self):
        return True

    def write(self, rng: Random, size: int, depth: float) -> Text:
        draws = Draws(rng)
        value = "7777" if self.fault == "always the same" else number(draws.asked, 4)
        if self.fault == "another question":
            value = str(int(value) + size)
        needle = f"It is {value}."
        if self.fault == "shallow":
            depth = 0.0
        context = among(["Rain."] * size, [needle], draws.places, asked=0, depth=depth)
        if self.fault == "missing":
            context = context.replace(value, "lost")
        floor = context if self.fault == "in the floor" else " ".join(["Rain."] * size)
        question = f" Is it {value}? It is" if self.fault == "in the question" else " What is it? It is"
        return Text(context, question, f" {value}", floor, needle)

    def solve(self, context, question):
        words = context.split()
        if "is" not in words or self.fault == "unanswered":
            return None
        return f" {words[words.index('is') + 1].rstrip('.')}"


@pytest.mark.parametrize(
    ("fault", "promise", "seen"),
    [
        ("always the same", contract.gives_the_same_text_for_the_same_seed, "gave 1 different"),
        ("another question", contract.gives_the_same_text_for_the_same_seed, "of 60 sentences it asks"),
        ("missing", contract.has_its_answer_in_the_context, "is not in the context"),
        ("in the question", contract.has_its_answer_in_the_context, "is in the question"),
        ("unanswered", contract.is_answered_by_the_context_alone, "a reader finds 'None'"),
        ("in the floor", contract.has_its_answer_nowhere_else, "the floor still has"),
        ("shallow", contract.lies_at_the_depth_that_is_asked_for, r"at 0\.25 of the context, it is at 0\.00"),
    ],
)
def test_a_broken_promise_is_noticed(fault, promise, seen):
    promise(Faulty())
    with pytest.raises(AssertionError, match=seen):
        promise(replace(Faulty(), fault=fault))


def test_a_window_too_short_for_a_probe_says_how_long_it_has_to_be():
    with pytest.raises(UserError, match=r"passkey needs a context of at least \d+ tokens, not 40"):
        fitted(probes.parse("passkey"), lambda text: list(text.encode()), length=40, depth=0.5, seed=0)


def test_all_stands_for_every_probe_and_none_is_asked_twice():
    assert [probe.name for probe in chosen(["needle", "all", "needle"])] == [
        "needle", *(name for name in probes.names() if name != "needle"),
    ]  # fmt: skip
    with pytest.raises(UserError, match="no probe named 'needel'"):
        chosen(["needel"])
