"""What a layer of a language model puts out, token by token: what sparse coders are made for.

    assay sae --data activations:model=stories260K:hook=model.layers.2:text=wikitext-2/valid.txt --d_code 512

`model` is a folder in Hugging Face format (in the data folder, in its models/, or anywhere) or a name on the hub,
`hook` a module's name, `text` a file. Sequences go to training, choosing and reporting 8 : 1 : 1, whole, so that no
token of a test sequence was trained on. Rows are centred and scaled by what is measured on the training rows: |x|^2 is
d_in on average. Labels: what kind of piece a token is. Activations are kept on disk (the cache), and taken up from
there.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from assay.core.errors import UserError
from assay.core.run import canonical
from assay.data.places import FOLDER, cache
from assay.nn import hooks
from assay.vectors import vectors
from assay.vectors.base import Part, VectorData, Vectors

REMEDY = "Give a file or folder, as a path or relative to --data_dir (or the environment variable ASSAY_DATA)."
KINDS = ("lower-case start", "capital start", "continuation", "number", "other")


@vectors.register("activations")
@dataclass(frozen=True, kw_only=True)
class Activations(VectorData):
    """The output of a module of a Hugging Face causal language model, per token of a text."""

    model: str = "stories260K"
    """A folder in Hugging Face format, or a name on the hub."""
    hook: str = "model.layers.2"
    """The module, as `named_modules` names it."""
    text: str = "wikitext-2/valid.txt"
    """A text file."""
    sequences: int = 1000
    """Sequences of the text, at most."""
    context: int = 128
    """Tokens of a sequence; the first is left out."""
    batch: int = 16
    """Sequences of one forward pass."""

    def __post_init__(self) -> None:
        if self.sequences < 10 or self.context < 3 or self.batch < 1:
            raise UserError(f"{self.label}: at least 10 sequences of 3 tokens, in batches of at least 1.")

    def locate(self) -> None:
        find_text(self.text)

    def load(self) -> Vectors:
        return self.load_with("cpu")

    def load_with(self, device: str, folder: Path | None = None) -> Vectors:
        """Activations computed on the device, and kept in the folder (the cache by default)."""
        tokens = self.tokens()
        rows = self.rows(tokens, device, folder or cache() / "activations")
        kinds = _kinds(self.model)[tokens[:, 1:]]
        per = self.context - 1
        tenth = len(tokens) // 10
        cuts = [len(tokens) - 2 * tenth, tenth, tenth]
        parts = [
            Part(x, y.flatten()) for x, y in zip(rows.split([n * per for n in cuts]), kinds.split(cuts), strict=True)
        ]
        mean = parts[0].x.mean(dim=0)
        scale = (parts[0].x - mean).square().mean().sqrt()
        train, validation, test = (Part((part.x - mean) / scale, part.labels) for part in parts)
        held_out = tokens[-tenth:]

        def splice(reconstruct: Callable[[Tensor], Tensor]) -> dict[str, float]:
            return self.loss_recovered(held_out, mean, scale, reconstruct, device)

        return Vectors(train, validation, test, splice=splice)

    def tokens(self) -> Int[Tensor, "sequences context"]:
        """The text as rows of `context` tokens; what fills no row is left out."""
        ids = _tokenizer(self.model)(find_text(self.text).read_text(encoding="utf-8"), verbose=False)["input_ids"]
        count = min(self.sequences, len(ids) // self.context)
        if count < 10:
            raise UserError(f"'{self.text}' has {len(ids)} tokens: too few for 10 sequences of {self.context}.")
        return torch.tensor(ids[: count * self.context]).view(count, self.context)

    def rows(self, tokens: Int[Tensor, "sequences context"], device: str, folder: Path) -> Float[Tensor, "rows d"]:
        # Devices and precisions round otherwise: what one of them computed is not another's.
        weights = _fingerprint(self.model)
        model = _model(self.model).to(device)
        numbers = [device, str(next(model.parameters()).dtype), torch.get_float32_matmul_precision()]
        text = hashlib.sha256(tokens.numpy().tobytes()).hexdigest()
        key = canonical([self.spec(), weights, text, numbers])
        folder = folder / hashlib.sha256(key.encode()).hexdigest()[:16]
        batches: Iterator[Tensor] = (batch.to(device) for batch in tokens.split(self.batch))
        return hooks.collect(model, [self.hook], batches, folder).read(self.hook)

    @torch.no_grad()
    def loss_recovered(
        self,
        tokens: Tensor,
        mean: Tensor,
        scale: Tensor,
        reconstruct: Callable[[Tensor], Tensor],
        device: str = "cpu",
    ) -> dict[str, float]:
        """Cross entropy of the next token with the module's output as it is, reconstructed, at its mean, and at zero;
        and the share of the way from zero (from the mean) back to the model's own that the reconstruction makes."""
        model = _model(self.model).to(device)

        def through(x: Tensor) -> Tensor:
            flat = (x[:, 1:].flatten(0, 1).float() - mean.to(x.device)) / scale.to(x.device)
            back = reconstruct(flat) * scale.to(x.device) + mean.to(x.device)
            return torch.cat([x[:, :1], back.view_as(x[:, 1:]).to(x.dtype)], dim=1)

        def loss() -> float:
            sums, count = 0.0, 0
            for batch in tokens.split(self.batch):
                ids = batch.to(device)
                logits = model(ids).logits[:, 1:-1].float()
                sums += float(cross_entropy(logits.flatten(0, 1), ids[:, 2:].flatten(), reduction="sum"))
                count += ids[:, 2:].numel()
            return sums / count

        changes: dict[str, Callable[[Tensor], Tensor]] = {
            "ce_spliced": through,
            "ce_mean": lambda x: torch.cat([x[:, :1], mean.to(x).expand_as(x[:, 1:])], dim=1),
            "ce_zero": lambda x: torch.cat([x[:, :1], torch.zeros_like(x[:, 1:])], dim=1),
        }
        found = {"ce": loss()}
        for name, change in changes.items():
            with hooks.replaced(model, self.hook, change):
                found[name] = loss()
        found["loss_recovered"] = (found["ce_zero"] - found["ce_spliced"]) / (found["ce_zero"] - found["ce"])
        found["loss_recovered_from_mean"] = (found["ce_mean"] - found["ce_spliced"]) / (found["ce_mean"] - found["ce"])
        return found


