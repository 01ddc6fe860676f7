"""A stored record is read with care: a store may come from another version, a failing disk or a stranger.

What passes has the types that the rest of the code relies on, numbers that fit a float, text that can be printed as
UTF-8, and no nesting that a recursive function could not follow. The id is not computed again, since the version
that wrote the record may have hashed something else. Fields that this version does not know are left out.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from math import isfinite
from pathlib import Path, PurePosixPath
from types import EllipsisType
from typing import Any, NoReturn, get_args

from assay.core.errors import UserError
from assay.core.files import read_plain
from assay.core.run import FORMAT, Numerics, Record, Status

LARGEST = 64 * 2**20
"""Most bytes of a record.json."""
DEEPEST = 64
DIGITS = 300
"""Most digits of an integer; that many still fit a float."""
ID = re.compile(r"[0-9a-f]{16}\Z")

_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_EXPONENT = b"0e000"
"""Matches, with every digit as 0 and plus signs removed, a number that could be infinite, or part of a hash."""
_STEP = 10
_LONG = b"0" * (200 // _STEP)
"""Every tenth byte of 200 digits. 199 digits and an exponent of two are still finite."""
_BEFORE_NUMBER = b" \t\r\n:,["
_RECORD: dict[str, tuple[type, ...]] = {
    "id": (str,), "run": (dict,), "status": (str,), "metrics": (dict,), "cost": (dict,), "error": (str, type(None)),
    "provenance": (dict,), "finished": (str,), "artifacts": (list,),
    "place": (int, type(None), EllipsisType), "files": (dict, EllipsisType),
}  # fmt: skip
"""The types that a field may have; `EllipsisType`: it may be missing."""
_RUN: dict[str, tuple[type, ...]] = {
    "study": (str,), "options": (dict,), "seed": (int,), "versions": (dict,), "numerics": (dict,)
}  # fmt: skip
_STATUS = get_args(Status)
_NUMERICS = {f.name: (type(f.default), EllipsisType) for f in fields(Numerics)}


class NotARecord(ValueError):
    """The file holds something other than a record; the text says what is wrong with it."""


class NewerRecord(UserError):
    """A newer assay wrote it: a list leaves it out, and a driver neither computes that run nor overwrites it."""


def read_record(path: Path) -> Record:
    """Return the record in a run's folder. Raises ValueError if it is none, OSError if it cannot be read, NewerRecord
    if a newer assay wrote it."""
    record = parse_record(read_plain(path, LARGEST), path, path.parent)
    if (record.run.study, record.run.id) != path.parts[-3:-1]:
        raise NotARecord("its id is not its folder's")
    return record


def parse_record(data: bytes, path: Path | str = "the record", folder: Path | None = None) -> Record:
    """Return a record from the bytes of its file."""
    try:
        found = _decoded(data)
    except RecursionError:
        raise NotARecord(f"it is nested more than {DEEPEST} deep") from None
    if not isinstance(found, dict):
        raise NotARecord("it is no JSON object")
    version = found.get("format", 0)
    if type(version) is not int:
        raise NotARecord("its format is no number")
    if version > FORMAT:
        raise NewerRecord(
            f"{path} was written by a newer assay (format {version}, this one reads {FORMAT}). "
            "Upgrade assay, or choose another folder with --out."
        )
    _check(found)
    return Record.from_json(found, folder)


def _decoded(data: bytes) -> Any:
    found = decoder_for(data).decode(data.decode())
    if data.count(b"[") + data.count(b"{") > DEEPEST and _deeper_than(found, DEEPEST):
        raise NotARecord(f"it is nested more than {DEEPEST} deep")
    if b"\\ud" in data or b"\\uD" in data:  # half a surrogate pair could not be written anywhere
        found = _QUICK.decode(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace").decode())
    return found


def decoder_for(data: bytes) -> json.JSONDecoder:
    """Return the strict decoder, which checks every number, where one may be too large."""
    alike = data.translate(_ALIKE, b"+")  # a regular expression would take longer than all the rest
    return _STRICT if _LONG in alike[::_STEP] or _has_exponent(alike) else _QUICK


def _has_exponent(alike: bytes) -> bool:
    """Return whether a number has an exponent of three digits; in a hash, a quote or a letter stands before them."""
    at = alike.find(_EXPONENT)
    while at >= 0:
        before = alike[max(0, at - 2 * DIGITS) : at].rstrip(b"0.-")[-1:]
        if before in _BEFORE_NUMBER:  # also true of the empty start of the file
            return True
        at = alike.find(_EXPONENT, at + 1)
    return False


def _deeper_than(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        inside = (item for held in level for item in (held.values() if isinstance(held, dict) else held))
        level = [item for item in inside if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def _check(found: Mapping[str, Any]) -> None:
    """Raise unless every field has its type, the nested ones too."""
    _typed(found, _RECORD)
    run = found["run"]
    _typed(run, _RUN, where="run.")
    _typed(run["numerics"], _NUMERICS, where="run.numerics.")
    if not ID.match(found["id"]):
        raise NotARecord("its id is none")
    if not (run["study"].isprintable() and found["finished"].isprintable()):
        raise NotARecord("its study or its time cannot be printed")
    if found["status"] not in _STATUS:
        raise NotARecord(f"its status is none of {', '.join(_STATUS)}")
    for name, texts in (("run.versions", run["versions"]), ("provenance", found["provenance"])):
        if not {str}.issuperset(map(type, texts.values())):
            raise NotARecord(f"its {name} are not all text")
    if type(found["cost"].get("seconds", 0.0)) not in (int, float, type(None)):
        raise NotARecord("its cost.seconds is no number")
    if not all(type(name) is str and _names_a_file_below(name) for name in found["artifacts"]):
        raise NotARecord("an artifact's name is no file of its folder")
    for check in found.get("files", {}).values():
        if type(check) is not dict or type(check.get("bytes")) is not int or type(check.get("sha256")) is not str:
            raise NotARecord("its files are not sizes and hashes")


def _typed(found: Mapping[str, Any], types: Mapping[str, tuple[type, ...]], *, where: str = "") -> None:
    for name, allowed in types.items():
        if type(found.get(name, ...)) not in allowed:
            raise NotARecord(f"its {where}{name} is missing or of another type")


@lru_cache(maxsize=1024)
def _names_a_file_below(name: str) -> bool:
    """Cached, since a study's runs save files of the same few names."""
    parts = PurePosixPath(name).parts
    return bool(parts) and "\0" not in name and not name.startswith("/") and ".." not in parts


def _refuse(word: str) -> NoReturn:
    raise NotARecord(f"{word[:20]} is no number that a record can hold")


_QUICK = json.JSONDecoder(parse_constant=_refuse)
_STRICT = json.JSONDecoder(
    parse_constant=_refuse,
    parse_int=lambda text: int(text) if len(text) <= DIGITS else _refuse(text),
    parse_float=lambda text: value if isfinite(value := float(text)) else _refuse(text),
)
