"""Files from outside the tree."""

from pathlib import Path

import pytest

from assay.core.errors import UserError
from assay.core.foreign import Source, load_source, read_source, source_of

GOOD = "from dataclasses import dataclass\nVALUE = 1\ndef where(): raise RuntimeError('here')\n"


def test_a_file_is_loaded_once_and_known_by_its_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    module = load_source(read_source(path))
    assert load_source(Source(str(path), GOOD)) is module and module.VALUE == 1
    assert source_of(module.__name__) == Source(str(path), GOOD)


def test_a_source_needs_no_file_on_this_machine() -> None:
    assert load_source(Source("/nowhere/theirs.py", "VALUE = 5")).VALUE == 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import torch_typo", "line 1: ModuleNotFoundError: No module named 'torch_typo'"),
        ("x = 1\ny = 2 +\n", "line 2: SyntaxError"),
        ("def f(:\n", "SyntaxError"),
        ("\n\nraise ValueError('no')\n", "line 3: ValueError: no"),
    ],
)
def test_a_file_that_does_not_load_says_where(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        load_source(read_source(path))
    assert said in str(error.value) and "bad.py" in str(error.value)


def test_an_unreadable_file_is_one_message(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.py", tmp_path):
        with pytest.raises(UserError, match="cannot read the plug-in file"):
            read_source(path)
    (tmp_path / "my_mixer.py").touch()
    with pytest.raises(UserError, match=r"No such file or directory\. Did you mean 'my_mixer\.py'\?"):
        read_source(tmp_path / "my_mixr.py")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8"):
        read_source(tmp_path / "binary.py")
