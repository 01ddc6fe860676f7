"""docs/sae.md shows a coder in one file: pasted, it keeps every promise and is trained beside the others."""

import re
from pathlib import Path

import pytest

from assay.command.cli import main

PAGE = (Path(__file__).parents[3] / "docs" / "sae.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## A coder of your own")[2].partition("\n## ")[0]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Of the section, in a folder that has its file."""
    monkeypatch.chdir(tmp_path)
    ((name, text),) = re.findall(r"```python (\S+)\n(.*?)```", SECTION, re.DOTALL)
    Path(name).write_text(text)
    (block,) = re.findall(r"```bash\n(.*?)```", SECTION, re.DOTALL)
    return [line.split()[1:] for line in block.strip().splitlines()]


def test_the_coder_of_the_page_keeps_every_promise(
    commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(commands[0]) == 0
    said = capsys.readouterr().out
    assert "pass  `encode` gives the code of the loss" in said and "fail" not in said


@pytest.mark.slow
def test_the_coder_of_the_page_is_a_curve_beside_topk(
    commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    _, train, report = commands
    assert main([*train, "--seeds", "0", "--lrs", "3e-3", "--epochs", "20", "--executor", "serial", "--quiet"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^16 +hoyer", said, re.MULTILINE) and re.search(r"^16 +topk", said, re.MULTILINE)
    assert main(report) == 0 and Path("results/report.html").is_file()
