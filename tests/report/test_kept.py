"""A section is made once for the same records, options and code, and is the same when it is read back."""

import os
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from assay.core.plugin import registries
from assay.core.run import Record
from assay.core.store import Store
from assay.report import kept as module
from assay.report.kept import kept
from assay.report.section import Section
from assay.studies import studies

GOLDEN = Path(__file__).parent.parent / "golden" / "store_0_1_0"
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def made(tmp_path: Path) -> "Made":
    shutil.copytree(GOLDEN / ".store", tmp_path / ".store")
    return Made(tmp_path)


class Made:
    """Sections of a copy of the golden store, and how often one was really made."""

    def __init__(self, out: Path) -> None:
        self.out, self.count, self.said = out, 0, ""

    def records(self, study: str = "modular.sweep") -> list[Record]:
        return list(Store(self.out).records(study))

    def __call__(
        self, records: Sequence[Record] | None = None, study: str = "modular.sweep", **options: Any
    ) -> Section:
        found = self.records(study) if records is None else records

        def make() -> tuple[Section, str | None]:
            self.count += 1
            section = Section(study)
            studies[study]().report(found, section)
            if self.said:
                warnings.warn(self.said, stacklevel=2)
            return section, None

        return kept(study, options, found, make)[0]


def told(section: Section) -> dict[str, Any]:
    documents = {name: text if isinstance(text, str) else text() for name, text in section.documents.items()}
    held = {key: value for key, value in vars(section).items() if key != "looks"}
    return held | {"documents": documents, "columns": [table.columns for table in section.tables]}


@pytest.mark.parametrize("study", ["expressivity", "icl", "modular.sweep"])
def test_what_is_read_back_is_what_was_made(made: Made, study: str) -> None:
    first, again = made(study=study), made(study=study)
    assert made.count == 1 and told(first) == told(again) and first.tables


def test_other_records_options_or_code_are_another_section(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    records = made.records()
    made(records)
    made(records, verbose=True)
    made(records[:1])
    made(list(reversed(records)))
    assert made.count == 4
    monkeypatch.setattr(module, "_code", lambda: "edited")
    made(records)
    assert made.count == 5
    made(records)
    assert made.count == 5


def test_an_artifact_that_changed_or_went_is_read_again(made: Made) -> None:
    made()
    record = made.records()[0]
    assert record.folder is not None
    os.utime(record.folder / record.artifacts[0], ns=(1, 1))
    made()
    assert made.count == 2
    (record.folder / record.artifacts[0]).rename(record.folder / "elsewhere")
    with pytest.raises(Exception, match=record.run.id):
        made()
    assert made.count == 3


def test_a_warning_is_said_every_time(made: Made) -> None:
    made.said = "one run is odd"
    for count in (1, 2):
        with pytest.warns(UserWarning, match="one run is odd"):
            made()
        assert made.count == count


def test_a_damaged_file_is_not_used_and_the_cache_stays_small(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(os.environ["ASSAY_CACHE"]) / "sections"
    first = made()
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes().replace(b"width", b"depth"))
    assert told(made()) == told(first) and made.count == 2
    monkeypatch.setattr(module, "FILES", 1)
    made(made.records()[:1])
    assert len(list(folder.iterdir())) == 1


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = made.out / "file"
    blocked.write_text("")
    monkeypatch.setenv("ASSAY_CACHE", str(blocked))
    assert told(made()) == told(made()) and made.count == 2


def test_with_plugins_from_elsewhere_nothing_is_kept(made: Made, toy: Any) -> None:
    made()
    made()
    assert made.count == 2 and not (Path(os.environ["ASSAY_CACHE"]) / "sections").exists()


def test_a_page_that_was_made_before_is_the_same_and_needs_no_torch(
    cli: Cli, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(made.out / ".store" / "inverses")  # its file is not given here
    assert cli("report", "--out", made.out)[0] == 0
    page = (made.out / "report.html").read_bytes()

    def never(*words: Any) -> Any:
        raise AssertionError("a study was imported")

    monkeypatch.setattr(type(registries()["studies"]), "__getitem__", never)
    for library in ("torch", "altair"):
        monkeypatch.setitem(sys.modules, library, None)  # importing it again is an error
    assert cli("report", "--out", made.out)[0] == 0
    assert (made.out / "report.html").read_bytes() == page
