"""The suite does not depend on the machine: no test sees the user's home, cache, data or hub, nor another test's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from assay.core.errors import UserError
from assay.data import mnist, mnist_arrays
from assay.data.hub import hub_cache
from assay.data.places import cache


@pytest.mark.parametrize("again", [False, True])
def test_a_test_starts_with_nothing_and_leaves_nothing(again: bool, a_machine_without_a_past: Path) -> None:
    assert not any(Path.home().iterdir()) and not any(Path.cwd().iterdir())
    for name in ("HOME", "XDG_CACHE_HOME", "ASSAY_CACHE", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE"):
        assert a_machine_without_a_past in Path(os.environ[name]).parents
    assert not {"ASSAY_DATA", "HF_ENDPOINT", "HF_HUB_OFFLINE"} & set(os.environ)
    assert not cache().exists() and not hub_cache().exists()
    with pytest.raises(UserError, match="`assay data pull mnist` fetches it"):
        mnist_arrays.locate()
    (cache() / mnist.NAME).mkdir(parents=True)
    (cache() / mnist.NAME / mnist.WHEEL).touch()
    assert mnist_arrays.locate() == cache() / mnist.NAME / mnist.WHEEL


def test_processes_inherit_it() -> None:
    code = "from pathlib import Path; from assay.data.places import cache; print(cache()); print(Path.home())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [str(cache()), str(Path.home())]
