"""docs/findings_modular.py writes its section from stored records, and nothing else on the page."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from assay.metrics.intervals import Interval
from assay.studies.modular.matrices import weights_of
from assay.studies.modular.metrics.tensor_similarity import symmetric_similarity_matrix
from assay.studies.modular.spec.compression import run_sweep


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
    page.write_text("before\n<!-- modular: begin -->\nlast time\n<!-- modular: end -->\nafter\n")
    return page


def test_the_section_is_written_from_records(findings: ModuleType, cli: Cli, tmp_path: Path) -> None:
    page = swept(cli, tmp_path, "--dimensions", "2", "4", "11", "12", "--seeds", "0", "1")
    assert findings.main([str(tmp_path), "--page", str(page), "--permutations", "9"]) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "last time" not in text
    assert "### P = 7" in text and "seeds 0 to 1" in text
    assert "**No, not within 3 epochs.** Of 4 models with d >= 10, 0 answered each of their 12 validation" in text
    assert "37 train, 12 validate" in text and "and 0 test" in text and "That limit stopped 4" in text
    assert "**Undecided:**" in text and "| constructed | 4 | 4 | 1.0000 |" in text and "scrambled" in text


def test_every_row_of_accuracies_has_its_interval_and_its_seeds_between_floors_and_a_ceiling(
    findings: ModuleType, cli: Cli, tmp_path: Path
) -> None:
    page = swept(cli, tmp_path, "--dimensions", "2", "4", "11", "--seeds", "0", "1", "2", "--test_share", "0.125")
    assert findings.main([str(tmp_path), "--page", str(page), "--permutations", "9"]) == 0
    lines = page.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| model | val acc"))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[start + 2 : lines.index("", start)]]
    assert [row[0] for row in rows] == [
        "one answer", "training pairs by heart", "d = 2", "d = 4", "d = 11", "all d >= 10", "four units by hand",
    ]  # fmt: skip
    assert all(re.fullmatch(r"[\d.]+ ±[\d.]+", cell) for row in rows for cell in row[1:4]), rows
    assert {row[-1] for row in rows} == {"3"}


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


def alike(
    act: Interval, image: Interval, plain: float, untrained: float = 0.1, scrambled: float = 0.3
) -> dict[str, Any]:
    floors = {"untrained": untrained, "scrambled": scrambled}
    return {
        "activation": {"mean": act, "pairs": 3, "models": 3, "least": 0.0, "most": 1.0},
        "TN, best image": {"mean": image, **floors},
        "TN, reachable, centred": {"mean": Interval(plain, plain, plain, 3)},
    }


HIGH, MIDDLE, LOW = Interval(0.9, 0.85, 0.95, 3), Interval(0.8, 0.7, 0.9, 3), Interval(0.5, 0.4, 0.6, 3)


def test_answers_are_high_or_not_by_their_interval(findings: ModuleType) -> None:
    perfect = "perfect models"
    assert "**Confirmed.** The 3 pairs of 3 perfect models" in findings._answers(perfect, alike(HIGH, HIGH, 0.2))
    assert "**No.**" in findings._answers(perfect, alike(LOW, HIGH, 0.2))
    assert "**Undecided:**" in findings._answers(perfect, alike(MIDDLE, HIGH, 0.2))
    assert "**No.**" in findings._answers(perfect, alike(Interval(0.5, None, None, 1), HIGH, 0.2)), "one pair"
    assert "nearly are: no." in findings._answers("models with a val acc of 0.95 or more", alike(LOW, HIGH, 0.2))
    assert "**Undecided:**" in findings._answers("", {})


def test_one_algorithm_must_rise_above_both_floors_and_the_weights_as_they_are(findings: ModuleType) -> None:
    assert "in part one algorithm" in findings._answers("perfect models", alike(HIGH, HIGH, 0.2))
    wide = Interval(0.9, 0.25, 1.0, 3)
    for found in (alike(HIGH, HIGH, 0.2, untrained=0.85), alike(HIGH, HIGH, 0.2, scrambled=0.85),
                  alike(HIGH, HIGH, 0.85), alike(HIGH, wide, 0.2)):  # fmt: skip
        said = findings._answers("perfect models", found)
        assert "no sign of one algorithm" in said and "in part one algorithm" not in said


def test_perfect_models_and_their_floors_are_of_the_same_pairs(
    findings: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_sweep(P=7, dimensions=[2, 4, 9], seeds=[0, 1], epochs=1, batch=9)
    accuracies = dict(zip(whole.models, (0.1, 1.0, 0.2, 1.0, 1.0, 0.96), strict=True))
    whole = replace(whole, val_accs=accuracies)
    seen = list[list[Any]]()
    floors = findings.floors
    monkeypatch.setattr(
        findings, "floors", lambda measure, sweep: seen.append(list(sweep.models)) or floors(measure, sweep)
    )
    what, rows = findings.alike_rows(whole, 60)
    assert what == "perfect models" and all(row["models"] == 3 and row["pairs"] == 3 for row in rows.values())
    perfect = [key for key, accuracy in accuracies.items() if accuracy == 1]
    assert seen and all(keys == perfect for keys in seen)
    matrix = symmetric_similarity_matrix(weights_of(whole.only(perfect).models, 7))
    assert rows["TN"]["mean"].mean == pytest.approx(matrix[np.triu_indices(3, 1)].mean())
    some = findings.alike_rows(whole, 2)
    assert some[1]["TN"]["pairs"] == 1 and "The 1 pairs of 2 of the 3 perfect models have" in findings._answers(*some)
    one = replace(whole, val_accs=accuracies | dict.fromkeys(perfect[1:], 0.5))
    assert findings.alike_rows(one, 60)[0] == "models with a val acc of 0.95 or more"


def test_js_is_judged_by_a_law_that_no_solver_turns(findings: ModuleType) -> None:
    js = dict.fromkeys(("same width", "other widths", "beyond (width)", "p (width)", "untrained", "scrambled"), 0.1)
    js |= {"all pairs": 0.2, "r with diagonal": 0.7, "p (diagonal)": 0.001}
    js |= {"r with min(d, d')": -0.1, "diagonal, r with min(d, d')": -0.2}
    assert "**Confirmed.**" in findings._frequencies(js)
    for other in ({"r with diagonal": 0.3}, {"p (diagonal)": 0.2}):
        assert "**No.**" in findings._frequencies(js | other)
    both_fall = js | {"r with min(d, d')": -0.8, "diagonal, r with min(d, d')": -0.8}
    said = findings._frequencies(both_fall)
    assert "**No.**" in said and "it correlates 0.70" in said and "0.17 is left" in said, (
        "what width explains is no sign"
    )
    assert "no width has two models" in findings._frequencies(js | {"same width": None})


def test_a_partial_correlation_is_that_of_what_a_third_does_not_explain(findings: ModuleType) -> None:
    rng = np.random.default_rng(0)
    third = rng.normal(size=200)
    one, other = (rng.normal(size=200) + slope * third for slope in (1.0, -2.0))
    rests = [x - np.polyval(np.polyfit(third, x, 1), third) for x in (one, other)]
    r, first, second = (np.corrcoef(*pair)[0, 1] for pair in ((one, other), (one, third), (other, third)))
    assert findings.partial_correlation(r, first, second) == pytest.approx(np.corrcoef(*rests)[0, 1])
    assert np.isnan(findings.partial_correlation(1.0, 1.0, 1.0)), "nothing is left to correlate"


def test_accuracy_is_confirmed_or_refuted_within_its_epochs(findings: ModuleType) -> None:
    smallest = {
        "pairs": "3072/512/512",
        "mean >= 0.95": 4,
        "half perfect": "12.0 [8.0, > 64]",
        "every seed perfect": 10,
    }
    wide = {"perfect": "10/10", "diverged": 0, "val acc": Interval(0.99, 0.98, 1.0, 5), "test acc": None}
    said = findings._accuracy(wide, smallest, 500)
    assert (
        "**Confirmed.** Of 10 models with d >= 10, 10 answered each of their 512" in said and "from d = 10 on" in said
    )
    assert "12.0 [8.0, > 64]" in said and "0.9900 ± 0.0100" in said and "a mean of 0.95 is kept from d = 4 on" in said
    none = smallest | {"every seed perfect": None, "mean >= 0.95": None}
    said = findings._accuracy(wide | {"perfect": "9/10"}, none, 500)
    assert "**No, not within 500 epochs.**" in said and "That limit stopped 1, and longer" in said
    assert "No width has, with all wider ones, every seed perfect" in said and "no width keeps a mean" in said
    said = findings._accuracy(wide | {"perfect": "9/10", "diverged": 1}, none, 500)
    assert "**No.**" in said and "limit" not in said, "a model that diverged was not stopped by the limit"
    assert "**Undecided:**" in findings._accuracy(None, none, 500)


def test_room_is_missing_only_where_something_is(findings: ModuleType) -> None:
    some, whole = Interval(0.6, 0.5, 0.7, 5), Interval(1.0, 1.0, 1.0, 5)
    rows = [{"model": "trained", "at width 4": some}, {"model": "cut to units", "at width 4": some}]
    assert "learning, not room" in findings._room(rows) and "0.600 [0.500, 0.700]" in findings._room(rows)
    rows[0]["at width 4"] = whole
    assert "nothing is missing" in findings._room(rows) and "nothing is missing" in findings._room(rows[:1])
    assert findings._room([{"model": "trained", "at width 4": None}]) == "No model was trained with four."
