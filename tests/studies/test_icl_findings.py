"""docs/findings_icl.py writes its tables from stored records, and nothing else on the page."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from assay.api import configure
from assay.core.store import Store
from assay.core.study import Outcome
from assay.mixers import mixers
from assay.studies.icl.icl import InContext

PAGE = "before\n<!-- capacity: begin -->\nold\n<!-- capacity: end -->\nafter\n"


@pytest.fixture(scope="module")
def findings(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("docs/findings_icl.py")


def stored(
    out: Path, *words: str, seeds: tuple[int, ...] = (0, 1), by_length: dict[str, float] | None = None, **options: int
) -> Path:
    """Records of models that hold 4 pairs with a convolution in front, and hardly anything else."""
    study = configure(InContext, "capacity", {"seeds": seeds, **options})
    for word in words:
        mixer = mixers.parse(word)
        for run in replace(study, model=replace(study.model, seq_mixer=mixer)).plan():
            if run.options.get("model") is None:
                continue
            held = 1.0 if mixer.conv else 0.25 + 0.01 * run.seed
            accuracy = {str(4 * 2**i): held / 4**i for i in range(7)}
            Store(out).commit(
                Outcome(
                    run,
                    {
                        "accuracy": 0.5, "exact_match": 0.1, "by_size": accuracy, "params": 10, "layer_params": 10,
                        "flops_per_token": 10, "state_scalars": 2 * mixer.state_size(64, 1024),
                        "curve": [{"step": 1, "accuracy": 0.5}], **({"by_length": by_length} if by_length else {}),
                    },
                )
            )  # fmt: skip
    page = out / "page.md"
    page.write_text(PAGE)
    return page


def test_tables_are_written_between_the_marks_convolved_mixers_apart(findings: ModuleType, tmp_path: Path) -> None:
    page = stored(tmp_path, "gru:conv=4", "gru:conv=0", "delta_net:num_heads=4", "delta_net:num_heads=1:conv=4")
    assert findings.main([str(tmp_path), "--page", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n<!--") and text.endswith("-->\nafter\n") and "old" not in text
    with_it, without = text.split("Without one:")
    assert "8 models on cpu, seeds 0, 1." in text and "26 settings 22 were not measured yet" in text
    assert "`delta_net:num_heads=1` | 4.4" in with_it and "`delta_net:num_heads=4` | 4.4" in with_it
    assert "| `gru` | < 4 |" in without and "delta_net" not in without and "| 2,048 |" in with_it
    assert "changed" not in text


def test_a_setting_that_the_preset_no_longer_has_stands_in_until_all_are_measured(
    findings: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["gru:conv=4", "retention:conv=4"]
    monkeypatch.setattr(findings, "PRESETS", {"capacity": {"grid": {"model.seq_mixer": words}}})
    page = stored(tmp_path, "gru:conv=4", "retention:num_heads=1:conv=4")
    assert findings.main([str(tmp_path), "--page", str(page)]) == 0
    text = " ".join(page.read_text().split())
    assert "Of the preset's 2 settings 1 was not measured yet: `retention:conv=4`." in text
    assert "before the preset changed: `retention:conv=4:num_heads=1`." in text and "| `retention` |" in text
    stored(tmp_path, "retention:conv=4")
    assert findings.main([str(tmp_path), "--page", str(page)]) == 0
    text = page.read_text()
    assert "\n4 models on cpu, seeds 0, 1.\n" in text and "preset" not in text and "| `retention` |" in text


def test_recall_by_length_is_a_table_of_what_was_asked_at_every_length_of_the_task(
    findings: ModuleType, tmp_path: Path
) -> None:
    page = stored(tmp_path, "mamba2:d_state=64:conv=4", by_length={"64": 0.9, "512": 0.8})
    stored(tmp_path, "attention:num_heads=2:conv=0")
    assert findings.main([str(tmp_path), "--page", str(page)]) == 0
    text = page.read_text()
    assert "\nRecall by length was not measured at 1024, 2048, 4096 and 8192 tokens yet.\n" in text
    assert "0.8" not in text
    stored(tmp_path, "gru:conv=4", by_length={"1024": 0.75, "2048": 0.5, "4096": 0.25, "8192": 0.125})
    assert findings.main([str(tmp_path), "--page", str(page)]) == 0
    _, _, text = page.read_text().partition("Share of right answers by length")
    assert "With a short convolution:" in text and "Without one:" not in text
    assert "| seq_mixer | 1024 | 2048 | 4096 | 8192 | diverged |" in text
    row = "| `gru:conv=4` | 0.750 ± 0.000 | 0.500 ± 0.000 | 0.250 ± 0.000 | 0.125 ± 0.000 | - |"
    assert row in text and text.count("| `") == 1, "a table of positions knows no other length"
    assert "Not measured at these lengths yet: `mamba2:" in text and "attention" not in text


def test_other_runs_are_left_out_and_without_any_the_page_stays(
    findings: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = stored(tmp_path, "gru:conv=4", eval_size=10)
    with pytest.raises(SystemExit):
        findings.main([str(tmp_path), "--page", str(page)])
    assert "no records of `assay icl --preset capacity`" in capsys.readouterr().err and page.read_text() == PAGE
    stored(tmp_path, "gru:conv=4")
    page.write_text("no marks")
    with pytest.raises(SystemExit):
        findings.main([str(tmp_path), "--page", str(page)])
    assert "between <!-- capacity: begin -->" in capsys.readouterr().err and page.read_text() == "no marks"
