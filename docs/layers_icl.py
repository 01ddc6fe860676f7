"""Write the table of published layers into docs/icl.md, from the mixers' own docstrings and defaults.

    python docs/layers_icl.py

A mixer's docstring says in the paragraph `The layer is ...` which published layer it is (without one: the paper's), and
in its last paragraph how it differs. A new mixer has its row by running this again.
"""

import ast
import re
from pathlib import Path

from masks_perplexity import between

from assay.mixers import mixers

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "icl.md"
LAYER, NO_PAPER = "The layer is ", "No paper"


def paragraphs(name: str) -> list[str]:
    source = (ROOT / "src" / Path(*mixers[name].__module__.split("."))).with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8")))
    assert docstring, name
    return docstring.split("\n\n")


def published(name: str) -> str:
    """The layer that a mixer is, by its docstring."""
    if differs(name).startswith(NO_PAPER):
        return "none"
    found = [part for part in paragraphs(name) if part.startswith(LAYER)]
    return flat(found[0].removeprefix(LAYER)) if found else "the paper's"


def differs(name: str) -> str:
    """What the last paragraph says after its colon; items of a list follow each other."""
    last = paragraphs(name)[-1]
    if last.startswith("As published."):
        return "nothing"
    opening, _, said = last.partition(":")
    items = [flat(item) for item in re.split(r"^- ", said, flags=re.MULTILINE) if item.strip()]
    return (f"{NO_PAPER}: " if opening == NO_PAPER else "") + "; ".join(items)


def ours(name: str) -> str:
    """The default options; where a convolution would stand is told only of a mixer that has one."""
    options = mixers[name]().spec()
    hidden = {"name"} if options["conv"] else {"name", "conv_on"}
    told = {key: value for key, value in options.items() if key not in hidden and not isinstance(value, list | dict)}
    return ", ".join(f"{key} {value:g}" if type(value) is float else f"{key} {value}" for key, value in told.items())


def flat(text: str) -> str:
    return " ".join(text.split()).removesuffix(".").replace("|", "\\|")


def table() -> str:
    rows = [f"| `{name}` | {published(name)} | {ours(name)} | {differs(name)} |" for name in mixers.names()]
    head = ["| mixer | the published layer | ours, by default | differs |", "|---|---|---|---|"]
    return "\n".join([*head, *rows])


def placed(page: str) -> str:
    return between(page, "layers", table())


if __name__ == "__main__":
    PAGE.write_text(placed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
