"""Document 003, the in-context benchmark: its words `wandb:on` and `wandb:None`."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

Cli = Callable[..., tuple[int, str, str]]


def test_1_9_wandb_with_everything_stored_says_that_nothing_is_logged(
    cli: Cli, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[dict[str, Any]] = []
    run = SimpleNamespace(log=lambda *_, **__: None, summary={}, finish=lambda **_: None)
    wandb: Any = ModuleType("wandb")
    wandb.init = lambda **given: opened.append(given) or run
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    command = ["shelf", "--plugin", shelf, "wandb:on", "--executor", "serial", "--out", tmp_path]
    code, _, err = cli(*command)
    assert code == 0 and len(opened) == 1 and "nothing is logged" not in err
    code, _, err = cli(*command)
    assert code == 0 and len(opened) == 1 and err.count("nothing is logged") == 1
    code, _, err = cli(*[word for word in command if word != "wandb:on"])
    assert code == 0 and "nothing is logged" not in err
