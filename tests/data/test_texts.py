"""Documents are what their authors made: articles, lines, files; and what is not there is one clear line."""

import gzip
import json
import sys
from types import SimpleNamespace

import pytest

from assay.core.errors import UserError
from assay.data.text import _loaded, articles, fingerprint, load_corpus

WIKI = " \n = One = \n \n text of one . \n \n = = A section = = \n \n more \n \n = Two words = \n \n text of two . \n"


def test_wikitext_is_split_at_titles_and_not_at_sections():
    one, two = articles(WIKI)
    assert one.startswith("= One =") and "A section" in one and two.startswith("= Two words =")


def test_a_line_of_an_article_that_looks_like_a_title_is_none():
    """Of `Constant k filter`, in the test part of WikiText: what is between two pictures of a formula."""
    within = " = Constant k filter = \n \n ω \n = 1 rad / s and a nominal impedance k = \n 1 Ω . \n \n = Next = \n"
    assert [article.split("\n")[0] for article in articles(within)] == ["= Constant k filter = ", "= Next ="]


def test_a_text_without_titles_is_one_document():
    assert articles("a = b\n\n = c = \n d") == ["a = b\n\n = c = \n d"] and articles(" \n ") == []


def test_files_folders_and_lines(tmp_path):
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in ({"text": "x"}, {"head": "y", "tail": "z"})))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"third"))
    (tmp_path / "picture.png").write_bytes(b"\x89")
    assert load_corpus(str(tmp_path)).documents == ("x", "yz", "second", "third")


def test_an_edited_file_is_another_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one")
    before = fingerprint(str(path))
    path.write_text("another")
    assert fingerprint(str(path)) != before and fingerprint("c4") is None
    assert fingerprint("pydoc") == load_corpus("pydoc").sha256


def test_pydoc_is_always_there():
    corpus = load_corpus("pydoc")
    assert len(corpus.documents) > 50 and sum(map(len, corpus.documents)) > 300_000


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(UserError, match="neither one of wikitext-2"):
        load_corpus("no-such-text")
    with pytest.raises(UserError, match="holds no text"):
        load_corpus(str(tmp_path))
    (tmp_path / "a.jsonl").write_text("[1]\n")
    with pytest.raises(UserError, match="line 1: expected a JSON object"):
        load_corpus(str(tmp_path / "a.jsonl"))
    (tmp_path / "b.jsonl").write_text('{"text": null}\n')
    with pytest.raises(UserError, match="line 1: expected a JSON object with a text"):
        load_corpus(str(tmp_path / "b.jsonl"))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"third" * 1000)[:-12])
    with pytest.raises(UserError, match="not whole"):
        load_corpus(str(tmp_path / "c.txt.gz"))


def test_an_error_without_a_message_is_named_by_its_kind(monkeypatch):
    def refuse(**_):
        raise ConnectionError

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=refuse, config=SimpleNamespace()))
    _loaded.cache_clear()
    with pytest.raises(UserError, match="from the hub: ConnectionError"):
        load_corpus("wikitext-2")


def test_a_hub_that_cannot_be_reached_names_the_offline_way(monkeypatch):
    def refuse(**_):
        raise ConnectionError("no route to the hub")

    fake = SimpleNamespace(load_dataset=refuse, config=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "datasets", fake)
    _loaded.cache_clear()
    with pytest.raises(UserError, match=r"cannot load 'wikitext-2' from the hub: no route.*--quick-test --offline"):
        load_corpus("wikitext-2")


def test_the_hub_s_lines_are_joined_and_streams_are_cut(monkeypatch):
    asked = []

    def rows(**options):
        asked.append(options)
        if options["path"].endswith("c4"):
            return ({"text": f"page {number}"} for number in range(10**9))
        return [{"text": line} for line in WIKI.splitlines(keepends=True)]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=rows, config=SimpleNamespace()))
    _loaded.cache_clear()
    assert len(load_corpus("wikitext-103").documents) == 2
    limited = load_corpus("wikitext-103", limit=1).documents
    assert limited == tuple(articles(WIKI)), "a limit is not one of lines"
    assert len(load_corpus("c4").documents) == 1000 and len(load_corpus("c4", limit=3).documents) == 3
    assert asked[2]["streaming"]
    _loaded.cache_clear()
