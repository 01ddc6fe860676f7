"""What tests share: shape checking of every annotated function, a small study without torch, and the CLI in process."""

import importlib.util
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from jaxtyping import install_import_hook

# jaxtyping's shapes are checked by beartype in tests, and cost nothing in production.
_hook = install_import_hook(
    [
        "assay.nn",
        "assay.attention",
        "assay.tasks",
        "assay.encoders",
        "assay.metrics",
        "assay.sparse_coders",
        "assay.train",
        "assay.mixers",
        "assay.state_mixers",
        "assay.models",
        "assay.vectors",
    ],
    "beartype.beartype",
)
_studies_hook = install_import_hook("assay.studies", "typechecking.shapes")

TOY = Path(__file__).parent / "toy.py"
SHELF = Path(__file__).parent / "shelf.py"


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


@pytest.fixture(scope="session")
def image() -> Callable[..., Any]:
    """A bilinear model under a symmetry of addition mod P (metrics.automorphisms):

    z'_r(a, b) = z_(kr + s + t)(ka + s, kb + t), with a and b exchanged if it swaps
    """
    import torch

    from assay.metrics.similarity import Factors, Weights, weights

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
    from assay.cli import main

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