def find_text(name: str) -> Path:
    for path in (Path(os.environ.get(FOLDER, "data")) / name, Path(name)):
        if path.is_file():
            return path
    raise UserError(f"no text '{name}'. {REMEDY}")


def find_model(name: str) -> str:
    """A local folder, or the name as it is, for the hub."""
    data = Path(os.environ.get(FOLDER, "data"))
    for path in (data / name, data / "models" / name, Path(name)):
        if (path / "config.json").is_file():
            return str(path)
    return name


def layer_name(model: str, layer: int) -> str:
    """The module that is a model's layer: `transformer.h.6` of GPT-2, `model.layers.6` of Llama and its kind."""
    names = [name for name, _ in _model(model).named_modules() if name.split(".")[-1] == str(layer)]
    if not names:
        raise UserError(f"'{model}' has no layer {layer}. Name a module instead: vectors.activations has `hook`.")
    return min(names, key=len)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise UserError("language models need the extra `lm`: pip install 'assay-bench[lm]'.") from None
    return transformers


@lru_cache(maxsize=1)
def _model(name: str) -> Any:
    try:
        model = _transformers().AutoModelForCausalLM.from_pretrained(find_model(name), dtype=torch.float32)
    except OSError as error:
        raise UserError(f"no model '{name}': {str(error).splitlines()[0]} {REMEDY}") from None
    return model.eval()


@lru_cache(maxsize=2)
def _tokenizer(name: str) -> Any:
    try:
        return _transformers().AutoTokenizer.from_pretrained(find_model(name))
    except OSError as error:
        raise UserError(f"no tokenizer '{name}': {str(error).splitlines()[0]} {REMEDY}") from None


def _fingerprint(name: str) -> str:
    """Of the weights, so that a cache is not taken for another model's of the same name."""
    return str(float(sum(p.detach().cpu().double().abs().sum() for p in _model(name).parameters())))


@lru_cache(maxsize=2)
def _kinds(name: str) -> Int[Tensor, " vocabulary"]:
    """What kind of piece each token is, by how it is written."""
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
