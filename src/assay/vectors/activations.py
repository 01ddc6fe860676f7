"""Activations are the outputs of a language model's layer, token by token: the data that sparse coders are made for.

    assay sae --data activations:model=smollm2-135m:hook=model.layers.15:text=pydoc --d_code 4608

`model` is a folder in Hugging Face format (in the data folder, in its models/, or anywhere), a name on the hub, or
smollm2-135m, which needs no hub; `hook` a module's name; `text` a file (in the data folder, or anywhere) or a name that
data.text knows, such as pydoc. Sequences go to training, choosing and reporting 8 : 1 : 1, whole, so that no token of a
test sequence was trained on. Labels: what kind of piece a token is. Activations are cached on disk.

Rows are centred and scaled by what is measured on the training rows: |x|^2 is d_in on average, so that a coder's knobs
mean the same for every model. Attention sinks are left out first: at layer 15 of SmolLM2-135M one token in 1,900, next
to the first of its sequence, is 140 times as long as the others, along one direction. Kept, those few rows are 94 % of
the variance: the scale, the error and the explained variance would be theirs.

Differs from the spec: a row is one token, where its code averages over the tokens of a text; rows are centred, scaled
and without sinks (`longest=0` keeps them); the first token of a sequence is left out.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.errors import UserError
from assay.core.files import sha256
from assay.core.run import canonical
from assay.data import activation_cache, text
from assay.data.named import read_text, shared_model, shared_tokenizer, text_file, token_kinds, weights_hash
from assay.data.places import cache
from assay.data.splice import Splice
from assay.nn.preparation import Preparation
from assay.vectors import vectors
from assay.vectors.base import ModelOutputs, Part, Vectors

SPLICED = 64
"""Most test sequences that a reconstruction is spliced into: each coder takes a forward pass over them."""


@vectors.register("activations")
@dataclass(frozen=True, kw_only=True)
class Activations(ModelOutputs):
    """The output of a module of a Hugging Face causal language model, per token of a text."""

    other_names: ClassVar[tuple[str, ...]] = ("llm",)
    version: ClassVar[int] = 3

    text: str = "wikitext-2/valid.txt"
    """A text file, or a text that has a name: pydoc, wikitext-2, ..."""
    sequences: int = 1000
    """Most sequences of the text."""
    batch: int = 16
    """Sequences of one forward pass."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequences < 10 or self.context < 3 or self.batch < 1:
            raise UserError(f"{self.label}: at least 10 sequences of 3 tokens, in batches of at least 1.")

    def locate(self) -> None:
        read_text(self.text)
        super().locate()

    def has_text(self, folder: Path | None) -> bool:
        return text_file(self.text, folder) is not None or text.is_known(self.text)

    def text_hash(self, folder: Path | None) -> str | None:
        file = text_file(self.text, folder)
        return text.fingerprint(self.text) if file is None else sha256(file)

    def fingerprint(self, folder: Path | None = None) -> str | None:
        return super().fingerprint(folder) if self.has_text(folder) else None

    def width(self) -> int | None:
        """That of the model's layers, which a module inside a layer need not have."""
        found = self.sizes()
        return None if found is None else found.width

    def load_with(self, device: str, folder: Path | None = None) -> Vectors:
        """Compute the activations on the device, and keep them in the folder (the cache by default)."""
        tokens = self.tokens()
        rows = self.rows(tokens, device, folder or cache() / "activations")
        kinds = token_kinds(self.model)[tokens[:, 1:]]
        per = self.context - 1
        tenth = len(tokens) // 10
        cuts = [len(tokens) - 2 * tenth, tenth, tenth]
        split = list(zip(rows.split([n * per for n in cuts]), kinds.split(cuts), strict=True))
        own = Preparation.of(split[0][0], self.longest)
        train, validation, test = (Part(own.prepare(x[usual := own.usual(x)]), y.flatten()[usual]) for x, y in split)
        batches = tokens[-tenth:][:SPLICED].split(self.batch)
        splice = Splice(shared_model(self.model).to(device), self.hook, batches, own)
        return Vectors(train, validation, test, splice=splice.loss_recovered, preparation=own)

    def tokens(self) -> Int[Tensor, "sequences context"]:
        """Cut the text into rows of `context` tokens; an incomplete last row is left out."""
        ids = shared_tokenizer(self.model)(read_text(self.text), verbose=False)["input_ids"]
        count = min(self.sequences, len(ids) // self.context)
        if count < 10:
            raise UserError(f"'{self.text}' has {len(ids)} tokens: too few for 10 sequences of {self.context}.")
        return torch.tensor(ids[: count * self.context]).view(count, self.context)

    def rows(self, tokens: Int[Tensor, "sequences context"], device: str, folder: Path) -> Float[Tensor, "rows d"]:
        # Devices and precisions round differently, so each has a cache of its own.
        weights = weights_hash(self.model)
        model = shared_model(self.model).to(device)
        numbers = [device, str(next(model.parameters()).dtype), torch.get_float32_matmul_precision()]
        text = hashlib.sha256(tokens.numpy().tobytes()).hexdigest()
        spec = {key: value for key, value in self.spec().items() if key != "longest"}  # it only selects cached rows
        key = canonical([spec, weights, text, numbers])
        folder = folder / hashlib.sha256(key.encode()).hexdigest()[:16]
        batches: Iterator[Tensor] = (batch.to(device) for batch in tokens.split(self.batch))
        return activation_cache.collect(model, [self.hook], batches, folder).read(self.hook)
