"""Document 000, the expressivity benchmark: `python measure.py`, its flags, and encoders of one's own."""

import subprocess
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import assay
from assay.api import combined_grid, configure
from assay.command.flags import plugin_options
from assay.core.foreign import Source, load_source, read_source
from assay.core.plan import make_plan
from assay.core.plugin import registries
from assay.core.run import Numerics, Run
from assay.core.study import Study

Cli = Callable[..., tuple[int, str, str]]
ENCODER = """
from assay.studies.expressivity import Config, F, nn, register

@register("MyCoolEncoder")
class MyEnc(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.net = nn.Linear(cfg.D_in, cfg.D_z)
    def forward(self, x):
        return F.relu(self.net(x)[:, -1])
"""
SUBCLASS = """
from dataclasses import dataclass
from {module} import {name} as Theirs
from assay.{folder} import {folder}

@{folder}.register("mine")
@dataclass(frozen=True, kw_only=True)
class Mine(Theirs):
    "Mine."
    aliases = ()
"""
FROM_MEASURE = """
from measure import register, Config, nn, F

@register("MyCoolEncoder")
class MyEnc(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.net = nn.Linear(cfg.D_in, cfg.D_z)
    def forward(self, x):
        z = self.net(x)          # (B, L, D_z) or (B, D_z)
        return F.relu(z[:, -1])  # ExpressivityTester expects (B, D_z)
"""
STUDIES = [name for name in registries()["studies"].names() if issubclass(registries()["studies"][name], Study)]
PRESETS = [(name, preset) for name in STUDIES for preset in registries()["studies"][name].presets]


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    path = tmp_path / "my_encoder.py"
    path.write_text(ENCODER)
    return path


def own_of(cls: type[Study], folder: Path) -> tuple[Source, str]:
    """A file with a plug-in of the kind that a study compares, and its name among the versions of a run."""
    held = attrgetter(cls.compares)(configure(cls, next(iter(cls.presets)), {}))
    theirs = type(held[-1] if isinstance(held, tuple) else held)
    folders = {id(registry): name for name, registry in registries().items()}
    path = folder / "mine.py"
    words = {"module": theirs.__module__, "name": theirs.__name__, "folder": folders[id(theirs.registry)]}
    path.write_text(SUBCLASS.format(**words))
    load_source(source := read_source(path))
    return source, f"{theirs.registry.kind}/mine"


def planned(cls: type[Study], preset: str, *sources: Source, named: tuple[str, ...] = ()) -> dict[str, Run]:
    grid = combined_grid(cls, preset, {}, named=named, sources=sources)
    return {run.id: run for run in make_plan(configure(cls, preset, {}, sources), grid, Numerics()).runs}


@pytest.mark.parametrize("name", STUDIES)
def test_1_5_a_study_with_presets_and_plug_ins_says_which_are_compared(name: str) -> None:
    cls = registries()["studies"][name]
    taken = [option.path for option in plugin_options(cls)] if cls.presets else []
    assert cls.compares in taken or not taken


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_1_5_plug_ins_of_a_file_join_every_preset(name: str, preset: str, script: Any, tmp_path: Path) -> None:
    cls = registries()["studies"][name]
    if not cls.compares:
        pytest.skip("it takes no plug-ins")
    source, key = own_of(cls, tmp_path)
    with script("tests/golden/make_preset_ids.py").nobodys_files():
        joined, plain = planned(cls, preset, source), planned(cls, preset)
        other = planned(cls, preset, source, named=(cls.compares,)) if "." in cls.compares else {}
    own = {run_id for run_id, run in joined.items() if key in run.versions}
    others = {run_id for run_id, run in plain.items() if key not in run.versions}  # one that names none has all
    assert own and joined.keys() - own == others, "beside the preset's own, whose ids stay"
    assert not any(key in run.versions for run in other.values()), "what the user names is all there is"


@pytest.mark.parametrize("words", [["--preset", "spec"], ["--preset", "demo"], []])
def test_1_5_the_documents_encoder_is_planned_and_checked(cli: Cli, encoder: Path, words: list[str]) -> None:
    command = ["expressivity", "--plugin", encoder, "--fast", "--device", "cpu", *words]
    code, out, _ = cli(*command, "--dry-run")
    assert code == 0 and "MyCoolEncoder" in out and "static_mlp" in out
    code, out, _ = cli(*command, "--self-test")
    assert "encoders: MyCoolEncoder" in out.splitlines()


def test_1_5_what_a_command_names_is_all_it_runs_and_the_rest_is_told(cli: Cli, encoder: Path) -> None:
    code, out, err = cli("expressivity", "--plugin", encoder, "--preset", "spec", "--models", "SelfAttn", "--dry-run")
    assert code == 0 and "MyCoolEncoder" not in out and "MyCoolEncoder" in err


def test_1_5_the_same_from_python(encoder: Path, tmp_path: Path) -> None:
    small = {"fast": True, "batch_eval": 64, "batch_train": 16, "retr_steps": 2, "seeds": (0,)}
    placed: dict[str, Any] = {"executor": "serial", "device": "cpu", "out": tmp_path}

    def names(**options: Any) -> set[str]:
        return {record.run.options["model"]["name"] for record in assay.run("expressivity", **placed, **options)}

    theirs = names(preset="spec", **small)
    assert names(preset="spec", plugins=[encoder], **small) == theirs | {"MyCoolEncoder"}
    assert names(preset="spec", **small) == theirs, "a file of an earlier call joins nothing"


def test_1_5_methods_of_a_file_join_the_quick_test(cli: Cli, tmp_path: Path) -> None:
    own_of(registries()["studies"]["perplexity"], tmp_path)
    command = ["perplexity", "--quick-test", "--offline", "--device", "cpu", "--dry-run"]
    code, out, _ = cli(*command)
    assert code == 0 and " mine " in out and " h2o " in out
    code, out, _ = cli(*command, "--methods", "h2o")
    assert code == 0 and " mine " not in out


def test_10_the_encoder_of_the_document_is_a_plugin(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "my_encoder.py").write_text(FROM_MEASURE)
    words = ["--models", "MyCoolEncoder", "--seeds", "0", "1", "--dry-run", "--json"]
    code, out, err = cli("expressivity", "--plugin", tmp_path / "my_encoder.py", *words)
    assert code == 0, err
    assert out.count("MyCoolEncoder") == 2


def test_10_the_encoder_of_the_document_is_computed_by_workers(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "my_encoder.py").write_text(FROM_MEASURE)
    few = ["--batch_eval", "128", "--batch_train", "32", "--retr_steps", "2", "--retr_train_steps", "0"]
    words = ["--models", "MyCoolEncoder", "--seeds", "0", "--jac_points", "0", "--workers", "1", "--out", tmp_path]
    code, out, err = cli("expressivity", "--plugin", tmp_path / "my_encoder.py", *words, *few)
    assert code == 0, err
    assert "MyCoolEncoder" in out


@pytest.mark.parametrize("word", ["measure.py", "./measure.py"])
def test_10_measure_py_names_the_command(cli: Cli, word: str) -> None:
    code, _, err = cli(word, "--fast")
    assert code == 2 and "`assay expressivity`" in err


@pytest.mark.parametrize("there", [False, True], ids=["without one", "beside a measure.py"])
def test_10_a_measure_py_that_is_there_comes_first(there: bool, tmp_path: Path) -> None:
    if there:
        (tmp_path / "measure.py").write_text("register = 'mine'")
    (tmp_path / "script.py").write_text("import assay.originals\nfrom measure import register\nprint(register)")
    ran = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("mine" if there else "<function register")
