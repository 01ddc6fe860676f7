"""docs/findings_modular.py writes its section from stored records, and nothing else on the page."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def findings(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("docs/findings_modular.py")


Cli = Callable[..., tuple[int, str, str]]


def swept(cli: Cli, out: Path, *words: str) -> Path:
    """A tiny store, and a page with room for its section."""
    quick = ["--P", "7", "--batch", "9", "--epochs", "3", "--device", "cpu", "--executor", "serial", "--quiet"]
    code, _, err = cli("modular", "sweep", *quick, *words, "--out", out)
    assert code == 0, err
    page = out / "page.md"
    page.write_text("before\n<!-- modular: begin -->\nold\n<!-- modular: end -->\nafter\n")
    return page


def test_the_section_is_written_from_records(findings: ModuleType, cli: Cli, tmp_path: Path) -> None:
    page = swept(cli, tmp_path, "--dimensions", "2", "4", "11", "12", "--seeds", "0", "1")
    assert findings.main([str(tmp_path), "--page", str(page), "--permutations", "9"]) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "### P = 7" in text and "seeds 0 to 1" in text
    assert "**Not within 3 epochs; with longer training, not known.** Of 4" in text and "Another 4 were stopped" in text
    assert "**Undecided:**" in text and "| constructed | 4 | 4 | 1.000 |" in text and "scrambled" in text


@pytest.mark.parametrize("widths", [["2", "3", "4"], ["2", "12"]], ids=str)
def test_one_seed_and_narrow_or_few_widths_are_a_section_too(
    widths: list[str], findings: ModuleType, cli: Cli, tmp_path: Path
) -> None:
    page = swept(cli, tmp_path, "--dimensions", *widths, "--seeds", "3")
    assert findings.main([str(tmp_path), "--page", str(page), "--permutations", "9"]) == 0
    text = page.read_text()
    assert "seed 3, at most 3 epochs" in text
    if len(widths) == 3:
        assert "no width of 10 or more" in text and "no width has two models" in text
    else:
        assert text.count("fewer than three widths") == 3 and "Similarity:" not in text


@pytest.mark.parametrize("page", ["no markers at all", None])
def test_a_page_without_a_place_for_it_is_an_error(
    page: str | None, findings: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "page.md"
    if page is not None:
        path.write_text(page)
    with pytest.raises(SystemExit) as left:
        findings.main([str(tmp_path), "--page", str(path)])
    assert left.value.code == 2 and "page.md" in capsys.readouterr().err
    assert page is None or path.read_text() == page


TN = {
    "same band": 0.5, "other bands": 0.2, "beyond (band)": 0.2, "p (band)": 0.01, "r with min(d, d')": 0.4,
    "p (min)": 0.01,
}  # fmt: skip


def test_blocks_are_what_strength_does_not_explain(findings: ModuleType) -> None:
    assert "**Confirmed.**" in findings._blocks(TN) and "wide models are more alike" in findings._blocks(TN)
    for other in ({"p (band)": 0.2}, {"beyond (band)": 0.05}):
        assert "**No.**" in findings._blocks(TN | other)
    for other in ({"p (min)": 0.3}, {"r with min(d, d')": 0.1}):
        assert "wide models are more alike" not in findings._blocks(TN | other)


def test_answers_are_high_or_not_and_one_algorithm_must_rise_above_both_floors(findings: ModuleType) -> None:
    image = {"both perfect": 0.9, "both >= 0.95": 0.9, "untrained": 0.1, "scrambled": 0.3}
    plain = {"both perfect": 0.2, "both >= 0.95": 0.2}
    said = findings._answers({"both perfect": 0.85, "both >= 0.95": 0.2}, image, plain)
    assert "**Confirmed.**" in said and "in part one algorithm" in said
    assert "**No.**" in findings._answers({"both perfect": 0.5, "both >= 0.95": 0.9}, image, plain)
    assert "nearly are: no." in findings._answers({"both perfect": None, "both >= 0.95": 0.5}, image, plain)
    assert "**Undecided:**" in findings._answers({"both perfect": None, "both >= 0.95": None}, image, plain)
    act = {"both perfect": 0.85}
    for floors, weights in ((image | {"scrambled": 0.85}, plain), (image | {"untrained": 0.85}, plain),
                            (image, {"both perfect": 0.85})):  # fmt: skip
        said = findings._answers(act, floors, weights)
        assert "no sign of one algorithm" in said and "in part one algorithm" not in said


def test_js_is_judged_by_a_law_that_no_solver_turns(findings: ModuleType) -> None:
    js = dict.fromkeys(("same width", "other widths", "beyond (width)", "p (width)", "untrained", "scrambled"), 0.1)
    js |= {"all pairs": 0.2, "r with diagonal": 0.7, "p (diagonal)": 0.001}
    assert "**Confirmed.**" in findings._frequencies(js)
    for other in ({"r with diagonal": 0.3}, {"p (diagonal)": 0.2}):
        assert "**No.**" in findings._frequencies(js | other)
    assert "no width has two models" in findings._frequencies(js | {"same width": None})


def test_accuracy_is_confirmed_refuted_or_censored(findings: ModuleType) -> None:
    rows = [{"d_hidden": d, "perfect": p, "val acc": {"mean": 1.0}} for d, p in ((8, "0/5"), (10, "5/5"), (12, "5/5"))]
    assert "**Confirmed.** Of 10 models" in findings._accuracy(rows, 500)
    rows[1]["perfect"] = "4/5"
    assert "**No.** Of 10 models with d >= 10, 9" in findings._accuracy(rows, 500)
    assert "every seed perfect is 12" in findings._accuracy(rows, 500)
    rows[1]["perfect"] = rows[2]["perfect"] = "2/5"
    found = findings._accuracy(rows, 500)
    assert "**Not within 500 epochs; with longer training, not known.** Of 10 models" in found
    assert "4 answered every validation pair within 500 epochs. Another 6 were stopped" in found
    rows[1]["diverged"] = 3
    assert "**No.**" in findings._accuracy(rows, 500), "a model that diverged was not stopped by the limit"


def test_room_is_missing_only_where_something_is(findings: ModuleType) -> None:
    rows = [{"model": "trained", "at width 4": 0.6}, {"model": "cut to units", "at width 4": 0.3}]
    assert "learning, not room" in findings._room(rows)
    rows[0]["at width 4"] = 1.0
    assert "nothing is missing" in findings._room(rows) and "nothing is missing" in findings._room(rows[:1])
    assert findings._room([{"model": "trained", "at width 4": None}]) == "No model was trained with four."
