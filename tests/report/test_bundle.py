"""The script of the charts is made once, and never used damaged."""

from pathlib import Path

import pytest
import vl_convert

from assay.report.page import bundle


def test_the_bundle_is_made_once_and_again_if_its_file_is_damaged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[str] = []

    def slow(script: str, version: str) -> str:
        made.append(version)
        return f"/* {version} */ {script}"

    monkeypatch.setattr(vl_convert, "javascript_bundle", slow)
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    first = bundle()
    assert bundle() == first and len(made) == 1
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_text(kept.read_text()[:-5])
    assert bundle() == first and len(made) == 2
    kept.unlink()
    kept.mkdir()  # neither readable nor writable as a file
    assert bundle() == first and len(made) == 3
