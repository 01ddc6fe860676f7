"""The README is a program: a section's files are written and its commands run, in order, in one fresh folder."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTIONS = {
    section.partition("\n")[0]: blocks
    for section in re.split(r"^## ", README, flags=re.MULTILINE)
    if (blocks := re.findall(r"```(bash|python)(?: (\S+))?\n(.*?)```", section, re.DOTALL))
}
MIXER = "Your mixer in one file, here `my_mixer.py`, whole"
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def run(command: str | list[str], folder: Path) -> str:
    ran = subprocess.run(
        command,
        shell=isinstance(command, str),
        cwd=folder,
        env=os.environ | {"PATH": PATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def commands_of(section: str, folder: Path) -> Iterator[str]:
    """The section's commands in order; its files are written on the way."""
    for language, name, text in SECTIONS[section]:
        if name:
            (folder / name).write_text(text)
        else:
            assert language == "bash", "a program of the README has a name"
            commands = [line.partition("#")[0].strip() for line in text.strip().splitlines()]
            yield from (command for command in commands if not command.startswith(("make ", "source ")))


@pytest.mark.timeout(1200)  # seconds of work, on a machine that may be busy
@pytest.mark.parametrize("section", SECTIONS)
def test_every_block_runs(
    section: str, tmp_path: Path, cli: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it stands, in this process: what takes long is to import torch in others."""
    monkeypatch.chdir(tmp_path)
    said = ""
    for command in commands_of(section, tmp_path):
        program, *words = shlex.split(command)
        code, out, err = cli(*words)
        assert program == "assay" and code == 0, f"{command}\n{out}\n{err}"
        said += out
    if section == MIXER:
        assert "sum_memory" in said and "19 mixers whose records ship" in said


def test_no_section_with_commands_is_left_out() -> None:
    assert {"assay", MIXER} <= {section.strip("# ") for section in SECTIONS}
    assert len(README.splitlines()) <= 150, "what is longer belongs to docs/"


@pytest.mark.parametrize(
    "target", [*re.findall(r"^make (\S+)", README, re.MULTILINE), "bench", "docs", "test-full", "lint", "setup"]
)
def test_make_knows_its_targets(target: str) -> None:
    assert run(["make", "-n", target], ROOT)


def test_every_study_and_every_folder_of_the_layout_is_named() -> None:
    layout = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("## Where things are")[2]
    named = set(re.findall(r"^(?:  )?(\w+)/", layout.partition("```text\n")[2].partition("```")[0], re.MULTILINE))
    there = {path.name for path in (ROOT / "src/assay").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert there <= named, f"docs/architecture.md does not name {there - named}"
    assert not [name for name in named - there - {"src"} if not (ROOT / name).is_dir()]
    shown = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    assert shown == {path.name for path in (ROOT / "src/assay/studies").iterdir() if (path / "__init__.py").exists()}


def test_the_card_in_the_readme_is_what_is_printed(
    cli: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, shown = re.findall(r"<!-- output of: (.+?) -->\n```text\n(.*?)```", README, re.DOTALL)[0]
    words, lines = re.findall(r"assay (card .+) \| head -(\d+)", command)[0]
    monkeypatch.setenv("COLUMNS", "80")  # as in a pipe
    code, out, err = cli(*words.split())
    assert code == 0, err
    assert "".join(out.splitlines(keepends=True)[: int(lines)]) == shown
