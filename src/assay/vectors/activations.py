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
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from assay.core.errors import UserError
from assay.core.files import is_there, read_file, reason
from assay.core.run import canonical
from assay.data import activation_cache, language_model, places, text
from assay.data.packages import sha256
from assay.data.places import cache
from assay.nn.preparation import Preparation
from assay.vectors import vectors
from assay.vectors.base import Part, VectorData, Vectors

REMEDY = "Give a file or folder, as a path or relative to --data_dir (or the environment variable ASSAY_DATA)."
SPLICED = 64
"""Most test sequences that a reconstruction is spliced into: each coder takes a forward pass over them."""
CLEARLY = 0.2
"""Nats by which a baseline must exceed the model's own cross entropy for loss recovered to be reported: a
reconstruction moves the loss by tenths, in either direction where the text is unlike the model's training data."""
KINDS = ("lower-case start", "capital start", "continuation", "number", "other")


@vectors.register("activations")
@dataclass(frozen=True, kw_only=True)
class Activations(VectorData):
    """The output of a module of a Hugging Face causal language model, per token of a text."""

    version: ClassVar[int] = 3
    remedy: ClassVar[str] = REMEDY
    prepares: ClassVar[bool] = True

    model: str = "stories260K"
    """A folder in Hugging Face format, a name on the hub, or smollm2-135m, which needs no hub."""
    hook: str = "model.layers.2"
    """The module, as `named_modules` names it."""
    text: str = "wikitext-2/valid.txt"
    """A text file, or a text that has a name: pydoc, wikitext-2, ..."""
    sequences: int = 1000
    """Most sequences of the text."""
    context: int = 128
    """Tokens of a sequence; the first is left out."""
    batch: int = 16
    """Sequences of one forward pass."""
    longest: float = 10.0
    """Rows that are longer than the median training row by more than this factor are left out; 0 keeps all."""

    def __post_init__(self) -> None:
        if self.longest and self.longest <= 1:
            raise UserError(
                f"{self.label}: longest={self.longest:g} would leave out the rows in the middle; 0 or above 1."
            )
        if self.sequences < 10 or self.context < 3 or self.batch < 1:
            raise UserError(f"{self.label}: at least 10 sequences of 3 tokens, in batches of at least 1.")

    def locate(self) -> None:
        read_text(self.text)
        activation_cache.module_at(language_model.outline(find_model(self.model)), self.hook)

    def check(self, folder: Path | None = None) -> None:
        """Check the text and the model, where they are named as files; the module and the context, where the model is
        here already."""
        if self.text != type(self).text and not self._has_text(folder):
            raise UserError(no_text(self.text))
        if (model := self._here(folder)) is not None:
            activation_cache.module_at(language_model.outline(model), self.hook)
            language_model.check_context(model, self.context, option=f"{self.name}:context")
        elif self.model.startswith(("/", ".", "~")):  # no name on the hub begins so
            raise UserError(f"cannot load the model '{self.model}': there is no such folder. {REMEDY}")

    def missing(self, folder: Path | None = None) -> list[str]:
        text_here = self._has_text(folder) and (self.text not in text.HUB or text_file(self.text, folder))
        away = {f"the text '{self.text}'": not text_here, f"the model '{self.model}'": self._here(folder) is None}
        return [what for what, is_away in away.items() if is_away]

    def _has_text(self, folder: Path | None) -> bool:
        return text_file(self.text, folder) is not None or text.is_known(self.text)

    def width(self) -> int | None:
        """That of the model's layers, which a module inside a layer need not have."""
        model = self._here(None)
        return None if model is None else language_model.sizes(model, language_model.fingerprint(model)).width

    def memory(self) -> int:
        """Count every row twice, raw and scaled, the model, and the logits of a batch."""
        if (model := self._here(None)) is None:
            return 0
        found = language_model.sizes(model, language_model.fingerprint(model))
        rows = self.sequences * (self.context - 1)
        return 4 * (2 * rows * found.width + found.weights + self.batch * self.context * found.vocab)

    def _here(self, folder: Path | None) -> str | None:
        """The model's folder or name, or None where it would have to be fetched."""
        name = model_folder(self.model, folder) or self.model
        return name if language_model.is_here(name) else None

    def fingerprint(self, folder: Path | None = None) -> str | None:
        """Hash the text and the model's folder; a name on the hub is not hashed."""
        file = text_file(self.text, folder)
        if file is None and not text.is_known(self.text):
            return None
        words = text.fingerprint(self.text) if file is None else sha256(file)
        parts = [words, language_model.fingerprint(model_folder(self.model, folder) or self.model)]
        return hashlib.sha256(canonical(parts).encode()).hexdigest()[:16] if any(parts) else None

    def load(self) -> Vectors:
        return self.load_with("cpu")

    def load_with(self, device: str, folder: Path | None = None) -> Vectors:
        """Compute the activations on the device, and keep them in the folder (the cache by default)."""
        tokens = self.tokens()
        rows = self.rows(tokens, device, folder or cache() / "activations")
        kinds = _kinds(self.model)[tokens[:, 1:]]
        per = self.context - 1
        tenth = len(tokens) // 10
        cuts = [len(tokens) - 2 * tenth, tenth, tenth]
        split = list(zip(rows.split([n * per for n in cuts]), kinds.split(cuts), strict=True))
        limit = self.longest * float(split[0][0].norm(dim=1).median()) if self.longest else math.inf
        usual = [x.norm(dim=1) <= limit for x, _ in split]
        parts = [Part(x[here], y.flatten()[here]) for (x, y), here in zip(split, usual, strict=True)]
        mean = parts[0].x.mean(dim=0)
        scale = (parts[0].x - mean).square().mean().sqrt()
        train, validation, test = (Part((part.x - mean) / scale, part.labels) for part in parts)
        batches = tokens[-tenth:][:SPLICED].split(self.batch)
        spliced = Splice(_model(self.model).to(device), self.hook, batches, limit)

        def splice(reconstruct: Callable[[Tensor], Tensor]) -> dict[str, float]:
            return spliced.loss_recovered(mean.to(device), scale.to(device), reconstruct)

        return Vectors(train, validation, test, splice=splice, preparation=Preparation(mean, float(scale)))

    def tokens(self) -> Int[Tensor, "sequences context"]:
        """Cut the text into rows of `context` tokens; an incomplete last row is left out."""
        ids = _tokenizer(self.model)(read_text(self.text), verbose=False)["input_ids"]
        count = min(self.sequences, len(ids) // self.context)
        if count < 10:
            raise UserError(f"'{self.text}' has {len(ids)} tokens: too few for 10 sequences of {self.context}.")
        return torch.tensor(ids[: count * self.context]).view(count, self.context)

    def rows(self, tokens: Int[Tensor, "sequences context"], device: str, folder: Path) -> Float[Tensor, "rows d"]:
        # Devices and precisions round differently, so each has a cache of its own.
        weights = _fingerprint(self.model)
        model = _model(self.model).to(device)
        numbers = [device, str(next(model.parameters()).dtype), torch.get_float32_matmul_precision()]
        text = hashlib.sha256(tokens.numpy().tobytes()).hexdigest()
        spec = {key: value for key, value in self.spec().items() if key != "longest"}  # it only selects cached rows
        key = canonical([spec, weights, text, numbers])
        folder = folder / hashlib.sha256(key.encode()).hexdigest()[:16]
        batches: Iterator[Tensor] = (batch.to(device) for batch in tokens.split(self.batch))
        return activation_cache.collect(model, [self.hook], batches, folder).read(self.hook)


class Splice:
    """Runs a language model with a module's output replaced, on the sequences of some batches."""

    def __init__(
        self, model: nn.Module, hook: str, batches: Sequence[Int[Tensor, "sequences context"]], limit: float = math.inf
    ) -> None:
        self.model, self.hook, self.limit = model, hook, limit
        device = next(model.parameters()).device
        self.batches = [batch.to(device) for batch in batches]
        self.baselines: dict[str, float] = {}
        """Losses that do not depend on the reconstruction, measured once."""

    def loss_recovered(
        self, mean: Float[Tensor, " d"], scale: Float[Tensor, ""], reconstruct: Callable[[Tensor], Tensor]
    ) -> dict[str, float]:
        """Measure cross entropy of the next token with the module's output as it is, reconstructed, at its mean, and at
        zero; and the share of the gap from zero (from the mean) to the model's own that the reconstruction recovers,
        where zero (the mean) is `CLEARLY` worse."""
        if not self.baselines:
            self.baselines = {
                "ce": self.loss(lambda x: x),
                "ce_mean": self.loss(lambda x: mean.to(x).expand_as(x)),
                "ce_zero": self.loss(torch.zeros_like),
            }

        def through(x: Tensor) -> Tensor:
            flat = (x.float() - mean) / scale
            return (reconstruct(flat) * scale + mean).to(x.dtype)

        found = {**self.baselines, "ce_spliced": self.loss(through)}
        for name, worst in (("loss_recovered", "ce_zero"), ("loss_recovered_from_mean", "ce_mean")):
            if found[worst] - found["ce"] >= CLEARLY:
                found[name] = (found[worst] - found["ce_spliced"]) / (found[worst] - found["ce"])
        return found

    @torch.no_grad()
    def loss(self, change: Callable[[Tensor], Tensor]) -> float:
        """Compute the loss with the output changed at every token but attention sinks: the first of a sequence, and
        those above the limit."""
        sums, count = 0.0, 0

        def changed(x: Tensor) -> Tensor:
            usual = x.float().norm(dim=2) <= self.limit
            usual[:, 0] = False
            return x.masked_scatter(usual[:, :, None], change(x[usual]))

        with activation_cache.replaced(self.model, self.hook, changed):
            for ids in self.batches:
                logits = self.model(ids).logits[:, 1:-1].float()
                sums += float(cross_entropy(logits.flatten(0, 1), ids[:, 2:].flatten(), reduction="sum"))
                count += ids[:, 2:].numel()
        return sums / count


def text_file(name: str, folder: Path | None = None) -> Path | None:
    """Find a text file in a data folder, or anywhere."""
    there = (places.found(name, folder=folder, remedy=REMEDY), Path(name))
    return next((path for path in there if path and is_there(path)), None)


def read_text(name: str) -> str:
    """Read a file as it is, or the documents of a named text."""
    if file := text_file(name):
        try:
            return io.TextIOWrapper(io.BytesIO(read_file(file)), encoding="utf-8").read()  # every line ends in \n
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"'{file}' is not text in UTF-8: {reason(error)}.") from None
    if not text.is_known(name):
        raise UserError(no_text(name))
    return "\n\n".join(text.load_corpus(name).documents)


