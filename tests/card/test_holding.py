"""How much a mixer holds, from runs that were scored at several numbers of pairs."""

from dataclasses import replace

from card_toys import TRIED

from assay.card import holding
from assay.card.battery import Answer
from assay.card.question import Question
from assay.core.run import Record, Run

QUESTION = Question("recall", "recalls 16 pairs", "mqar")


def run(seed: int, *accuracies: float) -> Record:
    by_size = {str(4 * 2**place): value for place, value in enumerate(accuracies)}
    return Record(Run("icl", {"task": {"vocab_size": 8192}}, seed, {}), "done", {"by_size": by_size})


def answer(mixer: str, *runs: Record, state: int = 1000) -> Answer:
    scores, sizes = {each.run.seed: 0.5 for each in runs}, {"state_scalars": state}
    return Answer(
        mixer,
        QUESTION,
        scores,
        rate=0.01,
        at_edge=False,
        tried=TRIED,
        window=1,
        sizes=sizes,
        by_sizes=runs,
    )


def test_pairs_and_bits_are_of_the_seeds_that_learned() -> None:
    mine = answer("mine", run(0, 1.0, 1.0, 0.8), run(1, 1.0, 1.0, 0.8), run(2, 0.3, 0.1, 0.0))
    said = holding.told(mine, final=True)
    assert said.startswith(
        "capacity (recall): learned 4 pairs with 2 of 3 seeds; 90 % right up to 11 [11, 11] pairs; 24 ±0 bits"
    )
    exact = holding.bits(answer("exact", run(0, 1.0, 1.0, 1.0)))
    assert exact is not None and exact.mean == 16 * 4, "which of 16 values belongs to each of 16 keys"
    none = answer("none", run(0, 0.3, 0.1, 0.0))
    assert holding.told(none, final=True) == "capacity (recall): learned 4 pairs with 0 of 1 seeds"
    moving = "capacity (recall, not converged: after this training): learned 4 pairs with 0 of 1 seeds"
    assert holding.told(none, final=False) == moving


def test_bits_per_byte_stand_beside_the_fields_and_other_questions_have_none() -> None:
    mine = answer("mine", run(0, 1.0, 1.0, 1.0), run(1, 1.0, 1.0, 1.0), state=160)
    field = [answer("large", run(0, 1.0, 1.0, 1.0), state=1600), answer("none", run(0, 0.1, 0.0, 0.0))]
    assert holding.told(mine, *field, final=True).endswith(
        "64 ±0 bits, 0.1 per byte of state (the field's 0.01 to 0.01)"
    )
    assert holding.told(replace(mine, by_sizes=()), final=True) == ""
