"""Every plug-in says, at the end of its file's docstring, how it differs from what it is named after."""

import ast
from pathlib import Path

from assay.core.plugin import registries

SOURCE = Path(__file__).parent.parent / "src" / "assay"
FOLDERS = ("probes", "mixers", "attention", "sparse_coders", "encoders", "state_mixers", "tasks", "vectors")
WHOLE = ("As published.", "As in the spec.")
WITH_WORDS = ("Differs from the paper", "Differs from the spec", "No paper")


def says_how_it_differs(docstring: str) -> bool:
    """Whether the last paragraph opens with one of the agreed phrases, and those that announce something say it."""
    last = docstring.strip().split("\n\n")[-1]
    opening, _, rest = last.partition(":")
    announces = opening.startswith(WITH_WORDS) and "\n" not in opening and "." not in opening.replace("et al.", "")
    return last.startswith(WHOLE) or (announces and len(rest.split()) > 2)


def test_every_plug_in_ends_its_docstring_with_what_differs_from_the_paper() -> None:
    silent = []
    for folder in FOLDERS:
        for entry in registries()[folder].folder.values():
            path = SOURCE / Path(*entry.module.split(".")[1:]).with_suffix(".py")
            if not says_how_it_differs(ast.get_docstring(ast.parse(path.read_text())) or ""):
                silent.append(f"{folder}/{entry.name}")
    assert not silent, f"end with 'Differs from the paper: ...' or 'As published.': {silent}"


def test_silence_and_empty_words_do_not_count() -> None:
    assert says_how_it_differs("It does.\n\nAs published. Of equals, the oldest goes.")
    assert says_how_it_differs("It does.\n\nDiffers from the paper (Gao et al. 2024):\n- the encoder is not scaled")
    for text in ("", "It does.", "It does. As published.\n\nAnd more.", "It does.\n\nDiffers from the paper:"):
        assert not says_how_it_differs(text)
