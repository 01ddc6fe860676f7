"""Collect a few hundred megabytes of English prose and source code from Debian packages, where the hub is out of reach.

    python benchmarks/debian_text.py FOLDER            needs apt-get and dpkg-deb; about 600 MB to fetch

Manuals, dictionaries and Python sources, at most 7 MB of each package so that none fills the text; a file of
FOLDER is a package, a document of it is a file of that package. The packages' versions are those of the running
Debian, so two machines agree only where their Debian does: the study hashes the text it reads.
"""

import gzip
import hashlib
import html
import io
import json
import random
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = re.findall(
    r"\S+",
    """
apache2-doc bash-doc cmake-doc debian-policy debian-reference-en developers-reference dict-foldoc dict-gcide
dict-jargon dict-wn doc-debian erlang-doc ghc-doc gimp-help-en git-doc lazarus-doc-2.2 libboost1.74-doc
libglib2.0-doc libgtk-3-doc libreoffice-help-en-us linux-doc-6.1 maint-guide maxima-doc mercurial-common mit-
scheme-doc nodejs-doc octave-doc openjdk-17-doc postgresql-doc-15 python-django-doc python-pandas-doc python-
sqlalchemy-doc qtbase5-doc-html r-doc-html r-doc-info rust-doc sbcl-doc texlive-latex-recommended-doc vim-doc
wesnoth-1.16-data zsh-doc python3-sympy python3-django python3-numpy python3-scipy python3-pandas
python3-sklearn python3-twisted libpython3.11-stdlib
""",
)
MOST = 7_000_000
"""Characters taken of one package."""
WANTED = re.compile(r"\.(html?|txt|rst|md|page|xhp|adoc|tex|info|dict|cfg|py)(\.gz|\.dz)?$")
UNWANTED = re.compile(
    r"changelog|searchindex|genindex|/_static|licen|/tests?/|/(de|fr|es|it|ja|ko|pt|pt-br|ru|tr|zh-cn|da)/"
)
TAGS = re.compile(r"(?s)<(script|style|nav|head)\b.*?</\1>|<!--.*?-->|<[^>]+>")


def documents(package: Path) -> Iterator[str]:
    """Yield the texts inside a .deb file, in an order drawn from the package's name."""
    unpacked = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
        members = sorted((member for member in tar if member.isfile()), key=lambda member: member.name)
        random.Random(package.name.split("_")[0]).shuffle(members)
        for member in members:
            name = member.name.lower()
            if not WANTED.search(name) or UNWANTED.search(name):
                continue
            content = tar.extractfile(member).read()  # type: ignore[union-attr]
            if name.endswith((".gz", ".dz")):
                content = gzip.decompress(content)
            text = content.decode("utf8", "ignore")
            if ".htm" in name or text.lstrip().startswith("<"):
                text = html.unescape(TAGS.sub("", text))
            text = re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", text)).strip()
            if len(text) >= 1500:
                yield text


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    seen, total = set[bytes](), 0
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["apt-get", "download", "-qq", *PACKAGES], cwd=scratch, check=True)
        for package in sorted(Path(scratch).glob("*.deb")):
            size = 0
            with (folder / f"{package.name.split('_')[0]}.jsonl").open("w") as file:
                for text in documents(package):
                    key = hashlib.sha256(
                        text[200:1200].encode()
                    ).digest()  # headers repeat, so a copy is told by its body
                    if key in seen:
                        continue
                    seen.add(key)
                    file.write(json.dumps({"text": text[: MOST - size]}) + "\n")
                    size += len(text)
                    if size >= MOST:
                        break
            total += min(size, MOST)
            print(f"{package.name.split('_')[0]:32} {min(size, MOST) / 1e6:6.1f} MB", flush=True)
    print(f"{'in all':32} {total / 1e6:6.1f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
