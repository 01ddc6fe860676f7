"""A text and a language model are found by the names that options give; a model is loaded once per process."""

import hashlib
import io
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from assay.core.errors import UserError
from assay.core.files import exists, is_there, read_file, reason
from assay.data import language_model, places, text

REMEDY = "Give a file or folder, as a path or relative to --data_dir (or the environment variable ASSAY_DATA)."


def text_path(name: str, folder: Path | None = None) -> Path | None:
    """Find a text file, or a folder of them, in a data folder, or anywhere."""
    there = (places.found(name, folder=folder, remedy=REMEDY), Path(name))
    return next((path for path in there if path and exists(path)), None)


def text_file(name: str, folder: Path | None = None) -> Path | None:
    """Find a text file in a data folder, or anywhere."""
    path = text_path(name, folder)
    return path if path and is_there(path) else None


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
    return f"no text '{name}'. {REMEDY} There is always `{text.PYDOC}`; `assay data pull library` fetches more."


def model_folder(name: str, folder: Path | None = None) -> str | None:
    """Find a model's folder inside a data folder."""
    return language_model.model_folder(name, folder, remedy=REMEDY)


def find_model(name: str) -> str:
    """Find a model in a data folder, or by its name."""
    return model_folder(name) or language_model.where(name)


def layer_name(model: str, layer: int) -> str:
    """The module that is a model's layer: `transformer.h.6` of GPT-2, `model.layers.6` of Llama and its kind."""
    names = [name for name, _ in shared_model(model).named_modules() if name.split(".")[-1] == str(layer)]
    if not names:
        raise UserError(f"'{model}' has no layer {layer}. Name a module instead: vectors.activations has `hook`.")
    return min(names, key=len)


def shared_model(name: str) -> nn.Module:
    where = find_model(name)
    return loaded_model(where, language_model.fingerprint(where))


def shared_tokenizer(name: str) -> Any:
    where = find_model(name)
    return loaded_tokenizer(where, language_model.fingerprint(where))


@lru_cache(maxsize=1)
def loaded_model(where: str, content: str | None) -> nn.Module:
    """Load a model once per process, until its files change."""
    return language_model.load_model(where, dtype="float32")


@lru_cache(maxsize=2)
def loaded_tokenizer(where: str, content: str | None) -> Any:
    return language_model.load_tokenizer(where)


def weights_hash(name: str) -> str:
    """Hash a model, so that a cache is not taken for another's of the same name: a folder's files, or for a name on the
    hub, whose weights may change, the loaded weights."""
    return language_model.fingerprint(find_model(name)) or content_hash(shared_model(name))


def content_hash(model: nn.Module) -> str:
    """Hash the architecture's options and every weight, bit by bit, with its name."""
    found = hashlib.sha256(str(getattr(model, "config", "")).encode())
    for name, weight in model.state_dict().items():
        found.update(f"{name} {weight.dtype} {tuple(weight.shape)} ".encode())
        found.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def token_kinds(name: str) -> Int[Tensor, " vocabulary"]:
    """Classify each token of the vocabulary by how it is written: 0 begins a word in lower case, 1 with a capital, 2
    goes on with one, 3 is a number, 4 anything else."""
    tokenizer = shared_tokenizer(name)
    size = max(len(tokenizer), int(tokenizer.vocab_size))
    return torch.tensor([_kind(str(tokenizer.convert_ids_to_tokens(i) or "")) for i in range(size)])


def _kind(piece: str) -> int:
    starts, letters = piece[:1] in ("\u2581", "\u0120", " "), piece.lstrip("\u2581\u0120 ")
    if letters.isdigit():
        return 3
    if not letters.isalpha():
        return 4
    return (1 if letters[:1].isupper() else 0) if starts else 2
