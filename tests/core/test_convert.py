"""Text becomes the type of a field."""

from typing import Literal

import pytest

from assay.core.convert import convert, nearest
from assay.core.errors import UserError


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (tuple[str, ...], "a", ("a",)),
        (tuple[str, ...], "a+b", ("a", "b")),
        (tuple[str, ...], "hybrid:pattern=a+b", ("hybrid:pattern=a+b",)),
        (tuple[str, ...], ["a+b", "c"], ("a+b", "c")),
        (tuple[int, ...], "0..2", (0, 1, 2)),
        (tuple[int, ...], "0..2+7", (0, 1, 2, 7)),
        (tuple[int, ...], ["0..2", "7", 9], (0, 1, 2, 7, 9)),
        (tuple[str, ...], ["0..2", "a+b"], ("0..2", "a+b")),
        (tuple[int, ...], 3, (3,)),
        (tuple[float, ...], "1e+3+2.5", (1000.0, 2.5)),
        (tuple[float, ...], "1e3", (1000.0,)),
    ],
)
def test_a_plus_joins_the_items_of_a_tuple(hint, text, value):
    assert convert(hint, text, what="x") == value


def test_case_does_not_matter_to_a_choice_unless_two_differ_by_it_alone():
    """The spec's own commands write `wandb:None`."""
    assert convert(Literal["none", "on"], "None", what="x") == "none"
    assert [convert(Literal["a", "A"], word, what="x") for word in ("a", "A")] == ["a", "A"]
    with pytest.raises(UserError, match="expected one of none, on, got 'None'"):
        convert(Literal["none", "on"], "None", what="x", exact=True)


def test_an_item_that_does_not_fit_is_named():
    with pytest.raises(UserError, match="sizes: expected int, got 'b'"):
        convert(tuple[int, ...], "1+b", what="sizes")


@pytest.mark.parametrize(
    ("word", "known", "said"),
    [
        ("SelfAtn", ["gru", "SelfAttn"], " Did you mean 'SelfAttn'?"),
        ("--trian-steps", ["--train_steps", "--noise"], " Did you mean '--train_steps'?"),
        ("tiemout", ["timeout_per_run", "seeds"], " Did you mean 'timeout_per_run'?"),
        ("--wdth", ["--shape.width", "--seeds"], " Did you mean '--shape.width'?"),
        ("moduler", ["icl", "modular sweep", "modular figures"], " Did you mean 'modular figures' or 'modular sweep'?"),
        ("sped", ["max_speed", "min_speed", "top_speed"], " Did you mean 'max_speed', 'min_speed' or 'top_speed'?"),
        ("mamba3", ["mamba-2", "mamba_2", "mamba2", "mesa"], " Did you mean 'mamba2'?"),
        ("--zzzz", ["--seeds", "--noise"], ""),
        ("--x", [], ""),
        ("--model.tied", ["--model.tied", "--seeds"], ""),
    ],
)
def test_a_name_is_near_if_it_or_a_part_of_it_is_spelled_alike(word: str, known: list[str], said: str) -> None:
    assert nearest(word, known) == said
