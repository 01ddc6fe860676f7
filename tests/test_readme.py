"""The README is a program: a section's files are written and its commands run, in order, in one fresh folder."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import assay

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTIONS = {
    section.partition("\n")[0]: blocks
    for section in re.split(r"^## ", README, flags=re.MULTILINE)
    if (blocks := re.findall(r"```(bash|python)(?: (\S+))?\n(.*?)```", section, re.DOTALL))
}
STUDIES = ("expressivity", "icl", "modular", "perplexity", "sae")
QUICK = {"batch_eval": 256, "retr_steps": 20, "retr_train_steps": 3}
"""Sizes of expressivity: in the default suite the words are tried; the slow tests run them at the sizes they have."""
READINGS = ("similarity", "frequencies")
"""Verbs that compute nothing: they take no executor."""
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


def blocks_of(section: str, folder: Path) -> Iterator[tuple[str, str]]:
    """The section's programs in order, ("python", text) or ("bash", command); its files are written on the way."""
    for language, name, text in SECTIONS[section]:
        if name:
            (folder / name).write_text(text)
        elif language == "python":
            yield language, text
        else:
            commands = [line.partition("#")[0].strip() for line in text.strip().splitlines()]
            yield from ((language, command) for command in commands if not command.startswith("make "))


def look_at(section: str, said: str, folder: Path) -> None:
    if section == "Your idea in one file":
        assert "MaxPool" in said and "pass" in said
        assert (folder / "results" / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.timeout(1200)  # half a minute of work, on a machine that may be busy
@pytest.mark.parametrize("section", SECTIONS)
def test_every_block_runs_as_it_stands(section: str, tmp_path: Path) -> None:
    blocks = blocks_of(section, tmp_path)
    said = [run(text if kind == "bash" else [sys.executable, "-c", text], tmp_path) for kind, text in blocks]
    look_at(section, "\n".join(said), tmp_path)


@pytest.mark.timeout(1200)  # half a minute of work, on a machine that may be busy
@pytest.mark.parametrize("section", SECTIONS)
def test_every_block_runs(
    section: str, tmp_path: Path, cli: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it stands, but small, and in this process: what takes long is to import torch in each of a dozen others."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assay, "run", partial(assay.run, executor="serial", **QUICK), raising=True)
    said = []
    for kind, text in blocks_of(section, tmp_path):
        if kind == "python":
            exec(compile(text, section, "exec"), {"__name__": "__main__"})
            continue
        program, *words = shlex.split(text)
        computes = words[0] in STUDIES and not {"--dry-run", "--choices", *READINGS} & set(words)
        small = [f"--{name}={size}" for name, size in QUICK.items() if words[0] == "expressivity"]
        code, out, err = cli(*words, *(["--executor", "serial", *small] if computes else []))
        assert program == "assay" and code == 0, f"{text}\n{out}\n{err}"
        said.append(out)
    look_at(section, "\n".join(said), tmp_path)


def test_no_section_with_commands_is_left_out() -> None:
    assert {"assay", "Your idea in one file, here `my_encoder.py`, whole"} <= {
        section.strip("# ") for section in SECTIONS
    }
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


@pytest.mark.slow
def test_the_table_in_the_readme_is_what_the_demo_prints(tmp_path: Path) -> None:
    command, shown = re.findall(r"<!-- output of: (.+?) -->\n```text\n(.*?)```", README, re.DOTALL)[0]
    now = run(command, tmp_path)
    assert words_without_numbers(now) == words_without_numbers(shown)
    pairs = list(zip(numbers(now, "R2 "), numbers(shown, "R2 "), strict=True))
    assert len(pairs) == 6 and all(abs(one - other) < 0.02 for one, other in pairs)


def words_without_numbers(text: str) -> list[str]:
    return re.findall(r"[A-Za-z_]{2,}", re.sub(r"[0-9.e+±/-]+", " ", text))


def numbers(text: str, column: str) -> list[float]:
    """The first numbers under a column's header, row by row."""
    lines = text.splitlines()
    start = lines[0].index(column)
    rows = lines[2 : 2 + next(i for i, line in enumerate(lines[2:]) if not line)]
    return [float(line[start:].split()[0]) for line in rows]
