"""What `assay demo` leaves on the screen."""

from collections.abc import Callable
from pathlib import Path

import pytest

from assay.command import verbs
from assay.report.section import Section

Cli = Callable[..., tuple[int, str, str]]


def test_the_demo_ends_with_findings_and_the_page_in_25_lines(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []

    def run(name: str, words: list[str], show: Callable[[Section, Path, str], None]) -> int:
        section = Section(name)
        section.finding(f"In these runs {name} scores " + "higher than any other " * 40)
        section.table("scores", [{"score": 1.0}] * 100)
        show(section, tmp_path / name, "")
        said.append(name)
        return 0

    def card(words: list[str]) -> int:
        assert len(said) == 5, "the card comes last"
        print(f"card of {words[0]}")
        return 0

    (tmp_path / ".store").mkdir()
    monkeypatch.setattr(verbs, "run_study", run)
    monkeypatch.setattr(verbs, "card", card)
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = cli("demo", "--out", tmp_path)
    lines = out.splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("expressivity: In these runs"))
    last = lines[first:]
    assert code == 0 and len(last) <= 25 and all(len(line) <= 80 for line in last if "report.html" not in line), (
        "a path may be longer"
    )
    assert all(any(line.startswith(f"{name}: ") for line in last) for name in said) and len(said) == 5
    assert "$ assay card delta_net" in out and "card of delta_net" in lines[:first]
    assert str(tmp_path / "report.html") in last
    assert last[-1].endswith(": assay card my_mixer.py"), "what to do next"
    assert (tmp_path / "icl" / "scores.csv").is_file() and (tmp_path / "icl" / "findings.json").is_file()


def test_a_study_without_a_result_says_so(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".store").mkdir()
    monkeypatch.setattr(verbs, "run_study", lambda name, words, show: 1)
    monkeypatch.setattr(verbs, "card", lambda words: 0)
    code, out, _ = cli("demo", "--out", tmp_path)
    assert code == 1 and "icl: no result" in out
