"""Every command, name, word and file of the five specs (docs/names.toml) is one here, and coming-from.md says so."""

import importlib
import importlib.util
import shlex
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from assay.core.plugin import registries

ROOT = Path(__file__).parent.parent
Cli = Callable[..., tuple[int, str, str]]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("coming_from", ROOT / "docs" / "coming_from.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


coming_from = load()
SPECS: dict[str, Any] = coming_from.specs()
COMMANDS = [command for spec in SPECS.values() for command in spec.get("commands", ())]
NAMES = [(spec["module"], text) for spec in SPECS.values() for text, _ in coming_from.entries(spec)]
WORDS = [(folder, word) for spec in SPECS.values() for folder, words in spec.get("words", ()) for word in words]
WRITTEN = [tuple(pair) for spec in SPECS.values() for pair in spec.get("written", ())]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[1])
def test_a_command_of_a_spec_can_be_planned(command: list[str], cli: Cli, tmp_path: Path) -> None:
    """Planned or explained: nothing is computed, fetched or written."""
    _, typed, *instead = command
    first, *words = shlex.split(typed)
    assert first == "assay"
    if instead and instead[0] == "--help":
        words = [word for word in words if word != "SWEEP"]
    light = shlex.split(instead[0]) if instead else ["--dry-run"]
    code, out, err = cli(*words, *light)
    assert code == 0, err
    assert out + err


@pytest.mark.parametrize(("module", "text"), NAMES, ids=lambda value: value.partition("(")[0])
def test_a_name_takes_every_call_that_the_original_takes(module: str, text: str) -> None:
    theirs = coming_from.there(text)
    assert not coming_from.faults(theirs, coming_from.here(module, theirs.name))


@pytest.mark.parametrize(("folder", "word"), WORDS)
def test_a_word_of_a_spec_is_a_plug_in(folder: str, word: str) -> None:
    importlib.import_module(f"assay.{folder}")
    assert registries()[folder].parse(word)


@pytest.mark.parametrize(("written", "proof"), WRITTEN)
def test_a_file_or_key_of_a_spec_is_read_by_a_test(written: str, proof: str) -> None:
    assert written in (ROOT / proof).read_text(encoding="utf-8")


def test_the_scores_of_an_encoder_have_the_specs_keys() -> None:
    from assay.studies.expressivity import Config, ExpressivityTester, nn

    cfg = Config(L=18, batch_eval=64, batch_train=16, train_steps=1, retr_steps=1, retr_train_steps=1, jac_points=1)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(cfg.L * cfg.D_in, cfg.D_z))
    assert set(SPECS["expressivity"]["keys"]) <= set(ExpressivityTester(cfg).evaluate(encoder))


def test_the_page_is_what_the_signatures_say() -> None:
    assert coming_from.PAGE.read_text(encoding="utf-8") == coming_from.page(), "run: python docs/coming_from.py"


def test_a_call_that_would_go_wrong_is_found() -> None:
    """Other order, other name, missing, newly required: each is told."""
    there = coming_from.there
    assert coming_from.faults(there("f(a, b=1)"), there("f(a, b=2, *, c=0)")) == []
    assert coming_from.faults(there("f(x, a)"), there("f(a, x)")) == ["`x` is not argument 1", "`a` is not argument 2"]
    assert coming_from.faults(there("f(P)"), there("f(p)")) == ["no `P`", "`p` must be given"]
    assert coming_from.faults(there("f(a=1)"), there("f(a)")) == ["`a` must be given"]
    assert coming_from.differences(there("f(a, b=1)"), there("f(a, b=2, *, c=0)")) == ["`b=2`, there `1`", "also `c`"]