def no_text(name: str) -> str:
    return f"no text '{name}'. {REMEDY} Without a file there is `{text.PYDOC}`."


def model_folder(name: str, folder: Path | None = None) -> str | None:
    """Find a model's folder inside a data folder."""
    config = places.found(f"{name}/config.json", f"models/{name}/config.json", folder=folder, remedy=REMEDY)
    return None if config is None else str(config.parent)


def find_model(name: str) -> str:
    """Find a model in a data folder, or by its name."""
    return model_folder(name) or language_model.where(name)


def layer_name(model: str, layer: int) -> str:
    """The module that is a model's layer: `transformer.h.6` of GPT-2, `model.layers.6` of Llama and its kind."""
    names = [name for name, _ in _model(model).named_modules() if name.split(".")[-1] == str(layer)]
    if not names:
        raise UserError(f"'{model}' has no layer {layer}. Name a module instead: vectors.activations has `hook`.")
    return min(names, key=len)


def _model(name: str) -> nn.Module:
    where = find_model(name)
    return _loaded_model(where, language_model.fingerprint(where))


def _tokenizer(name: str) -> Any:
    where = find_model(name)
    return _loaded_tokenizer(where, language_model.fingerprint(where))


@lru_cache(maxsize=1)
def _loaded_model(where: str, content: str | None) -> nn.Module:
    """Load a model once per process, until its files change."""
    return language_model.load_model(where, dtype="float32")


