"""Every probe keeps these promises: see assay.probes.base."""

from random import Random

from assay.contracts.shared import shared
from assay.core.seeds import derive
from assay.probes.base import Probe, Text, fitted, words_of

SIZES = (1, 40, 150)
TEXTS = 12


def gives_the_same_text_for_the_same_seed(probe: Probe) -> None:
    """Equal seeds give the same text, and others another answer; a longer text asks the same question."""
    first = [_text(probe, number, 40) for number in range(TEXTS)]
    assert first == [_text(probe, number, 40) for number in range(TEXTS)], "equal seeds gave two texts"
    answers = {text.answer for text in first}
    assert len(answers) > TEXTS // 2, f"{TEXTS} seeds gave {len(answers)} different answers"
    for number, text in enumerate(first):
        longer = _text(probe, number, 60)
        same = (longer.question, longer.answer) == (text.question, text.answer)
        assert same, f"of 60 sentences it asks{longer.question}, of 40{text.question}"


def has_its_answer_in_the_context(probe: Probe) -> None:
    """Every word of the answer stands in the context, and none in the question."""
    for text in _texts(probe):
        for word in words_of(text.answer):
            assert word in words_of(text.context), f"'{word}' of the answer is not in the context"
            assert word not in words_of(text.question), f"'{word}' of the answer is in the question"


def is_answered_by_the_context_alone(probe: Probe) -> None:
    """Whoever reads the context and the question finds the answer."""
    for text in _texts(probe):
        found = probe.solve(text.context, text.question)
        assert found == text.answer, f"a reader finds '{found}', the answer is '{text.answer}'"


def has_its_answer_nowhere_else(probe: Probe) -> None:
    """Without what answers it, the context has no word of the answer, and a reader does not find it."""
    for text in _texts(probe):
        left = set(words_of(text.answer)) & set(words_of(text.floor))
        assert not left, f"the floor still has {', '.join(sorted(left))} of the answer"
        assert probe.solve(text.floor, text.question) != text.answer, "a reader of the floor finds the answer"


def lies_at_the_depth_that_is_asked_for(probe: Probe) -> None:
    """What is asked for stands where the depth says, within a twentieth of the context, if it can be placed."""
    if not probe.placed:
        return
    for depth in (0.0, 0.25, 0.5, 1.0):
        text = _text(probe, 0, 150, depth)
        assert text.context.count(text.needle) == 1, "its needle does not stand once in the context"
        real = text.context.index(text.needle) / (len(text.context) - len(text.needle))
        assert abs(real - depth) < 0.05, f"asked for at {depth:g} of the context, it is at {real:.2f}"


def fills_a_window(probe: Probe) -> None:
    """The text has exactly as many tokens as a window, the answer last, with and without what answers it."""
    for floor in (False, True):
        seed = derive(0, "contract")
        found = fitted(probe, lambda text: list(text.encode()), length=2000, depth=0.5, seed=seed, floor=floor)
        assert len(found.tokens) == 2000, f"{len(found.tokens)} tokens for a window of 2000"
        assert bytes(found.tokens[-found.answer :]).decode() == found.text.answer, "the last tokens are not the answer"
        end = f"{found.text.floor if floor else found.text.context}{found.text.question}{found.text.answer}"
        assert bytes(found.tokens).decode().endswith(end), "the text was cut"


def _text(probe: Probe, number: int, size: int, depth: float = 0.5) -> Text:
    return probe.write(Random(derive(0, "contract", number)), size, depth)


@shared
def _texts(probe: Probe) -> list[Text]:
    return [_text(probe, number, size, depth) for size in SIZES for depth in (0.0, 1.0) for number in range(TEXTS)]
