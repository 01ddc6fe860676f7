"""Carry a tokenised text to a machine without a network, as one file of half a byte to a token.

python tools/pack_tokens.py pack library2 tokens.xz        where `assay data pull library2` has been
python tools/pack_tokens.py unpack library2 tokens.xz      there; the task `tokens` finds it in assay's cache
"""

import hashlib
import lzma
import sys
from pathlib import Path

from assay.core.files import write_file
from assay.data import tokens

# The low byte of a token tells what the high one may be: contexts are kept by a byte's place in its pair.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 3, "lp": 1, "pb": 1, "dict_size": 2**26}]


def pack(corpus: str, target: Path) -> Path:
    tokens.token_text(corpus)
    raw = tokens.kept(tokens.text_hash(corpus)).read_bytes()
    write_file(target, lzma.compress(raw, lzma.FORMAT_XZ, filters=FILTERS))
    return target


def unpack(corpus: str, source: Path) -> Path:
    target = tokens.kept(tokens.text_hash(corpus))
    target.parent.mkdir(parents=True, exist_ok=True)
    write_file(target, lzma.decompress(source.read_bytes()))
    return target


if __name__ == "__main__":
    written = {"pack": pack, "unpack": unpack}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
    print(written, written.stat().st_size, hashlib.sha256(written.read_bytes()).hexdigest())
