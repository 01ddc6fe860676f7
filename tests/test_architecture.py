"""The house rules, kept by the tree itself: layers (see also `make lint`), and what a command may import."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from assay.core.plugin import registries

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "assay"
FILES = sorted(SOURCE.rglob("*.py"))


INSIDE = (ast.stmt, ast.excepthandler, ast.match_case)


@cache
def nodes(path: Path) -> list[ast.AST]:
    """The statements of a file, parsed once for all rules. Expressions are most of a tree, and hold none."""
    found: list[ast.AST] = [ast.parse(path.read_text())]
    for node in found:
        found += [child for child in ast.iter_child_nodes(node) if isinstance(child, INSIDE)]
    return found


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """The trees of all files are many objects."""
    yield
    nodes.cache_clear()


def test_files_lie_at_most_three_folders_deep() -> None:
    assert len(FILES) > 100 and [path for path in FILES if len(path.relative_to(SOURCE).parts) > 4] == []


def test_init_files_are_empty_but_for_a_registry_or_lazy_public_names() -> None:
    files = [path for path in FILES if path.name == "__init__.py"]
    full = [str(path.relative_to(SOURCE)) for path in files if not registry_or_lazy_names(path)]
    assert len(files) > 10 and full == []


def registry_or_lazy_names(path: Path) -> bool:
    statements = [n for n in ast.parse(path.read_text()).body if not isinstance(n, ast.Import | ast.ImportFrom)]
    calls = [n.value for n in statements if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)]
    lazy = any(isinstance(n, ast.FunctionDef) and n.name == "__getattr__" for n in statements) or any(
        isinstance(call.func, ast.Name) and call.func.id == "on_use" for call in calls
    )
    return lazy or len(statements) <= 1


def test_plugins_of_one_folder_do_not_import_each_other() -> None:
    found = []
    for registry in registries().values():
        modules = {entry.module for entry in registry.folder.values()}
        for module in modules:
            path = SOURCE / Path(*module.split(".")[1:]).with_suffix(".py")
            imports = [node for node in nodes(path) if isinstance(node, ast.ImportFrom)]
            found += [f"{module} imports {node.module}" for node in imports if node.module in modules - {module}]
    assert len(registries()) > 5 and found == []


def imports(source: Path) -> dict[str, set[str]]:
    """Which modules under a package's folder each of them imports: at its top, inside functions, for types alone."""
    names = {
        ".".join((source.name, *path.relative_to(source).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in source.rglob("*.py")
    }

    def named(node: ast.AST) -> set[str]:
        match node:
            case ast.Import(aliases):
                return {alias.name for alias in aliases}
            case ast.ImportFrom(module, aliases, level):
                assert not level, f"a relative import of {module}: write it out"
                inner = {alias.name: f"{module}.{alias.name}" for alias in aliases}
                return {inner[name] if inner[name] in names else str(module) for name in inner}
        return set()

    return {
        name: {found for node in nodes(path) for found in named(node)} & names.keys() - {name}
        for name, path in names.items()
    }


def test_no_module_imports_itself_by_way_of_others() -> None:
    try:
        TopologicalSorter(imports(SOURCE)).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")


@pytest.mark.parametrize("where", ["", "def later():\n    ", "if TYPE_CHECKING:\n    "])
def test_a_circle_is_found_wherever_its_import_stands(where: str, tmp_path: Path) -> None:
    folder = tmp_path / "house"
    (folder / "room").mkdir(parents=True)
    (folder / "door.py").write_text("from house.room import window\n")
    (folder / "room" / "__init__.py").touch()
    (folder / "room" / "window.py").write_text(f"{where}from house.door import handle\n")
    assert imports(folder)["house.door"] == {"house.room.window"}
    with pytest.raises(CycleError):
        TopologicalSorter(imports(folder)).prepare()


PLAIN = "import argparse, ast, asyncio, dataclasses, importlib.metadata, inspect, json, typing, unittest.mock"
"""A plain program of the standard library: .1 to .2 s of CPU, so that two of them are under half a second."""


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["list"], ["list", "encoders", "--json"], ["show", "--help"], ["data", "list"]]
)
def test_light_commands_import_no_heavy_library_and_take_less_than_two_plain_programs(words: list[str]) -> None:
    code = (
        "from assay.command.cli import main; code = main(sys.argv[1:]);"
        "heavy = set('torch numpy matplotlib scipy pandas altair ray rich'.split()) & set(sys.modules);"
        "print(code, sorted(heavy), file=sys.stderr)"
    )

    def ran(code: str) -> tuple[str, float]:
        timed = f"import sys, time; {code}\nprint(time.process_time(), file=sys.stderr)"
        done = subprocess.run([sys.executable, "-c", timed, *words], capture_output=True, text=True, check=True)
        *said, seconds = done.stderr.strip().splitlines()
        return " ".join(said[-1:]), float(seconds)

    ratios = []
    for _ in range(5):  # CPU seconds grow on a busy machine, so those of a plain program are measured beside them
        (said, seconds), (_, plain) = ran(code), ran(PLAIN)
        assert said == "0 []"
        ratios.append(seconds / plain)
        if ratios[-1] < 2:
            return
    raise AssertionError(f"times a plain program's CPU seconds: {ratios}")


def test_a_study_without_torch_is_run_on_a_cpu_without_torch(tmp_path: Path) -> None:
    code = "import sys; from assay.command.cli import main; sys.exit(main(sys.argv[1:]) or 'torch' in sys.modules)"
    words = ["toy", "--plugin", str(Path(__file__).parent / "toy.py"), "--device", "cpu", "--out", str(tmp_path)]
    subprocess.run([sys.executable, "-c", code, *words, "--workers", "1"], check=True)


def test_importing_assay_prints_nothing_and_imports_no_torch() -> None:
    code = "import assay, sys; assert 'torch' not in sys.modules; assert 'numpy' not in sys.modules"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == ran.stderr == ""
