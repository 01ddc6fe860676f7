"""A plug-in is a frozen dataclass, and a folder is its registry."""

import importlib.metadata
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from assay.core.errors import UserError
from assay.core.foreign import Source, load_source
from assay.core.plugin import Plugin, Registry, registries
from assay.core.words import folded

FRUITS = {
    "apple.py": '''
"""Apples keep the doctor away.

More about apples."""
from dataclasses import dataclass
from fruits import fruits
from fruits.base import Fruit

@fruits.register("apple")
@dataclass(frozen=True, kw_only=True)
class Apple(Fruit):
    aliases = ("Apfel",)
    other_names = ("pomme",)
    seeds: int = 5
    colour: str = "red"
''',
    "broken.py": """
from fruits import fruits
raise RuntimeError("listing must not import this")
@fruits.register("broken")
class Broken: ...
""",
    "not_a_fruit.py": "def helper(): ...",
    "base.py": "from assay.core.plugin import Plugin\nclass Fruit(Plugin): ...",
    "__init__.py": "from assay.core.plugin import Registry\nfruits = Registry('fruit', __name__)",
}


@pytest.fixture
def fruits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    folder = tmp_path / "fruits"
    folder.mkdir()
    for name, text in FRUITS.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "fruits"]:
        monkeypatch.delitem(sys.modules, name)
    import fruits as package  # type: ignore[import-not-found]

    return package.fruits


def test_a_folder_is_listed_without_importing_its_files(fruits: Registry) -> None:
    assert fruits.names() == ("apple", "broken")
    apple = fruits.entries()[0]
    assert (apple.name, apple.aliases, apple.summary) == ("apple", ("Apfel", "pomme"), "Apples keep the doctor away.")
    assert "fruits.apple" not in sys.modules


def test_a_word_becomes_a_plugin_and_its_spec_leads_back_to_it(fruits: Registry) -> None:
    apple = fruits.parse("apple:seeds=7")
    assert apple.spec() == {"name": "apple", "seeds": 7, "colour": "red"}
    assert fruits.load(apple.spec()) == apple
    assert fruits.parse(apple.label) == apple
    assert apple.label == "Apfel:seeds=7"
    assert len({apple, fruits.parse("Apfel:seeds=7"), fruits.parse("pomme:seeds=7")}) == 1


def test_what_others_call_a_mixer_is_understood_and_changes_neither_label_nor_spec() -> None:
    mixers = registries()["mixers"]
    called = {
        "gla": "gated_linear_attn", "swa": "sliding_window", "retnet": "retention", "deltanet": "delta_net",
        "gated_deltanet": "gated_delta_net", "gdn": "gated_delta_net", "mamba_2": "mamba2", "mamba-2": "mamba2",
        "mesa_net": "mesa", "mesanet": "mesa", "rwkv_7": "rwkv7", "rwkv-7": "rwkv7", "deltaproduct": "delta_product",
    }  # fmt: skip
    for word, name in called.items():
        made = mixers.parse(f"{word}:conv=3")
        assert made == mixers.parse(f"{name}:conv=3") and made.label == f"{name}:conv=3" and made.spec()["name"] == name
    # A record has the name itself: 'gla' there is a mixer of somebody's own, from before assay knew the word.
    assert mixers.label_of({"name": "gla"}) == "gla"


def test_a_class_derived_from_one_that_has_other_names_does_not_have_them(fruits: Registry) -> None:
    boskoop = fruits.register("boskoop")(type("Boskoop", (fruits["apple"],), {"aliases": (), "__module__": "mine"}))
    assert fruits["pomme"] is fruits["apple"] and fruits["boskoop"] is boskoop
    assert {entry.name: entry.aliases for entry in fruits.entries()}["boskoop"] == ()


def test_a_record_is_named_also_where_its_plugin_is_not_known(fruits: Registry) -> None:
    assert fruits.label_of({"name": "apple", "seeds": 7, "colour": "red"}) == "Apfel:seeds=7"
    assert fruits.label_of({"name": "quince", "seeds": 9, "hairy": True}) == "quince:seeds=9:hairy=true"


def test_case_and_punctuation_do_not_matter_where_one_name_is_meant(fruits: Registry) -> None:
    assert fruits["APFEL"] is fruits["Ap-ple"] is fruits["apple"] and fruits.parse("A.P.P.L.E:seeds=7").seeds == 7
    for name in ("red_fig", "redfig"):
        fruits.register(name)(type(name, (fruits["apple"],), {"aliases": (), "__module__": "mine"}))
    assert fruits["red_fig"] is not fruits["redfig"], "as they are written"
    with pytest.raises(UserError, match="no fruit named 'Red Fig'"):
        fruits["Red Fig"]


def test_no_two_names_of_a_folder_differ_in_case_and_punctuation_alone() -> None:
    for registry in registries().values():
        spellings = {alias: entry.name for entry in registry.entries() for alias in (entry.name, *entry.aliases)}
        names = {(folded(alias), name) for alias, name in spellings.items()}
        assert len(names) == len({alias for alias, _ in names}), registry.kind


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("aple", ["no fruit named 'aple'", "Did you mean 'apple'", "broken", "--plugin"]),
        ("APFLE", ["Did you mean 'Apfel'"]),
        ("apple:sedes=3", ["no option 'sedes'", "Did you mean 'seeds'", "colour"]),
        ("apple:seeds=many", ["option 'seeds'", "expected int", "'many'"]),
        ("apple:seeds", ["'seeds' has no value", "apple:option=value"]),
    ],
)
def test_a_wrong_word_gets_the_nearest_right_one(fruits: Registry, word: str, parts: list[str]) -> None:
    with pytest.raises(UserError) as error:
        fruits.parse(word)
    for part in parts:
        assert part in str(error.value)


