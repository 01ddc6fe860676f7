"""What command lines mean, right and wrong ones: recorded once in golden/command_lines.json and compared ever since.

Options, axes and execution are recorded where they differ from what the study starts with; an error up to the list of
what is known, which grows with every plug-in.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from assay.core.plugin import Plugin
from assay.core.words import written

GOLDEN = Path(__file__).parent / "golden" / "command_lines.json"
LINES = json.loads(GOLDEN.read_text())
FILES = {"toy": Path(__file__).parent / "toy.py", "shelf": Path(__file__).parent / "shelf.py"}


class Read(Exception):
    """What a command line came to, thrown before anything is planned."""


def flat(made: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The options of a dataclass by dotted path; a plug-in is its word."""
    for option in fields(made):
        held = getattr(made, option.name)
        if is_dataclass(held) and not isinstance(held, Plugin):
            yield from flat(held, f"{prefix}{option.name}.")
        else:
            yield f"{prefix}{option.name}", [*map(plain, held)] if isinstance(held, tuple) else plain(held)


def plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def differences(made: Any, start: Any) -> dict[str, Any]:
    before = dict(flat(start))
    return {path: value for path, value in flat(made) if before[path] != value}


def keep_study(study: Any, grid: Any, execution: Any) -> None:
    axes = {key: [value if isinstance(value, str) else written(value) for value in axis] for key, axis in grid.items()}
    found = {"options": differences(study, type(study)()), "grid": axes}
    raise Read({**found, "execution": differences(execution, type(execution)())})


def keep_reading(reading: Any, out: Any) -> None:
    raise Read({"options": dict(flat(reading))})


def meant(call: Callable[[list[str]], Any], line: str) -> dict[str, Any]:
    """What one command line came to: options, or an exit code with what was said."""
    words = shlex.split(line)
    study = next((word for word in words if word in FILES), None)
    try:
        code, out, err = call([*words, "--plugin", str(FILES[study])] if study else words)
    except Read as read:
        return {key: value for key, value in read.args[0].items() if value}
    said = re.split(r" (?:Known|It has): ", err.strip())[0]
    return {"code": code, "said": said} | ({"out": out.splitlines()[0]} if out else {})


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from assay.api import Session
    from assay.core.plugin import registries
    from assay.core.study import Reading

    monkeypatch.setattr(Session, "open", staticmethod(keep_study))
    studies = registries()["studies"]
    for cls in (studies[name] for name in studies.folder):
        if issubclass(cls, Reading):
            monkeypatch.setattr(cls, "report", keep_reading)
    yield


@pytest.mark.usefixtures("nothing_runs")
def test_command_lines_mean_what_they_meant(cli: Callable[..., tuple[int, str, str]]) -> None:
    found = {line: meant(lambda words: cli(*words), line) for line in LINES}
    assert found == LINES
