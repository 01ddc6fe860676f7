"""docs/your-own-task.md is a program: its file is short, keeps every promise and trains."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "your-own-task.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(bash|python)(?: (\S+))?\n(.*?)```", PAGE, re.DOTALL)


def test_the_file_is_under_60_lines_and_every_command_runs(
    cli: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undrawn: None
) -> None:
    monkeypatch.chdir(tmp_path)
    said = []
    for language, name, text in BLOCKS:
        if language == "python":
            assert name and text.count("\n") < 60
            (tmp_path / name).write_text(text)
            continue
        for line in text.strip().splitlines():
            program, *words = shlex.split(line)
            computes = words[0] == "icl"
            code, out, err = cli(*words, *(["--executor", "serial", "--device", "cpu"] if computes else []))
            assert program == "assay" and code == 0, f"{line}\n{out}\n{err}"
            said.append(out)
    check, references, trained = said
    assert "fail" not in check and check.count("pass") >= 9
    assert "(oracle)" in references and "(last token)" in references and "1.0000" in references
    assert "attention" in trained


def test_the_oracle_of_the_page_is_found_out_when_it_reads_the_targets(
    cli: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (text,) = (text for language, _, text in BLOCKS if language == "python")
    path = tmp_path / "cheating_task.py"
    path.write_text(text.replace("        return batch.inputs.cummax(1).values", "        return batch.targets"))
    code, out, _ = cli("check", path)
    assert code == 1 and "the answers of the oracle move" in out
