"""Records and other JSON are read with care: they may come from another version, a failing disk or a stranger.

What passes has the types that the rest of the code relies on, numbers that fit a float, text that can be printed as
UTF-8, and no nesting that a recursive function could not follow. The id is not computed again, since the version
that wrote the record may have hashed something else. Fields that this version does not know are left out.

A shape says what JSON may be: a type; {"name": SHAPE}, with other names left alone; {str: SHAPE} for any name; [SHAPE]
for all items; or a tuple of shapes and values, with `...` for what may be missing.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from math import isfinite
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn, get_args

from assay.core.errors import UserError
from assay.core.files import read_file, read_plain, reason
from assay.core.run import FORMAT, Numerics, Record, Status

LARGEST = 64 * 2**20
"""Most bytes of a record.json."""
DEEPEST = 64
DIGITS = 300
"""Most digits of an integer; that many still fit a float."""
ID = re.compile(r"[0-9a-f]{16}\Z")

RUN: Mapping[Any, Any] = {
    "study": str, "options": dict, "seed": int, "versions": {str: str},
    "numerics": {f.name: (type(f.default), ...) for f in fields(Numerics)},
}  # fmt: skip
_RECORD: Mapping[Any, Any] = {
    "id": str, "run": RUN, "status": get_args(Status), "metrics": dict, "cost": {"seconds": (float, None, ...)},
    "error": (str, None), "provenance": {str: str}, "finished": str, "artifacts": [str], "place": (int, None, ...),
    "files": ({str: {"bytes": int, "sha256": str}}, ...),
}  # fmt: skip


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
    found = fitting(_decoded(data), {"format": (int, ...)})
    version = found.get("format", 0)
    if version > FORMAT:
        raise NewerRecord(
            f"{path} was written by a newer assay (format {version}, this one reads {FORMAT}). "
            "Upgrade assay, or choose another folder with --out."
        )
    fitting(found, _RECORD)
    if not ID.match(found["id"]):
        raise NotARecord("its id is none")
    if not (found["run"]["study"].isprintable() and found["finished"].isprintable()):
        raise NotARecord("its study or its time cannot be printed")
    if not all(map(_names_a_file_below, found["artifacts"])):
        raise NotARecord("an artifact's name is no file of its folder")
    return Record.from_json(found, folder)


def read_json(path: Path, shape: Any, *, what: str, remedy: str) -> Any:
    """Return what a JSON file that a user names holds, or raise a UserError that says what is odd about it."""
    try:
        return parsed(read_file(path, limit=LARGEST), shape)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {what} from '{path}': {reason(error)}. {remedy}") from None


def parsed(data: bytes, shape: Any) -> Any:
    """Return the value of a JSON text that has a shape; any other text is a ValueError."""
    return fitting(_decoded(data), shape)


def _decoded(data: bytes) -> Any:
    try:
        alike = data.translate(_ALIKE, b"+")
        strictly = b"0e000" in alike or b"0" * 200 in alike  # 199 digits and an exponent of two are still finite
        found = (_STRICT if strictly else _QUICK).decode(data.decode())
    except RecursionError:
        raise NotARecord(f"it is nested more than {DEEPEST} deep") from None
    if data.count(b"[") + data.count(b"{") > DEEPEST and _deeper_than(found, DEEPEST):
        raise NotARecord(f"it is nested more than {DEEPEST} deep")
    if b"\\ud" in data or b"\\uD" in data:  # half a surrogate pair could not be written anywhere
        found = _QUICK.decode(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace").decode())
    return found


def fitting(value: Any, shape: Any) -> Any:
    if (odd := _misfit(value, shape)) is not None:
        raise NotARecord(f"its {odd[1:]} is missing or of another type" if odd else "it is of another type")
    return value


def _misfit(value: Any, shape: Any) -> str | None:
    """Return where a value differs from a shape, such as `.run.seed`; None where it does not."""
    kind = type(value)
    for each in shape if type(shape) is tuple else (shape,):
        if each is kind or each == value or (each is float and kind is int):
            return None
        if type(each) is kind is dict:
            inner = dict.fromkeys(value, each[str]) if str in each else each
            for name, held in inner.items():
                if (odd := _misfit(value.get(name, ...), held)) is not None:
                    return f".{name}{odd}"
            return None
        if type(each) is kind is list:
            return _misfit(dict(enumerate(value)), {str: each[0]})
    return ""


def _deeper_than(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        inside = (item for held in level for item in (held.values() if isinstance(held, dict) else held))
        level = [item for item in inside if isinstance(item, dict | list)]
        if not level:
            return False
    return True


@lru_cache(maxsize=1024)
def _names_a_file_below(name: str) -> bool:
    """Cached, since a study's runs save files of the same few names."""
    parts = PurePosixPath(name).parts
    return bool(parts) and "\0" not in name and not name.startswith("/") and ".." not in parts


def _refuse(word: str) -> NoReturn:
    raise NotARecord(f"{word[:20]} is no number that a record can hold")


_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
"""A number that may be infinite, or too long, is found faster where every digit is the same."""
_QUICK = json.JSONDecoder(parse_constant=_refuse)
_STRICT = json.JSONDecoder(
    parse_constant=_refuse,
    parse_int=lambda text: int(text) if len(text) <= DIGITS else _refuse(text),
    parse_float=lambda text: value if isfinite(value := float(text)) else _refuse(text),
)
