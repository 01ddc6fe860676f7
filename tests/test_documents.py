"""The documents show what commands print: each of those commands must still be one."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARK = re.compile(r"<!-- output of: (.+?) -->")
COMMANDS = [(page.name, command) for page in PAGES for command in MARK.findall(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_whose_output_is_shown_can_be_planned(
    cli: Callable[..., tuple[int, str, str]], tmp_path: Path, page: str, command: str
) -> None:
    words = [word for word in shlex.split(command) if not re.fullmatch(r"[A-Z]+=\S*", word)]
    assert words[0] == "assay", f"{page}: {command}"
    light = [] if "--choices" in words else ["--dry-run", "--out", str(tmp_path)]
    code, out, err = cli(*words[1:], *light)
    assert code == 0, err
    assert out.strip() and not list(tmp_path.iterdir())


def test_every_shown_output_is_where_it_can_be_refreshed(script: Callable[[str], object]) -> None:
    block = script("docs/refresh.py").BLOCK  # type: ignore[attr-defined]
    found = [(page.name, m["command"]) for page in PAGES for m in block.finditer(page.read_text(encoding="utf-8"))]
    assert found == COMMANDS and len(found) >= 5
