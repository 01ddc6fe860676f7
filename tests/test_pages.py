"""Every code block of the documentation is tried: commands up to their plan, those of small pages in full when slow."""

import re
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import assay

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
STUDIES = ("expressivity", "icl", "modular", "perplexity", "sae")
QUICK = {"batch_eval": 256, "retr_steps": 20, "retr_train_steps": 3}
SMALL = ("recipes.md", "commands.md")
"""Pages whose commands are small enough to be run, by the slow tests, and not only planned."""
READING = {"--dry-run", "--choices", "similarity", "frequencies", "figures"}
"""Words of commands that compute nothing."""
SERIAL = ["--executor", "serial"]
LARGE = ("smollm2-135m", "meta-llama", "create_quick_test", 'device="cuda"', 'Store("results")')
"""Python that needs a model, a GPU or stored runs is compiled only."""


Blocks = list[tuple[str, str, str]]
"""Language, file name or "", and text."""


def sections() -> Iterator[tuple[str, str, Blocks]]:
    for page in PAGES:
        for section in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
            if blocks := re.findall(r"^```(bash|python)(?: (\S+))?\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
                yield page.name, section.partition("\n")[0].strip("# "), blocks


def commands(text: str) -> list[list[str]]:
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


EVERY = [pytest.param(*section, id=f"{section[0]}-{section[1]}") for section in sections()]
IN_FULL = [pytest.param(*section, id=f"{section[0]}-{section[1]}") for section in sections() if section[0] in SMALL]
Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.usefixtures("undrawn", "hasty")
@pytest.mark.parametrize(("page", "section", "blocks"), EVERY)
def test_every_block_can_be_planned(
    page: str, section: str, blocks: Blocks, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assay, "run", partial(assay.run, executor="serial", **QUICK))
    (tmp_path / "my.txt").write_text("One text. " * 500)
    for language, name, text in blocks:
        if name:
            (tmp_path / name).write_text(text)
        elif language == "python":
            program = compile(text, f"{page}: {section}", "exec")
            if page not in SMALL and not any(word in text for word in LARGE):
                exec(program, {"__name__": "__main__"})
        else:
            for words in commands(text):
                code, out, err = cli(
                    *words[1:], *(["--dry-run"] if computes(words) else SERIAL if "eval" in words else [])
                )
                assert code == 0 or missing(words, err), f"{words}\n{out}\n{err}"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("page", "section", "blocks"), IN_FULL)
def test_every_block_of_a_small_page_runs(
    page: str, section: str, blocks: Blocks, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for language, _, text in blocks:
        if language == "python":
            exec(compile(text, f"{page}: {section}", "exec"), {"__name__": "__main__"})
            continue
        for words in commands(text):
            code, out, err = cli(*words[1:])
            assert code == 0, f"{words}\n{out}\n{err}"


def computes(words: list[str]) -> bool:
    return words[1] in STUDIES and "eval" not in words and not READING & set(words)


def missing(words: list[str], err: str) -> bool:
    """Return whether the command was refused for data or a model that is not on this machine, or for the results of the
    command before it, which was only planned."""
    said = ("assay data pull", "--offline", "does not exist", "No such file", "no text '", "0 CUDA devices")
    return any(each in err for each in said) or words[1] in ("report", "show")


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]+))?\)", text):
        target = page if not link else page.parent / link
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{link}#{anchor}"


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}
