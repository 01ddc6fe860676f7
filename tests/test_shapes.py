"""Shape annotations are enforced in tests: a tensor of another shape raises in each of these packages."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from beartype import beartype
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from typechecking import remembering


def mixer() -> Any:
    from assay.mixers import mixers

    return mixers["sparse_attention"]().build(8, 4)(torch.zeros(4, 8))


def state_mixer() -> Any:
    from assay.state_mixers import state_mixers

    return state_mixers["none"]().build(8)(torch.zeros(2, 8, dtype=torch.long))


def model() -> Any:
    from assay.models.taking_over import interface

    return interface(torch.nn.Identity(), *(torch.zeros(2, 3) for _ in range(3)), None)


def vector_data() -> Any:
    from assay.vectors.base import Part

    return Part(torch.zeros(3))


def study() -> Any:
    from assay.studies.perplexity.scoring import Tally

    return Tally(1, 4).add(None, torch.zeros(2, 4), torch.zeros(4))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [mixer, state_mixer, model, vector_data, study])
def test_a_tensor_of_another_shape_is_refused(wrong: Callable[[], Any]) -> None:
    with pytest.raises(TypeCheckError):
        wrong()


def rows(of: Float[Tensor, "batch d"], like: Float[Tensor, "batch d"], keep: bool = True) -> Float[Tensor, " batch"]:
    return of[:, 0] if keep else of


def named(of: Float[Tensor, " d"], how: Literal["sum", "mean"]) -> Float[Tensor, ""]:
    return getattr(of, how)()


def counted(many: list[Float[Tensor, " d"]]) -> int:
    return len(many)


class TestACallLikeOneThatPassedIsNotCheckedAgain:
    """tests/typechecking.py: what is remembered hides no fault."""

    def test_a_form_is_checked_once(self) -> None:
        checks = []

        def counting(function: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *args, **kwargs: checks.append(function) or function(*args, **kwargs)

        checked = remembering(rows, typechecker=counting)
        for _ in range(3):
            checked(torch.zeros(2, 3), torch.ones(2, 3))
        once = len(checks)
        checked(torch.zeros(3, 3), torch.ones(3, 3))
        assert once > 0 and len(checks) == 2 * once

    def test_arguments_of_another_shape_type_or_number_are_refused(self) -> None:
        checked = remembering(rows, typechecker=beartype)
        one = torch.zeros(2, 3)
        for _ in range(2):
            assert checked(one, one).shape == (2,)
            for wrong in (torch.zeros(3, 3), torch.zeros(2), torch.zeros(2, 3, dtype=torch.long), "text"):
                with pytest.raises(TypeCheckError):
                    checked(one, wrong)
            with pytest.raises(TypeCheckError):
                checked(one, like=torch.zeros(2, 4))

    def test_a_result_of_another_shape_is_refused(self) -> None:
        checked = remembering(rows, typechecker=beartype)
        one = torch.zeros(2, 3)
        for _ in range(2):
            checked(one, one, True)
            with pytest.raises(TypeCheckError, match="return value"):
                checked(one, one, False)

    def test_a_word_that_is_none_of_those_allowed_is_refused(self) -> None:
        checked = remembering(named, typechecker=beartype)
        checked(torch.zeros(2), "sum")
        with pytest.raises(TypeCheckError):
            checked(torch.zeros(2), "std")

    def test_items_are_looked_at(self) -> None:
        checked = remembering(counted, typechecker=beartype)
        assert checked([torch.zeros(2)]) == 1
        with pytest.raises(TypeCheckError):
            checked([torch.zeros(2, 2)])

    def test_the_body_runs_once_for_each_call(self) -> None:
        calls = []

        def body(of: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
            calls.append(of)
            return of if len(calls) % 2 else of[None]

        checked = remembering(body, typechecker=beartype)
        for count in range(1, 6):
            checked(torch.zeros(2))
            assert len(calls) == count
