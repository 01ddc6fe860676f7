"""The house rules, kept by the tree itself: sizes, layers (see also `make lint`), and what a command may import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from assay.core.plugin import registries

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "assay"
FILES = sorted(SOURCE.rglob("*.py"))
AROUND = sorted(
    path for folder in ("tests", "docs", "benchmarks", "notebooks") for path in (ROOT / folder).rglob("*.py")
)


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("path", [*FILES, *AROUND], ids=lambda path: str(path.relative_to(ROOT)))
def test_files_fit(path: Path) -> None:
    assert path.read_text().count("\n") <= 400


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_functions_fit_and_files_lie_at_most_three_folders_deep(path: Path) -> None:
    assert len(path.relative_to(SOURCE).parts) <= 4
    long = [f"{f.name}: {f.end_lineno - f.lineno + 1}" for f in functions(path) if f.end_lineno - f.lineno + 1 > 60]  # type: ignore[operator]
    assert not long


@pytest.mark.parametrize("path", [p for p in FILES if p.name == "__init__.py"], ids=lambda p: p.parent.name)
def test_init_files_are_empty_but_for_a_registry_or_lazy_public_names(path: Path) -> None:
    statements = [n for n in ast.parse(path.read_text()).body if not isinstance(n, ast.Import | ast.ImportFrom)]
    calls = [n.value for n in statements if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)]
    lazy = any(isinstance(n, ast.FunctionDef) and n.name == "__getattr__" for n in statements) or any(
        isinstance(call.func, ast.Name) and call.func.id == "on_use" for call in calls
    )
    assert lazy or len(statements) <= 1


@pytest.mark.parametrize("folder", sorted(registries()))
def test_plugins_of_one_folder_do_not_import_each_other(folder: str) -> None:
    modules = {entry.module for entry in registries()[folder].folder.values()}
    for module in modules:
        path = SOURCE / Path(*module.split(".")[1:]).with_suffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.module not in modules - {module}, f"{module} imports {node.module}"


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["list"], ["list", "encoders", "--json"], ["show", "--help"], ["data", "list"]]
)
def test_light_commands_import_no_heavy_library_and_take_under_half_a_second(words: list[str]) -> None:
    code = (
        "import sys, time; from assay.command.cli import main; code = main(sys.argv[1:]);"
        "heavy = set('torch numpy matplotlib scipy pandas altair ray rich'.split()) & set(sys.modules);"
        "print(code, sorted(heavy), time.process_time(), file=sys.stderr)"
    )
    spent = []
    for _ in range(5):  # CPU time too grows on a busy machine: the best of five counts, and one is enough
        ran = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
        exit_code, heavy, seconds = ran.stderr.strip().splitlines()[-1].split(" ")
        assert (exit_code, heavy) == ("0", "[]")
        spent.append(float(seconds))
        if spent[-1] < 0.5:
            return
    raise AssertionError(f"seconds of CPU: {spent}")


def test_importing_assay_prints_nothing_and_imports_no_torch() -> None:
    code = "import assay, sys; assert 'torch' not in sys.modules; assert 'numpy' not in sys.modules"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == ran.stderr == ""
