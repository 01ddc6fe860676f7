"""Scores of answers that are known: by hand, from one batch."""

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch.nn.functional import one_hot

from assay.studies.icl.scoring import score
from assay.studies.icl.training import _milestones
from assay.tasks import tasks
from assay.tasks.base import Batch

MQAR = "mqar:vocab_size=32:input_seq_len=16:num_kv_pairs=4:power_a=1:filler=no_keys"


def right_where(kept: torch.Tensor | None = None):
    """A model that knows every answer but those of pairs that are not `kept`."""

    def answer(batches: Sequence[Batch]) -> Iterator[torch.Tensor]:
        for batch in batches:
            known = batch.targets if kept is None else torch.where(kept, batch.targets, torch.zeros_like(batch.targets))
            yield one_hot(known, 32).float()

    return answer


def test_accuracy_exact_match_and_place() -> None:
    kept = torch.tensor([True, True, True, False])
    (found,) = score(right_where(kept), tasks.parse(MQAR), size=50, rngs=[torch.Generator().manual_seed(0)])
    assert found["accuracy"] == 0.75 and found["exact_match"] == 0 and found["by_answer"] == [1, 1, 1, 0]
    (found,) = score(right_where(), tasks.parse(MQAR), size=50, rngs=[torch.Generator().manual_seed(0)])
    assert found["accuracy"] == found["exact_match"] == 1


def test_gaps_are_counted_in_powers_of_two_from_a_key_to_its_question() -> None:
    task, kept = tasks.parse(MQAR), torch.tensor([True, False, False, True])
    (found,) = score(right_where(kept), task, size=40, rngs=[torch.Generator().manual_seed(3)])
    batch = task.sample(40, torch.Generator().manual_seed(3))
    assert batch.positions is not None
    by_hand: dict[str, list[bool]] = {}
    for row in range(40):
        for pair in range(4):
            gap = int(batch.positions[row, pair]) - 2 * pair
            assert batch.inputs[row, 2 * pair] == batch.inputs[row, 2 * pair + gap], "a question repeats its key"
            by_hand.setdefault(str(1 << (gap.bit_length() - 1)), []).append(bool(kept[pair]))
    assert found["by_gap"] == {
        key: pytest.approx(sum(hits) / len(hits))
        for key, hits in sorted(by_hand.items(), key=lambda item: int(item[0]))
    }


def test_a_mixture_is_the_mean_of_its_parts_and_says_each() -> None:
    mixed = tasks.parse(MQAR + ":min_kv_pairs=2")

    def small_only(batches: Sequence[Batch]) -> Iterator[torch.Tensor]:
        for batch in batches:
            yield one_hot(batch.targets if batch.targets.shape[1] == 2 else 0 * batch.targets, 32).float()

    (found,) = score(small_only, mixed, size=20, rngs=[torch.Generator().manual_seed(0)])
    assert found["by_size"] == {"2": 1, "4": 0} and found["accuracy"] == 0.5


def test_a_regression_error_of_not_knowing_anything_is_one() -> None:
    for kind in ("linear", "sparse_linear", "quadratic", "noisy", "noisy:renormalize_noisy=true:scale=2"):
        task = tasks.parse(f"regression:input_seq_len=8:input_dim=6:sparsity=2:regression_type={kind}")
        silent = lambda batches: (torch.zeros(*batch.targets.shape, 1) for batch in batches)  # noqa: E731
        (found,) = score(silent, task, size=4000, rngs=[torch.Generator().manual_seed(0)])
        assert found["mse"] == pytest.approx(1, abs=0.1), kind


def test_a_milestone_is_the_first_validation_that_reaches_it() -> None:
    curve = [{"step": 10, "accuracy": 0.5}, {"step": 20, "accuracy": 0.95}, {"step": 30, "accuracy": 0.91}]
    assert _milestones(curve) == {"steps_to_90": 20, "steps_to_98": None}
