"""What people have stored is found again: no change may move a run's id without a raised version."""

import json
from pathlib import Path
from typing import Any


def test_every_preset_plans_the_runs_it_always_did(script: Any) -> None:
    made = script("tests/golden/make_preset_ids.py")
    expected = json.loads((Path(__file__).parent.parent / "golden/preset_ids.json").read_text(encoding="utf-8"))
    with made.nobodys_files():
        found = made.preset_ids()
    moved = [preset for preset in expected.keys() | found.keys() if expected.get(preset) != found.get(preset)]
    assert not moved, f"{moved}: other ids. If they are meant to change: python tests/golden/make_preset_ids.py"
