"""Vectors to code: a training part, a part to choose learning rates and penalties on, and a part to report on.

assay.data.places says where their files are looked for.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.errors import UserError
from assay.core.plugin import Plugin, Registry
from assay.core.run import canonical
from assay.data import activation_cache, language_model
from assay.data.named import REMEDY, find_model, model_folder, no_text
from assay.nn.preparation import Preparation
from assay.nn.random import stream
from assay.vectors import vectors


@dataclass(frozen=True)
class Part:
    """Rows, with their labels and the units that truly fired, where those are known."""

    x: Float[Tensor, "n d_in"]
    labels: Int[Tensor, " n"] | None = None
    fired: Float[Tensor, "n atoms"] | None = None

    def __len__(self) -> int:
        return len(self.x)

    def to(self, device: str) -> "Part":
        return Part(*(None if t is None else t.to(device) for t in (self.x, self.labels, self.fired)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Vectors:
    """A data set in three parts."""

    train: Part
    validation: Part
    test: Part
    dictionary: Float[Tensor, "atoms d_in"] | None = None
    """The atoms the rows are made of, where they are known."""
    parents: tuple[int, ...] | None = None
    """For each atom the one that fires wherever it does, itself where there is none; where there is a hierarchy."""
    image: tuple[int, int] | None = None
    """Height and width, where rows are images."""
    splice: Callable[[Callable[[Tensor], Tensor]], dict[str, float]] | None = None
    """Measures the effect of a reconstruction of the test rows on the network they come from, if there is one."""
    preparation: Preparation | None = None
    """How the rows were made from raw ones; None where they are as the data set has them."""
    streamed: bool = False
    """Whether coders are trained on a stream, of which the training rows here are a sample."""

    @property
    def d_in(self) -> int:
        return self.train.x.shape[1]


class VectorData(Plugin):
    """vectors/<name>.py. The promises are in assay.contracts.vectors."""

    registry: ClassVar[Registry] = vectors
    remedy: ClassVar[str] = "This data set needs no files."
    """How to get its files, for the error where the data folder does not exist."""
    streams: ClassVar[bool] = False
    """Whether coders are trained on a stream of rows, of which `load` gives a sample (vectors.stream)."""
    prepares: ClassVar[bool] = False
    """Whether rows are centred and scaled: `Vectors.preparation` then says by how much."""

    def locate(self) -> None:
        """Find the files, or raise an error that says what to do; does nothing without files."""

    def check(self, folder: Path | None = None) -> None:
        """Raise where loading would, as far as the options, missing files and small files tell; nothing is fetched."""

    def missing(self, folder: Path | None = None) -> list[str]:
        """Name what is neither in the folder nor in a cache, and a run would fetch. Nothing is fetched here."""
        return []

    def fingerprint(self, folder: Path | None = None) -> str | None:
        """Hash the files that the options name, looked for in the folder. It is part of a run's id, so that files of
        one name are not confused. None where there are no files, or one is absent."""
        return None

    def shape(self) -> tuple[int, int] | None:
        """The numbers of training rows and of inputs, where they are known without loading anything."""
        return None

    def width(self) -> int | None:
        """The number of inputs, where it is known without loading anything."""
        return shape[1] if (shape := self.shape()) else None

    def load(self) -> Vectors:
        """Load the data, the same every time; float32 on the CPU."""
        raise NotImplementedError(f"{type(self).__name__}.load")

    def load_with(self, device: str) -> Vectors:
        """Load the data; what has to be computed first is computed on the device."""
        return self.load()


class Planted(VectorData):
    """Rows made of few known atoms and noise, drawn from streams of the seed `draw`; its options have d_in, atoms, rows
    and the deviation of the noise too."""

    d_in: int
    """Inputs of a coder: numbers in a row."""
    atoms: int
    rows: int
    """Training rows; validation and test have a quarter as many each."""
    noise: float
    """Deviation of the noise in each input."""
    draw: int

    def shape(self) -> tuple[int, int]:
        return self.rows, self.d_in

    def load(self) -> Vectors:
        rng = stream(self.draw, self.name, "atoms")
        atoms = torch.nn.functional.normalize(torch.randn(self.atoms, self.d_in, generator=rng), dim=1)
        sizes = {"train": self.rows, "validation": self.rows // 4, "test": self.rows // 4}
        train, validation, test = (
            self._part(atoms, rows, stream(self.draw, self.name, name)) for name, rows in sizes.items()
        )
        return Vectors(train, validation, test, dictionary=atoms, parents=self.parents)

    def _part(self, atoms: Float[Tensor, "atoms d_in"], rows: int, rng: torch.Generator) -> Part:
        fired = self.fired(rows, rng)
        x = fired @ atoms + self.noise * torch.randn(rows, self.d_in, generator=rng)
        return Part(x, fired=fired)

    @property
    def parents(self) -> tuple[int, ...] | None:
        """As in `Vectors`."""
        raise NotImplementedError(f"{type(self).__name__}.parents")

    def fired(self, rows: int, rng: torch.Generator) -> Float[Tensor, "rows atoms"]:
        """Draw which atoms so many rows have, and how much of each."""
        raise NotImplementedError(f"{type(self).__name__}.fired")


@dataclass(frozen=True, kw_only=True)
class ModelOutputs(VectorData):
    """Rows that are a module's outputs for a `text`, a row per token, centred and scaled."""

    remedy: ClassVar[str] = REMEDY
    prepares: ClassVar[bool] = True

    model: str = "stories260K"
    """A folder in Hugging Face format, a name on the hub, or smollm2-135m, which needs no hub."""
    hook: str = "model.layers.2"
    """The module, as `named_modules` names it."""
    context: int = 128
    """Tokens of a sequence; the first is left out."""
    longest: float = 10.0
    """Rows that are longer than the median training row by more than this factor are left out; 0 keeps all."""

    text: str = "pydoc"
    """A text file, or a text that has a name."""

    def __post_init__(self) -> None:
        if self.longest and self.longest <= 1:
            raise UserError(
                f"{self.label}: longest={self.longest:g} would leave out the rows in the middle; 0 or above 1."
            )

    def has_text(self, folder: Path | None) -> bool:
        """Return whether the text is here, or has a name by which it can be fetched."""
        raise NotImplementedError(f"{type(self).__name__}.has_text")

    def text_hash(self, folder: Path | None) -> Any:
        """Return what identifies a text that is here, as JSON; None for one that a run would fetch."""
        raise NotImplementedError(f"{type(self).__name__}.text_hash")

    def locate(self) -> None:
        if not self.has_text(None):
            raise UserError(no_text(self.text))
        activation_cache.module_at(language_model.outline(find_model(self.model)), self.hook)

    def check(self, folder: Path | None = None) -> None:
        """Check the text and the model, where they are named as files; the module and the context, where the model is
        here already."""
        if self.text != type(self).text and not self.has_text(folder):
            raise UserError(no_text(self.text))
        if (model := self._here(folder)) is not None:
            activation_cache.module_at(language_model.outline(model), self.hook)
            language_model.check_contexts(model, [self.context], option=f"{self.name}:context")
        elif self.model.startswith(("/", ".", "~")):  # no name on the hub begins so
            raise UserError(f"cannot load the model '{self.model}': there is no such folder. {REMEDY}")

    def missing(self, folder: Path | None = None) -> list[str]:
        text_is_here = self.has_text(folder) and self.text_hash(folder) is not None
        away = {f"the text '{self.text}'": not text_is_here, f"the model '{self.model}'": self._here(folder) is None}
        return [what for what, is_away in away.items() if is_away]

    def fingerprint(self, folder: Path | None = None) -> str | None:
        """Hash the text and the model's folder; a name on the hub is not hashed."""
        model = language_model.fingerprint(model_folder(self.model, folder) or self.model)
        parts = [self.text_hash(folder), model]
        return hashlib.sha256(canonical(parts).encode()).hexdigest()[:16] if any(parts) else None

    def sizes(self) -> language_model.Sizes | None:
        """The sizes of the model, where it is here."""
        model = self._here(None)
        return None if model is None else language_model.sizes(model, language_model.fingerprint(model))

    def _here(self, folder: Path | None) -> str | None:
        """The model's folder or name, or None where it would have to be fetched."""
        name = model_folder(self.model, folder) or self.model
        return name if language_model.is_here(name) else None

    def load(self) -> Vectors:
        return self.load_with("cpu")
