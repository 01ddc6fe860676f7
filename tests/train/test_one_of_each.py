"""What trainers share is written once: a second checkpoint policy, capture or fused optimizer would drift from it."""

import re
from pathlib import Path

import pytest

import assay

SOURCE = Path(assay.__file__).parent
ONLY = {
    "train/checkpoint.py": r"\bsave_checkpoint\b|\bload_checkpoint\b|\bSAVING\b",
    "nn/capture.py": r"\bCUDAGraph\(|cuda\.graph\(|cuda\.Stream\(",
    "train/adamw.py": r"_fused_adam|fused=True",
}


@pytest.mark.parametrize("place", ONLY)
def test_it_is_written_in_one_file(place: str) -> None:
    found = {
        path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if re.search(ONLY[place], path.read_text())
    }
    assert found == {place}
