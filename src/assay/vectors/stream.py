"""A stream of activations: as `activations`, but rows are made while coders train on them, and never lie in memory all.

    assay sae --data stream:model=smollm2-135m:hook=model.layers.15:text=FOLDER:tokens=50_000_000 --steps 20000

`model` is a folder in Hugging Face format (in the data folder, in its models/, or anywhere), a name on the hub, or
smollm2-135m, which needs no hub; `text` a file or folder (.txt, .md, .jsonl, .gz of them; in the data folder, or
anywhere), a name that data.text knows, such as pydoc, or any text data set of the hub (`owner/name`). Runs that differ
in `hook` alone share one forward pass: `--grid data.hook=model.layers.7,model.layers.15`.

The text is tokenised once, up to `tokens` and what is held out, and kept on disk. Whole documents are held out, half of
them to choose by and half to report on (of one long document, pieces: data.token_windows). If training takes more steps
than the text has rows, it goes through the text again, in another order. A sample of training rows lies in memory: the
scale is measured on it, and decoders are fitted to it.

On CUDA the language model computes in bf16 autocast, and scores of what a reconstruction costs it in float32. There are
no labels.

Differs from the spec: rows are streamed, where its code has all in memory; as for `activations`, a row is one token,
centred and scaled, and attention sinks and the first token of each window are left out.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from assay.core.errors import UserError
from assay.core.run import canonical
from assay.data import text
from assay.data.named import shared_model, shared_tokenizer, text_path, weights_hash
from assay.data.places import cache
from assay.data.row_stream import RowStream, raw_rows
from assay.data.splice import Splice
from assay.data.token_windows import Windows, token_file
from assay.nn.preparation import Preparation
from assay.vectors import vectors
from assay.vectors.base import ModelOutputs, Part, Vectors

SAMPLE = 2**16
"""Training rows in memory: the scale is measured on them, decoders are fitted to them."""
SPLICED, AT_ONCE = 128, 16
"""Most test windows that a reconstruction is spliced into, and how many at a time: each token has its logits."""


@vectors.register("stream")
@dataclass(frozen=True, kw_only=True)
class Stream(ModelOutputs):
    """The outputs of a module of a Hugging Face causal language model, streamed while coders are trained on them."""

    streams: ClassVar[bool] = True

    text: str = "pydoc"
    """A text file, a folder of them, a text that has a name, or a data set of the hub."""
    tokens: int = 1_000_000
    """Most tokens of the text to train on; a shorter text is read again."""
    batch: int = 64
    """Windows of one forward pass."""
    buffer: int = 2**16
    """Rows in memory at a time, from which batches are drawn."""
    held_out: int = 2**16
    """Tokens of other documents to choose by, and as many to report on; at most a tenth of the text each."""

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {"tokens": 10 * self.context, "context": 3, "batch": 1, "buffer": 2, "held_out": self.context}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise UserError(f"{self.label}: {name}={getattr(self, name)} is too small; at least {value}.")

    def has_text(self, folder: Path | None) -> bool:
        return self.text == text.PYDOC or text_path(self.text, folder) is not None or text.is_on_the_hub(self.text)

    def text_hash(self, folder: Path | None) -> list[str] | str | None:
        if (path := text_path(self.text, folder)) is not None:
            return text.file_hashes(path)
        return text.fingerprint(self.text) if self.text == text.PYDOC else None

    def shape(self) -> tuple[int, int] | None:
        """The sample's rows, and the width of a layer, where the model is here; that of another module is not known."""
        found = self.sizes() if self.hook.rpartition(".")[2].isdigit() else None
        return None if found is None else (min(SAMPLE, self.tokens), found.width)

    def windows(self) -> Windows:
        """Tokenise the text, or read the tokens that were kept."""
        path = text_path(self.text)
        documents = text.documents(str(path) if path else self.text)
        limit = self.tokens + 2 * self.held_out
        content = [self.text_hash(None) or self.text, weights_hash(self.model), limit]
        key = hashlib.sha256(canonical(content).encode()).hexdigest()[:16]
        tokenizer = shared_tokenizer(self.model)
        kept = token_file(documents, tokenizer, limit=limit, folder=cache() / "tokens", key=key)
        return kept.windows(self.context, self.held_out)

    def load_with(self, device: str) -> Vectors:
        """Load a sample of the training rows, and all held-out rows."""
        windows, model = self.windows(), shared_model(self.model).to(device)
        sample = min(SAMPLE // (self.context - 1), len(windows.train))
        places = (windows.training(0, max(1, sample)), windows.validation, windows.test)
        batches = ((windows.tokens(few) for few in some.split(self.batch)) for some in places)
        raw = [torch.cat([rows[self.hook] for rows in raw_rows(model, [self.hook], some)]) for some in batches]
        own = Preparation.of(raw[0], self.longest)
        train, validation, test = (Part(own.prepare(x[own.usual(x)])) for x in raw)
        splice = Splice(model, self.hook, windows.tokens(windows.test[:SPLICED]).split(AT_ONCE), own)
        return Vectors(train, validation, test, splice=splice.loss_recovered, preparation=own, streamed=True)

    def rows(self, preparations: Mapping[str, Preparation]) -> RowStream:
        """Stream rows of the modules of these names, this stream's or not, from one forward pass."""
        model = shared_model(self.model).to(next(iter(preparations.values())).mean.device)
        return RowStream(model, self.windows(), preparations, rows=self.buffer, batch=self.batch)