@lru_cache(maxsize=2)
def _loaded_tokenizer(where: str, content: str | None) -> Any:
    return language_model.load_tokenizer(where)


def _fingerprint(name: str) -> str:
    """Hash a model, so that a cache is not taken for another's of the same name: a folder's files, or for a name on the
    hub, whose weights may change, the loaded weights."""
    return language_model.fingerprint(find_model(name)) or _content(_model(name))


def _content(model: nn.Module) -> str:
    """Hash the architecture's options and every weight, bit by bit, with its name."""
    found = hashlib.sha256(str(getattr(model, "config", "")).encode())
    for name, weight in model.state_dict().items():
        found.update(f"{name} {weight.dtype} {tuple(weight.shape)} ".encode())
        found.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _kinds(name: str) -> Int[Tensor, " vocabulary"]:
    """Classify each token of the vocabulary by how it is written."""
    tokenizer = _tokenizer(name)
    size = max(len(tokenizer), int(tokenizer.vocab_size))
    return torch.tensor([_kind(str(tokenizer.convert_ids_to_tokens(i) or "")) for i in range(size)])


def _kind(piece: str) -> int:
    starts, letters = piece[:1] in ("\u2581", "\u0120", " "), piece.lstrip("\u2581\u0120 ")
    if letters.isdigit():
        return 3
    if not letters.isalpha():
        return 4
    return (1 if letters[:1].isupper() else 0) if starts else 2
