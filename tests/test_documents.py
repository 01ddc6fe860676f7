"""The documents show what commands print: each of those commands must still be one."""

import argparse
import ast
import importlib
import importlib.util
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARK = re.compile(r"<!-- output of: (.+?) -->")
ELSEWHERE = ("assay card delta_net --tier standard --stored | head -12", "assay card validity")
"""Run in full by test_readme.py and card/test_validity.py."""
COMMANDS = [(page.name, command) for page in PAGES for command in MARK.findall(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("page", "command"), [each for each in COMMANDS if each[1] not in ELSEWHERE])
def test_a_command_whose_output_is_shown_can_be_planned(
    cli: Callable[..., tuple[int, str, str]], tmp_path: Path, page: str, command: str
) -> None:
    words = [word for word in shlex.split(command.partition("|")[0]) if not re.fullmatch(r"[A-Z]+=\S*", word)]
    assert words[0] == "assay", f"{page}: {command}"
    reads = "--choices" in words or words[1] == "findings"  # and computes nothing
    light = [] if reads else ["--dry-run", "--out", str(tmp_path)]
    code, out, err = cli(*words[1:], *light)
    assert code == 0, err
    assert out.strip() and not list(tmp_path.iterdir())


def test_every_shown_output_is_where_it_can_be_refreshed(script: Callable[[str], object]) -> None:
    block = script("docs/refresh.py").BLOCK  # type: ignore[attr-defined]
    found = [(page.name, m["command"]) for page in PAGES for m in block.finditer(page.read_text(encoding="utf-8"))]
    assert found == COMMANDS and len(found) >= 5


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    paths = re.findall(r"(?<![\w/])(?:tests|drills|benchmarks)/[\w./-]*\w", text)
    assert not [path for path in paths if not (ROOT / path).exists()]
    files = set(re.findall(r"(?<![\w/])test_\w+\.py", text))
    assert files <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.py")), ids=lambda path: path.name)
def test_a_script_of_the_documents_imports_what_is_there(path: Path) -> None:
    imports = [
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
    ]
    for node in (node for node in imports if (node.module or "").partition(".")[0] == "assay"):
        module = importlib.import_module(str(node.module))
        for name in (name.name for name in node.names if hasattr(module, "__path__")):
            if importlib.util.find_spec(f"{node.module}.{name}"):  # a module is an attribute once it is imported
                importlib.import_module(f"{node.module}.{name}")
        absent = [name.name for name in node.names if not hasattr(module, name.name)]
        assert not absent, f"{node.module} has no {', '.join(absent)}"


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_bench_runs_only_what_needs_no_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = subprocess.run(["make", "-n", "bench"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    scripts = re.findall(r"benchmarks/\w+\.py", shown)
    assert "benchmarks/store.py" in scripts and len(scripts) >= 8

    def parsed(parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        raise LookupError([action.dest for action in parser._actions if action.required and action.nargs != "*"])

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in scripts:
        monkeypatch.setattr(sys, "argv", [name])
        with pytest.raises(LookupError) as needed:
            runpy.run_path(str(ROOT / name), run_name="__main__")
        assert needed.value.args == ([],), name


@pytest.mark.parametrize(("name", "page"), [("card.png", "README.md"), ("card_smoke.png", "docs/card.md")])
def test_a_picture_of_a_card_says_what_the_page_beside_it_says(
    name: str, page: str, script: Callable[[str], ModuleType]
) -> None:
    said = script("docs/picture.py").said(name)
    assert said.startswith("card of delta_net") and said in (ROOT / page).read_text(encoding="utf-8"), (
        f"the picture is of another card: python docs/picture.py {name}"
    )
