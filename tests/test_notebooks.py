"""The tutorials run as they stand, on small sizes, and become notebooks."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_models import tiny_model as tiny_model

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
SMALL = {
    "P": 7, "DIMENSIONS": [2, 4, 9], "SEEDS": [0, 1], "EPOCHS": 3, "BATCH": 9, "STEPS": 4, "MODEL": '"models/tiny"',
    "BUDGETS": [4, 8], "CONTEXT": 16, "DOCUMENTS": 20,
}  # fmt: skip


def run_small(name: str, folder: Path) -> None:
    """The file with its parameters replaced, executed from top to bottom."""
    text = (NOTEBOOKS / name).read_text(encoding="utf-8")
    for parameter, value in SMALL.items():
        text = re.sub(rf"^{parameter} = .*$", f"{parameter} = {value}", text, flags=re.MULTILINE)
    path = folder / Path(name).name
    path.write_text(text, encoding="utf-8")
    runpy.run_path(str(path), run_name="__main__")


def test_the_modular_tutorials_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_small("modular/training.py", tmp_path)
    assert "four units by hand: 1.000 of all 49 pairs" in capsys.readouterr().out
    run_small("modular/similarity_analysis.py", tmp_path)
    said = capsys.readouterr().out
    assert "TN and Activation" in said and "JS           same width" in said
    assert (tmp_path / "comp_diagrams" / "tn_similarity.npy").is_file()
    run_small("modular/frequency_analysis.py", tmp_path)
    assert "d=9" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("icl/a_mixer_of_your_own.py", "pass Outputs up to t"),
        pytest.param("expressivity/an_encoder_of_your_own.py", "'expressivity': [", marks=pytest.mark.slow),
        pytest.param("sae/coders_compared.py", "rows of 64 numbers to train on", marks=pytest.mark.slow),
        pytest.param("perplexity/attention_made_sparse.py", "streaming_llm", marks=pytest.mark.slow),
    ],
)
def test_the_tutorial_of_a_study_runs(
    name: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    if name.startswith("perplexity"):
        request.getfixturevalue("tiny_model")
    monkeypatch.chdir(tmp_path)
    run_small(name, tmp_path)
    assert said in capsys.readouterr().out
    assert list(Path("results/.store").glob("*/*/record.json"))


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.rglob("*.py")), ids=lambda path: path.stem)
def test_a_tutorial_becomes_a_notebook(path: Path, tmp_path: Path) -> None:
    target = tmp_path / f"{path.stem}.ipynb"
    subprocess.run([sys.executable, "-m", "jupytext", "--to", "ipynb", "-o", target, path], check=True)
    cells = json.loads(target.read_text())["cells"]
    assert cells[0]["cell_type"] == "markdown" and sum(cell["cell_type"] == "code" for cell in cells) >= 5
