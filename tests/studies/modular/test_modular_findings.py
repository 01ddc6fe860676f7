"""docs/findings_modular.py writes its section from stored records, and nothing else on the page."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "docs" / "findings_modular.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("findings_modular", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_section_is_written_from_records(
    script: ModuleType, cli: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    words = ["--P", "7", "--batch", "9", "--epochs", "3", "--dimensions", "2", "4", "11", "12", "--seeds", "0", "1"]
    code, _, err = cli(
        "modular", "sweep", *words, "--device", "cpu", "--executor", "serial", "--quiet", "--out", tmp_path
    )
    assert code == 0, err
    page = tmp_path / "page.md"
    page.write_text(f"before\n{script.BEGIN}\nold\n{script.END}\nafter\n")
    assert script.main([str(tmp_path), "--page", str(page), "--permutations", "9"]) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "### P = 7" in text and "**No.** Of 4 models with d >= 10, 0 answered" in text
    assert "**Undecided:**" in text and "| constructed | 4 | 4 | 1.000 |" in text


def test_verdicts_follow_the_numbers(script: ModuleType) -> None:
    tn = {"same quarter": 0.5, "other quarters": 0.2, "r with min(d, d')": 0.4, "p (quarter)": 0.01, "p (min)": 0.01}
    assert "Confirmed" in script._blocks(tn) and "**No.**" in script._blocks(tn | {"p (quarter)": 0.2})
    assert "**No.**" in script._blocks(tn | {"other quarters": 0.45})
    image = {"both perfect": 0.9, "both >= 0.95": 0.9, "untrained": 0.1}
    assert "**Confirmed.**" in script._answers({"both perfect": 0.85, "both >= 0.95": 0.2}, image)
    assert "**No.**" in script._answers({"both perfect": 0.5, "both >= 0.95": 0.9}, image)
    assert "nearly are: no." in script._answers({"both perfect": None, "both >= 0.95": 0.5}, image)
    rows = [{"d_hidden": d, "perfect": p, "val acc": {"mean": 1.0}} for d, p in ((8, "0/5"), (10, "5/5"), (12, "5/5"))]
    assert "**Confirmed.** Of 10 models" in script._accuracy(rows, 500)
    rows[1]["perfect"] = "4/5"
    assert "**No.** Of 10 models with d >= 10, 9" in script._accuracy(rows, 500)
    assert "every seed perfect is 12" in script._accuracy(rows, 500)
