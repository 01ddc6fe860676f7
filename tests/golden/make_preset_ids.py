"""The ids of every run that a preset plans, as one hash per preset: what is stored is found again by these.

.venv/bin/python tests/golden/make_preset_ids.py     writes preset_ids.json, where ids are meant to change
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from assay.api import combined_grid, configure
from assay.core.plan import make_plan
from assay.core.plugin import registries
from assay.core.run import Numerics
from assay.core.study import Study

GOLDEN = Path(__file__).parent / "preset_ids.json"


@contextmanager
def nobodys_files() -> Iterator[None]:
    """No data of the user's, and no hash of a text that differs between versions of Python: neither tells ids apart."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as empty:
        places = dict.fromkeys(("HOME", "ASSAY_CACHE", "XDG_CACHE_HOME", "HF_HOME"), empty)
        with patch.dict(os.environ, places), patch("assay.data.text.fingerprint", return_value=None):
            os.environ.pop("ASSAY_DATA", None)
            os.chdir(empty)
            try:
                yield
            finally:
                os.chdir(before)


def preset_ids() -> dict[str, dict[str, str | int]]:
    """`sae --preset demo` -> the number of its runs and the sha256 of their sorted ids."""
    found = {}
    studies = registries()["studies"]
    for name in studies.folder:
        cls = studies[name]
        # Without options `icl.eval` has no model to ask.
        for preset in (None, *cls.presets) if issubclass(cls, Study) and name != "icl.eval" else ():
            plan = make_plan(configure(cls, preset, {}), combined_grid(cls, preset, {}, named=()), Numerics())
            ids = sorted(run.id for run in plan.runs)
            command = f"{name} --preset {preset}" if preset else name
            found[command] = {"runs": len(ids), "sha256": hashlib.sha256(" ".join(ids).encode()).hexdigest()}
    return found


if __name__ == "__main__":
    with nobodys_files():
        text = json.dumps(preset_ids(), indent=1)
    GOLDEN.write_text(text + "\n", encoding="utf-8")