def test_a_name_is_not_taken_twice(fruits: Registry) -> None:
    fruits["apple"]
    with pytest.raises(UserError, match="defined twice"):

        @fruits.register("apple")
        @dataclass(frozen=True, kw_only=True)
        class Other(Plugin): ...


def test_every_builtin_name_is_the_stem_of_its_file() -> None:
    for folder, registry in registries().items():
        for entry in registry.folder.values():
            *_, parent, stem = entry.module.split(".")
            expected = stem if folder != "studies" or parent == stem else f"{parent}.{stem}"
            assert entry.name == expected, entry.module


def test_versions_change_with_a_foreign_file_and_not_with_ours(fruits: Registry) -> None:
    local = registries()["executors"]["local"]
    assert local.component_version() == str(local.version)
    assert len(fruits["apple"].component_version()) == 64


def test_a_class_of_a_script_is_refused_because_workers_cannot_find_it() -> None:
    code = """
from dataclasses import dataclass
from assay.core.plugin import Plugin
class Mine(Plugin): name = "mine"
Mine.component_version()
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "UserError" in ran.stderr and "--plugin FILE" in ran.stderr


def test_nested_plugins_and_literals_are_checked() -> None:
    kinds = Registry("kind", "")

    @kinds.register("inner")
    @dataclass(frozen=True, kw_only=True)
    class Inner(Plugin):
        mode: Literal["a", "b"] = "a"
        level: Literal[0, 1, 2] = 0

    @kinds.register("outer")
    @dataclass(frozen=True, kw_only=True)
    class Outer(Plugin):
        inner: Inner = Inner()
        sizes: tuple[int, ...] = (1,)
        scale: float | None = None
        loud: bool = False
        registry: ClassVar[Registry] = kinds

    outer = kinds.load({"name": "outer", "inner": {"name": "inner", "mode": "b"}, "sizes": "0..2", "loud": "true"})
    assert outer == Outer(inner=Inner(mode="b"), sizes=(0, 1, 2), loud=True)
    assert kinds.load(outer.spec()) == outer
    assert kinds.parse("inner:level=2") == Inner(level=2)
    with pytest.raises(UserError, match="expected one of a, b, got 'c'"):
        kinds.parse("inner:mode=c")


def test_an_installed_entry_point_is_a_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"theirs_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(
        "from dataclasses import dataclass\n"
        "from assay.encoders import encoders\n"
        "from assay.encoders.base import Encoder\n"
        "@encoders.register('theirs')\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Theirs(Encoder): width: int = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    point = importlib.metadata.EntryPoint("encoders/theirs", module, "assay.plugins")
    real = importlib.metadata.entry_points
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: [point] if group == "assay.plugins" else real(group=group)
    )
    encoders = registries()["encoders"]
    monkeypatch.delitem(vars(encoders), "installed", raising=False)
    assert "theirs" in encoders.names() and encoders.parse("theirs:width=5").width == 5
    assert len(encoders["theirs"].component_version()) == 64
    vars(encoders).pop("installed")


@pytest.mark.parametrize(
    "word",
    [
        "hybrid:pattern=attention+gru",
        "hybrid:pattern=attention+(linear_attention:num_heads=4:tie_qk=true):conv=4",
        "hybrid:pattern=(hybrid:pattern=gru+attention)",
        "mamba2:expand=1.5",
    ],
)
def test_a_label_parses_back_to_its_plugin_however_nested(word: str) -> None:
    mixers = registries()["mixers"]
    plugin = mixers.parse(word)
    assert mixers.parse(plugin.label) == plugin == mixers.load(plugin.spec())


def test_an_edit_that_is_taken_back_takes_its_name_back(tmp_path: Path) -> None:
    path, encoders = str(tmp_path / "mine.py"), registries()["encoders"]
    text = (
        "from dataclasses import dataclass\nfrom assay.encoders import encoders\n"
        "from assay.encoders.base import Encoder\n"
        "@encoders.register('mine')\n@dataclass(frozen=True, kw_only=True)\nclass Mine(Encoder): size: int = {}\n"
    )
    for size in (1, 2, 1):
        load_source(Source(path, text.format(size)))
        assert encoders["mine"]().size == size


@pytest.mark.parametrize("folder", sorted(registries()))
def test_what_is_listed_without_an_import_is_what_the_class_says(folder: str) -> None:
    registry = registries()[folder]
    for entry in registry.folder.values():
        module = importlib.import_module(entry.module)
        cls = registry[entry.name]
        generated = cls.__doc__.startswith(f"{cls.__name__}(")  # by dataclass, for a class without a docstring
        summary = (module if generated else cls).__doc__.strip().splitlines()[0]
        assert (entry.aliases, entry.summary) == ((*cls.aliases, *cls.other_names), summary)
