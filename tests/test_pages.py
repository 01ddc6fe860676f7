"""Every code block of the documentation runs: small commands as they stand, long ones up to their plan."""

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
RUN = ("recipes.md", "commands.md")
"""Pages whose commands are small enough to be run, not only planned."""
READING = {"--dry-run", "--choices", "similarity", "frequencies", "figures"}
"""Words of commands that compute nothing."""
LARGE = ("smollm2-135m", "meta-llama", "create_quick_test", 'device="cuda"', 'Store("results")')
"""Python that needs a model, a GPU or stored runs is compiled only."""


def sections() -> Iterator[tuple[str, str, list[tuple[str, str, str]]]]:
    for page in PAGES:
        for section in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
            if blocks := re.findall(r"^```(bash|python)(?: (\S+))?\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
                yield page.name, section.partition("\n")[0].strip("# "), blocks


def commands(text: str) -> list[list[str]]:
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize(("page", "section", "blocks"), [pytest.param(*s, id=f"{s[0]}-{s[1]}") for s in sections()])
def test_every_block_runs(
    page: str,
    section: str,
    blocks: list[tuple[str, str, str]],
    tmp_path: Path,
    cli: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assay, "run", partial(assay.run, executor="serial", **QUICK))
    (tmp_path / "my.txt").write_text("One text. " * 500)
    for language, name, text in blocks:
        if name:
            (tmp_path / name).write_text(text)
        elif language == "python":
            program = compile(text, f"{page}: {section}", "exec")
            if not any(word in text for word in LARGE):
                exec(program, {"__name__": "__main__"})
        else:
            for words in commands(text):
                assert words[0] == "assay", words
                code, out, err = cli(*words[1:], *extra(page, words))
                assert code == 0 or missing(err), f"{words}\n{out}\n{err}"


def extra(page: str, words: list[str]) -> list[str]:
    """What makes a command small: a study's options, or its plan alone."""
    computes = words[1] in STUDIES and not {"--dry-run", "--choices", "similarity", "frequencies", "figures"} & set(
        words
    )
    if not computes:
        return []
    if page not in RUN:
        return [] if "eval" in words else ["--dry-run"]
    small = [f"--{name}={size}" for name, size in QUICK.items() if words[1] == "expressivity"]
    return [*small, *([] if "--executor" in words else ["--executor", "serial"])]


def missing(err: str) -> bool:
    """Return whether the command was refused only for data or a model that is not on this machine."""
    return any(said in err for said in ("assay data pull", "--offline", "no such file", "is not here", "cannot read"))


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
