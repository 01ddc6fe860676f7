"""A model's folder is found by its name in the data folder, and its runs have one id wherever that is."""

from pathlib import Path

import pytest

from assay.data import language_model


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data" / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return folder


def test_a_name_is_looked_for_in_the_data_folder(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert language_model.placed("mine") == "mine" and not language_model.is_here("mine")
    assert language_model.fingerprint("mine") is None and language_model.may_slide("mine")
    monkeypatch.setenv("ASSAY_DATA", str(model.parent.parent))
    assert language_model.where("mine") == str(model) and language_model.is_here("mine")
    assert language_model.fingerprint("mine") == language_model.fingerprint(str(model)) is not None
    assert not language_model.may_slide("mine"), "its config names no window"


def test_a_folder_here_comes_first_and_a_data_folder_that_is_not_there_changes_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_DATA", str(model.parent.parent))
    Path("mine").mkdir()
    assert language_model.placed("mine") == "mine"
    monkeypatch.setenv("ASSAY_DATA", "nowhere")
    assert language_model.placed("gpt2") == "gpt2"
