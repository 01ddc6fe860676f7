"""A command says what it takes from declarations alone, and says what the imported classes would."""

import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from assay.command.flags import options
from assay.command.help import chosen_options, describe, field_texts, print_choices, print_help
from assay.command.study_command import _unset
from assay.core.declared import _Absent, _Source, declared
from assay.core.plugin import Plugin, registries, to_json
from assay.core.study import Reading

STUDIES = registries()["studies"]


def said(cls: type[Any], capsys: pytest.CaptureFixture[str]) -> str:
    """All that a command prints about a class."""
    if issubclass(cls, Reading):
        print_help(cls.name, cls.question, (_unset(cls),))
    else:
        print_help(cls.name, describe(cls()), (cls(),))
        print_choices(cls())
        print(chosen_options(cls()))
    return capsys.readouterr().out


@pytest.mark.parametrize("name", STUDIES.names())
def test_a_declaration_that_was_read_says_what_the_imported_class_says(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    real, light = STUDIES[name], declared(STUDIES, name)
    assert light is not real and light.__module__ == real.__module__, "it was imported after all"
    assert [option.path for option in options(light)] == [option.path for option in options(real)]
    assert said(light, capsys) == said(real, capsys)
    assert to_json(light.presets) == to_json(real.presets) and field_texts(light) == field_texts(real)


@pytest.mark.parametrize("folder", [folder for folder in registries() if folder not in ("studies", "executors")])
def test_every_plug_in_can_be_read_with_its_defaults(folder: str) -> None:
    registry = registries()[folder]
    for name in registry.folder:
        real, light = registry[name], declared(registry, name)
        assert light is not real, f"{folder}/{name} cannot be read alone"
        assert {f.name: default(f) for f in fields(light)} == {f.name: default(f) for f in fields(real)}, name
        assert light.aliases == real.aliases


def default(field: Any) -> str:
    held = field.default if field.default_factory is MISSING else field.default_factory()
    return held.label if isinstance(held, Plugin) else repr(held)


def test_help_choices_and_wrong_flags_import_no_torch() -> None:
    told = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr[-2000:]
    assert told.stderr.count("no flag '--sead'") == len(STUDIES.names())


WITHOUT_TORCH = """
import sys
from assay.command.cli import main
from assay.core.plugin import registries

for name in registries()["studies"].names():
    command = name.split(".")
    readings = name in ("modular.frequencies", "modular.similarity", "sae.figures")
    assert main([*command, "--help"]) == 0
    assert main([*command, *(["--help"] if readings else ["--choices"])]) == 0
    assert main([*command, *(["sweep"] if name.startswith("modular") and readings else []), "--sead", "3"]) == 2
    heavy = sorted({"torch", "numpy", "pandas", "altair", "rich"}.intersection(sys.modules))
    assert not heavy, (name, heavy)
"""


def test_a_declaration_that_needs_another_library_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.core.declared.ROOT", tmp_path)
    (tmp_path / "near.py").write_text("import torch\nWIDTH = 3\nTYPE = torch.float32\n")
    source = _Source("assay.near")
    assert source.value("WIDTH") == 3 and isinstance(source.value("torch"), _Absent)
    with pytest.raises(Exception, match=r"near\.TYPE"):
        source.value("TYPE")
