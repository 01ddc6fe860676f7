"""What tests share: a machine without a past, shape checking of every annotated function, a small study without torch,
and the CLI in process."""

import gc
import importlib.util
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest
from jaxtyping import install_import_hook

import hurried
import typechecking

EMPTY = {
    "HOME": "home",
    "XDG_CACHE_HOME": "home/.cache",
    "XDG_CONFIG_HOME": "home/.config",
    "XDG_DATA_HOME": "home/.local/share",
    "ASSAY_CACHE": "home/.cache/assay",
    "HF_HOME": "home/.cache/huggingface",
    "HF_HUB_CACHE": "home/.cache/huggingface/hub",
    "HF_DATASETS_CACHE": "home/.cache/huggingface/datasets",
}
"""Where a test may find what the user pulled, trained or configured before: folders that are not there yet."""
UNSET = (
    "ASSAY_DATA",
    "ASSAY_SAE_WEIGHTS",
    "HF_ENDPOINT",
    "HF_TOKEN",
    "HF_HUB_OFFLINE",
    "HF_DATASETS_OFFLINE",
    "TRANSFORMERS_OFFLINE",
)
# Imports and collected tests are a million objects that stay: looking for garbage among them takes seconds in each
# process while they are made, and again and again while tests run.
gc.disable()
# Bytecode is kept, whatever the shell says (as in the Makefile): without it every process of the tests, and every
# command that they start, compiles the tree again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A draw that takes long says how busy the machine is, and nothing of what is tested.
hypothesis.settings.register_profile("assay", deadline=None)
hypothesis.settings.load_profile("assay")
_MACHINE = Path(tempfile.mkdtemp(prefix="assay-tests-"))
_counted = iter(range(sys.maxsize))


def _fresh() -> tuple[Path, dict[str, str]]:
    """A folder nobody was in, with an empty home and an empty place to work; and the environment that leads there."""
    root = _MACHINE / str(next(_counted))
    (root / "home").mkdir(parents=True)
    (root / "work").mkdir()
    return root, {name: str(root / place) for name, place in EMPTY.items()}


# Fixtures of a module and libraries that read the environment when they are imported come before any test.
os.environ.update(_fresh()[1])
for _name in UNSET:
    os.environ.pop(_name, None)

# jaxtyping's shapes are checked by beartype in tests, and cost nothing in production. Kernels are left out: Triton
# compiles the source of a function, and a checked function is another one.
_SOURCE = Path(__file__).parent.parent / "src" / "assay"
_CHECKED = [
    "nn",
    "attention",
    "tasks",
    "encoders",
    "metrics",
    "sparse_coders",
    "train",
    "mixers",
    "state_mixers",
    "models",
    "vectors",
    "probes",
]
typechecking.install()
_hook = install_import_hook(
    [
        f"assay.{folder}.{path.stem}"
        for folder in _CHECKED
        for path in sorted((_SOURCE / folder).glob("*.py"))
        if "@triton.jit" not in path.read_text("utf-8") and path.stem != "__init__"
    ],
    "beartype.beartype",
)
_studies_hook = install_import_hook("assay.studies", "typechecking.shapes")

TOY = Path(__file__).parent / "toy.py"
SHELF = Path(__file__).parent / "shelf.py"


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    shutil.rmtree(_MACHINE, ignore_errors=True)


@pytest.fixture(autouse=True)
def a_machine_without_a_past(monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, cache, data folder, hub cache and working folder for each test, and for the processes it starts:
    what the user has pulled, or another test has left, changes nothing."""
    typechecking.next_test()
    root, environment = _fresh()
    for name, place in environment.items():
        monkeypatch.setenv(name, place)
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(root / "work")  # data is looked for in ./data, and results are written to ./results
    return root


@pytest.fixture(scope="session")
def script() -> Callable[[str], ModuleType]:
    """A script of the repository as a module: `script("benchmarks/sae.py")`. As when run, its folder is on the path."""

    def load(place: str) -> ModuleType:
        path = Path(__file__).parent.parent / place
        spec = importlib.util.spec_from_file_location(place.removesuffix(".py").replace("/", "_"), path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(path.parent))
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(str(path.parent))
        return module

    return load


@pytest.fixture(autouse=True)
def no_foreign_plugins_left() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    from assay.core import foreign
    from assay.core.plugin import registries

    before = {folder: dict(registry._classes) for folder, registry in registries().items()}
    loaded = dict(foreign._LOADED)
    yield
    for folder, registry in registries().items():
        for name, cls in list(registry._classes.items()):
            if name not in before[folder] and not cls.__module__.startswith("assay."):
                del registry._classes[name]
    for name in set(foreign._LOADED) - set(loaded):
        del foreign._LOADED[name]


@pytest.fixture
def toy() -> Any:
    """The study of tests/toy.py, loaded as a foreign file: it travels to workers as its source."""
    from assay.core.foreign import load_source, read_source
    from assay.core.plugin import registries

    load_source(read_source(TOY))
    return registries()["studies"]["toy"]


@pytest.fixture
def shelf() -> Path:
    """The file of a study with parts, presets and old names, for `--plugin`."""
    return SHELF


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts are specified, exported and placed on the page, but no PDF or PNG is drawn: that takes longer than most of
    the tests that do not look at one. Each study has others, in which its charts are drawn."""
    import vl_convert

    monkeypatch.setattr(vl_convert, "vegalite_to_pdf", lambda *_, **__: b"%PDF-1.7")
    monkeypatch.setattr(vl_convert, "vegalite_to_png", lambda *_, **__: b"\x89PNG\r\n\x1a\n")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes of sae runs are fitted in a few steps; metrics and test_sae_scoring.py look at what a probe finds."""
    hurried.few_probe_steps(monkeypatch)


@pytest.fixture(scope="session")
def image() -> Callable[..., Any]:
    """A bilinear model under a symmetry of addition mod P (metrics.automorphisms):

    z'_r(a, b) = z_(kr + s + t)(ka + s, kb + t), with a and b exchanged if it swaps
    """
    import torch

    from assay.studies.modular.metrics.tensor_similarity import Factors, Weights, weights

    def of(model: Factors, multiplier: int = 1, shift_a: int = 0, shift_b: int = 0, swap: bool = False) -> Weights:
        plain = weights(model)
        assert math.gcd(multiplier, plain.P) == 1, f"multiplier {multiplier} and P={plain.P} share a factor"
        r = multiplier * torch.arange(plain.P, device=plain.w_p.device)
        first, second = (r + shift_a) % plain.P, plain.P + (r + shift_b) % plain.P
        columns = torch.cat([second, first] if swap else [first, second])
        outputs = (r + shift_a + shift_b) % plain.P
        return Weights(plain.w_l[:, columns], plain.w_r[:, columns], plain.w_p[outputs])

    return of


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Run the command in this process: exit code, standard output, standard error."""
    from assay.command.cli import main

    monkeypatch.setenv("COLUMNS", "10000")  # tables are cut to it, and tests read them whole

    def call(*words: str | Path) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def cli_json(cli: Callable[..., tuple[int, str, str]]) -> Callable[..., Any]:
    def call(*words: str | Path) -> Any:
        code, out, err = cli(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    return call
