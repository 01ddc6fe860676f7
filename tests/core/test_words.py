"""Any plug-in is one word: whatever its options hold, its label parses back to it, and its JSON loads back."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from assay.contracts.shared import hostile, loads_back
from assay.core import words
from assay.core.plan import parse_grid
from assay.core.plugin import Plugin, Registry, registries

kinds: Registry[Any] = Registry("kind", "")


class Kind(Plugin):
    registry: ClassVar[Registry] = kinds


@kinds.register("leaf")
@dataclass(frozen=True, kw_only=True)
class Leaf(Kind):
    text: str = "plain"
    number: float = 0.0
    mode: Literal["a", "b+c", "none"] = "a"


@kinds.register("every")
@dataclass(frozen=True, kw_only=True)
class Every(Kind):
    """An option of every type."""

    text: str = ""
    path: Path | None = None
    maybe: str | None = None
    either: str | int | float = "x"
    count: int = 1
    flag: bool | None = None
    sizes: tuple[int, ...] = (1, 2)
    texts: tuple[str, ...] = ()
    pair: tuple[str, float] = ("a", 0.0)
    table: tuple[tuple[int, ...], ...] = ()
    leaf: Leaf = Leaf()
    leaves: tuple[Kind, ...] = ()


def test_a_plugin_with_options_of_every_type_loads_back_whatever_they_hold() -> None:
    changed = list(hostile(Every()))
    assert {name for one in changed for name in vars(one) if getattr(one, name) != getattr(Every(), name)} == set(
        vars(Every())
    )
    loads_back(Every())


def test_hostile_options_load_back_deep_inside() -> None:
    for inner in hostile(Leaf()):
        outer = Every(leaf=inner, leaves=(inner, Leaf(), inner), texts=("a", "", "b:c"))
        twice = Every(leaves=(outer, inner))
        for plugin in (outer, twice, Every(leaves=(twice,))):
            assert kinds.parse(plugin.label) == plugin == kinds.load(plugin.spec())


def test_a_label_is_one_value_of_a_grid() -> None:
    for plugin in hostile(Every()):
        (value,) = parse_grid([f"axis={plugin.label}"])["axis"]
        assert kinds.parse(value) == plugin


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("leaf:text=/data/c++/a.txt", "/data/c++/a.txt"),
        ("leaf:text=a+b", "a+b"),
        ("leaf:text=a b", "a b"),
        ("leaf:text=(a:b)", "(a:b)"),
        ('leaf:text=say "x"', 'say "x"'),
        ("leaf:text=x=y", "x=y"),
        ("leaf:text=", ""),
        ("leaf:text=none", "none"),
        ('leaf:text="a:b=c"', "a:b=c"),
        ('leaf:text="not closed', '"not closed'),
        ('leaf:text="\\q"', '"\\q"'),
    ],
)
def test_a_text_is_read_as_it_is_and_in_quotes(word: str, text: str) -> None:
    """Quotes are for what would be taken apart; nothing else needs them."""
    assert kinds.parse(word).text == text
    assert kinds.parse(f"{word}:number=2").number == 2


def test_quotes_are_written_only_where_they_are_needed() -> None:
    assert Leaf(text="model.layers.15").label == "leaf:text=model.layers.15"
    assert Leaf(text="/data/c++").label == 'leaf:text="/data/c++"'
    assert Leaf(number=1e20).label == "leaf:number=1e+20" and Leaf(number=-0.0).label == "leaf:number=-0.0"
    assert Every(sizes=(), text="5", leaf=Leaf(text="a")).label == 'every:text="5":sizes=:leaf=(leaf:text=a)'
    assert Leaf(text="two\nlines").label.isprintable()


def test_separators_inside_of_quotes_and_parentheses_separate_nothing() -> None:
    assert words.split('a+"b+c"+(d:e="+)+"+f)', "+") == ["a", '"b+c"', '(d:e="+)+"+f)']
    assert words.unwrapped('(a:b=")")') == 'a:b=")"' and words.unwrapped("(a)+(b)") == "(a)+(b)"


def test_a_path_with_two_plusses_is_an_option_on_the_command_line(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "c++").mkdir()
    (tmp_path / "c++" / "b.txt").write_text("some words")
    data = registries()["vectors"].parse(f"activations:text={tmp_path}/c++/b.txt")
    assert registries()["vectors"].parse(data.label) == data
    folder = ["--data", data.label, "--coders", "pca", "--dry-run", "--device", "cpu", "--out", tmp_path]
    code, out, err = cli("sae", *folder)
    assert code == 0 and "3 planned" in out, err
