"""What assay 0.1.0 stored stays readable for good: tests/golden/store_0_1_0 is read, shown, reported and resumed."""

import json
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.core.plan import Plan
from assay.core.plugin import registries
from assay.core.run import Provenance
from assay.core.store import Store
from assay.train.artifacts import saved_tensors

GOLDEN = Path(__file__).parent / "golden" / "store_0_1_0"
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A copy, since reports are written beside the store."""
    shutil.copytree(GOLDEN / ".store", tmp_path / ".store")
    return tmp_path


@pytest.fixture(autouse=True)
def without_a_warning() -> None:
    warnings.simplefilter("error", UserWarning)


def files(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in (folder / ".store").rglob("*") if path.is_file()}


def test_every_record_is_read_under_its_id_with_its_files() -> None:
    records = Store(GOLDEN).records()
    counts = Counter((record.run.study, record.status) for record in records)
    assert counts == {
        ("expressivity", "done"): 3, ("icl", "done"): 2, ("inverses", "done"): 2, ("inverses", "failed"): 1,
        ("inverses", "diverged"): 1, ("modular.sweep", "done"): 2, ("sae", "done"): 2,
    }  # fmt: skip
    for record in records:
        assert record.folder == GOLDEN / ".store" / record.run.study / record.run.id
        assert record.provenance == Provenance("0.1.0", "3.11.7", "2.13.0+cpu", "box", "Linux aarch64")
        assert record.missing() is None and Store(GOLDEN).get(record.run) == record
        for name in record.artifacts:
            assert saved_tensors(record, name) if name.endswith(".safetensors") else record.artifact(name)


def test_it_is_shown_whole_and_one_by_one_and_nothing_of_it_changes(cli: Cli, out: Path) -> None:
    before = files(out)
    code, listed, err = cli("show", "--out", out)
    assert (code, err) == (0, "") and len(listed.splitlines()) == 13
    assert len(json.loads(cli("show", "--json", "--out", out)[1])) == 13
    for line in listed.splitlines():
        code, text, err = cli("show", line.split()[0], "--out", out)
        assert (code, err) == (0, "") and line.split()[0] in text
    assert files(out) == before


def test_it_is_reported(cli: Cli, out: Path) -> None:
    code, _, err = cli("report", "--plugin", GOLDEN / "inverses.py", "--out", out)
    page = (out / "report.html").read_text()
    assert (code, err) == (0, "") and "could not be made" not in page
    for study in ("expressivity", "icl", "inverses", "modular.sweep", "sae"):
        assert f'id="{study}"' in page or f">{study}<" in page


def test_a_command_resumes_from_it_without_computing(cli: Cli, out: Path) -> None:
    before = files(out)
    words = ["inverses", "--plugin", GOLDEN / "inverses.py", "--executor", "serial", "--device", "cpu", "--out", out]
    code, table, err = cli(*words, "--retry", "none")
    assert code == 1 and "4 planned, 4 stored, nothing to run" in err and "0.25" in table
    assert files(out) == before


def test_every_run_of_it_counts_as_stored() -> None:
    store = Store(GOLDEN)
    for record in store.records():
        if record.run.study in registries()["studies"].names():
            study = registries()["studies"][record.run.study]()
            assert Plan(study, (record.run,)).split(store, retry="none") == ([record], [])
