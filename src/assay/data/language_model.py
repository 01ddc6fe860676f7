"""Causal language models of the Hugging Face kind are found and loaded here.

smollm2-135m                           needs no hub (data.smollm2)
a folder, or a name on the hub         as transformers knows them; it is in the extra `lm`. A folder is looked for here,
                                       then in the data folder (ASSAY_DATA) and in its models/
a GGUF file                            llama.cpp's format, unpacked by transformers

A quantised model runs as its config says (`quantization_config`), by the package that quantised it, which no extra of
assay installs.
"""

import hashlib
import importlib.util
import io
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from assay.core.errors import UserError
from assay.core.files import is_there, read_file, sha256
from assay.data import hub, places, smollm2

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
WEIGHTS = (".safetensors", ".bin")
GGUF = ".gguf"
KNOWN_WITHOUT_THE_HUB = {smollm2.NAME: smollm2.folder}
POSITIONS = {
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 2048,
    "meta-llama/Llama-2-7b-hf": 4096,
    "HuggingFaceTB/SmolLM2-1.7B": 8192,
    smollm2.NAME: 8192,
    "togethercomputer/LLaMA-2-7B-32K": 32768,
}
"""Positions of the models that a default or a config names, known before they are here."""
PACKAGES: Mapping[str, Sequence[str]] = {
    "bitsandbytes": ("bitsandbytes",),
    "torchao": ("torchao",),
    "gptq": ("gptqmodel", "optimum"),
    "awq": ("gptqmodel",),
    "compressed-tensors": ("compressed-tensors",),
    "quanto": ("optimum-quanto",),
    "hqq": ("hqq",),
}
"""What loads the weights of a method; of others transformers says what is missing."""
MODULES = {"optimum-quanto": "optimum.quanto"}
"""Import names that are not the package's with underscores."""
NO_CODE = {"trust_remote_code": False}
"""Passed at every loading: otherwise transformers asks on the terminal, and `yes |` would run a model's own code."""


def transformers() -> Any:
    """Return the library, or raise a UserError that says what to install."""
    try:
        import transformers
    except ImportError:
        raise UserError("language models need transformers: pip install 'assay-bench[lm]'.") from None
    # Torch lists its tensor constructors at the first use of a device context. Transformers replaces torch.linspace
    # while it loads a model: listed then, the real one would ignore every device context of the process.
    with torch.device("meta"):
        torch.empty(0)
    return transformers


def load_model(
    name: str, *, dtype: str = "auto", device: str | torch.device = "cpu", revision: str | None = None
) -> nn.Module:
    """Load a causal language model by its name on the hub, by its folder, or as `smollm2-135m`, which needs no hub.
    `auto` is float32 on a CPU and bfloat16 elsewhere."""
    if dtype != "auto" and dtype not in DTYPES:
        raise UserError(f"--dtype {dtype}: choose auto, {', '.join(DTYPES)}.")
    wanted = DTYPES.get(dtype, torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32)
    if quantisation_of(load_config(name, revision=revision)):
        return _quantised(name, wanted, device, revision)
    # The bar that is drawn while a GGUF file is unpacked is kept off the terminal.
    with quiet(name), redirect_stderr(io.StringIO()) if is_gguf(name) else nullcontext():
        model = transformers().AutoModelForCausalLM.from_pretrained(
            where(name), dtype=wanted, revision=revision, **packed(name), **NO_CODE
        )
    return model.to(device).eval()


def _quantised(name: str, dtype: torch.dtype, device: str | torch.device, revision: str | None) -> nn.Module:
    """Load a quantised model as it is, on its device at once: packed weights cannot be moved by every method."""
    check_loads(name, revision=revision)
    # Weights of another size are told below, with those that are missing: transformers would raise for them first.
    placed = {"device_map": {"": str(device)}, "output_loading_info": True, "ignore_mismatched_sizes": True}
    # bitsandbytes logs a line for each product of a float32 model, whose inputs it rounds to 16 bit.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    with quiet(name):
        model, told = transformers().AutoModelForCausalLM.from_pretrained(
            where(name), dtype=dtype, revision=revision, **placed, **packed(name), **NO_CODE
        )
    missing, odd = sorted(told["missing_keys"]), sorted(weight for weight, *_ in told["mismatched_keys"])
    if wrong := missing or odd:
        what = f"lacks {len(wrong)} of its weights" if missing else f"has {len(wrong)} weights of another size"
        raise UserError(
            f"the model '{name}' {what}, such as {wrong[0]}: it was not written by the method that its "
            "quantization_config names."
        )
    return model.eval()


def quantisation_of(config: Any) -> str | None:
    """Return the method by which a model is quantised, None where it is not."""
    told = getattr(config, "quantization_config", None)
    told = told if told is None or isinstance(told, Mapping) else told.to_dict()
    if not told:
        return None
    if told.get("load_in_4bit") or told.get("load_in_8bit"):
        return "bitsandbytes"  # its first configs named no method
    method = told.get("quant_method", "no method")
    return str(getattr(method, "value", method))  # a config object has an Enum


def check_loads(name: str, *, revision: str | None = None) -> None:
    """Raise UserError where a model is quantised by a method that transformers does not know, which it would leave out
    without a word, or whose packages are missing."""
    if not (method := quantisation_of(load_config(name, revision=revision))):
        return
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    known = {word.removesuffix("_4bit").removesuffix("_8bit") for word in AUTO_QUANTIZER_MAPPING}
    if method not in known:
        raise UserError(f"the model '{name}' is quantised with '{method}', which this transformers does not know.")
    if missing := [package for package in PACKAGES.get(method, ()) if not _is_installed(package)]:
        raise UserError(f"the model '{name}' is quantised with {method}: pip install {' '.join(missing)}.")


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(MODULES.get(package, package.replace("-", "_"))) is not None
    except ModuleNotFoundError:  # the package that holds it is not there
        return False


def outline(name: str, *, revision: str | None = None) -> nn.Module:
    """Return a model's modules without weights, from its config: their names are known before any weights are read."""
    library, config = transformers(), load_config(name, revision=revision)
    with quiet(name), torch.device("meta"):
        found: nn.Module = library.AutoModelForCausalLM.from_config(config, **NO_CODE)
    return found


def check_not_gguf_folder(name: str) -> None:
    """Raise UserError for a folder whose weights are in GGUF files alone: each of them is a model."""
    folder = placed(name)
    files = sorted(Path(folder).iterdir()) if is_there(folder, folder=True) else []
    if (own := [path for path in files if path.suffix == GGUF]) and not any(path.suffix in WEIGHTS for path in files):
        raise UserError(f"cannot load the model '{name}': a GGUF file is a model, give the file itself, {own[0]}.")


def load_config(name: str, *, revision: str | None = None) -> Any:
    """Return the config of a model's architecture."""
    check_not_gguf_folder(name)
    if is_gguf(name):
        return deepcopy(_unpacked_config(name, fingerprint(name)))
    with quiet(name):
        return transformers().AutoConfig.from_pretrained(where(name), revision=revision, **NO_CODE)


@lru_cache(maxsize=4)
def _unpacked_config(name: str, content: str | None) -> Any:
    """Read the config of a GGUF file once: the vocabulary is read with it, which takes ten seconds."""
    with quiet(name):
        return transformers().AutoConfig.from_pretrained(where(name), **packed(name), **NO_CODE)


def is_here(name: str, *, revision: str | None = None) -> bool:
    """Return whether its config can be read without fetching anything: from a folder or a cache."""
    if name in KNOWN_WITHOUT_THE_HUB:
        return smollm2.is_converted()
    if is_there(placed(name), folder=True) or is_gguf(name):
        return True
    try:
        from huggingface_hub import try_to_load_from_cache

        return isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)
    except (ImportError, ValueError):  # not a name the hub could have
        return False


def may_slide(name: str) -> bool:
    """Return whether a model may have a sliding window: not where its config is here and names none."""
    if name in KNOWN_WITHOUT_THE_HUB:
        return False
    config = Path(placed(name)) / "config.json"
    return not is_there(config) or re.search(rb'"sliding_window"\s*:\s*\d', read_file(config)) is not None


def check_contexts(name: str, contexts: Iterable[int], *, option: str, revision: str | None = None) -> None:
    """Raise UserError for contexts that are longer than the model has positions for."""
    if (most := POSITIONS.get(name)) is None:
        most = getattr(load_config(name, revision=revision).get_text_config(), "max_position_embeddings", None)
    if most is not None and (beyond := [str(context) for context in sorted(set(contexts)) if context > most]):
        raise UserError(
            f"'{name}' has {most} positions (max_position_embeddings), fewer than a context of {', '.join(beyond)}. "
            f"Give {option} up to {most}."
        )


@dataclass(frozen=True)
class Sizes:
    """Sizes of a language model, from its config."""

    weights: int
    vocab: int
    width: int
    heads: int


@lru_cache(maxsize=64)
def sizes(name: str, content: str | None, revision: str | None = None) -> Sizes:
    """Return the sizes from the config, without weights; cached in the process until a folder's content changes."""
    model = outline(name, revision=revision)
    text = model.config.get_text_config()  # type: ignore[union-attr, operator]
    weights = sum(parameter.numel() for parameter in model.parameters())
    return Sizes(weights, text.vocab_size, text.hidden_size, text.num_attention_heads)


def load_tokenizer(name: str, *, revision: str | None = None) -> Any:
    with quiet(name):
        return transformers().AutoTokenizer.from_pretrained(where(name), revision=revision, **packed(name), **NO_CODE)


def where(name: str) -> str:
    """Return the folder, for models that come without the hub and for GGUF files."""
    if name in KNOWN_WITHOUT_THE_HUB:
        return str(KNOWN_WITHOUT_THE_HUB[name]())
    return str(Path(name).parent) if is_gguf(name) else placed(name)


def placed(name: str) -> str:
    """Return the folder of a model that is named by its place in the data folder; any other name as it is."""
    if is_there(name, folder=True) or is_gguf(name):
        return name
    with suppress(UserError):  # that ASSAY_DATA names no folder is said where a text is looked for in it
        return model_folder(name) or name
    return name


def model_folder(name: str, folder: Path | None = None, *, remedy: str = "") -> str | None:
    """Find a model's folder inside a data folder."""
    config = places.found(f"{name}/config.json", f"models/{name}/config.json", folder=folder, remedy=remedy)
    return None if config is None else str(config.parent)


def is_gguf(name: str) -> bool:
    """Return whether it is a file of llama.cpp's format, whose weights are unpacked when it is loaded."""
    return name.endswith(GGUF) and is_there(name)


def packed(name: str) -> dict[str, str]:
    """Return the argument that names a GGUF file inside its folder; none for other models."""
    return {"gguf_file": Path(name).name} if is_gguf(name) else {}


def fingerprint(name: str) -> str | None:
    """Return the hash of a folder's config, tokenizer and weights, or of a GGUF file; None for a name on the hub, which
    identifies one model."""
    if is_gguf(name):
        return sha256(Path(name))
    folder = Path(placed(name))
    if name in KNOWN_WITHOUT_THE_HUB or not is_there(folder, folder=True):
        return None
    found = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".model", *WEIGHTS):
            found.update(f"{path.name} {sha256(path)} ".encode())
    return found.hexdigest()


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Hide the library's progress bars inside; a model that cannot be loaded is a one-line UserError."""
    library = transformers().utils.logging
    shown = library.is_progress_bar_enabled()
    library.disable_progress_bar()
    try:
        with hub.silent():
            yield
    except ImportError as error:  # of a package that reads its weights or its tokenizer
        said = " ".join(str(error).split())
        raise UserError(f"cannot load the model '{name}': {said}") from None
    except (OSError, ValueError) as error:
        if "trust_remote_code" in str(error):
            raise UserError(
                f"cannot load the model '{name}': it comes with Python code of its own, which assay never runs. Choose "
                "a model whose architecture is in transformers."
            ) from None
        here = is_there(placed(name), folder=True) or is_gguf(name)
        missing = "it" if here else "there is no such folder here, and the hub"
        raise UserError(
            f"cannot load the model '{name}': {missing} gave: {hub.reason(error)} "
            f"Without the hub there is `{smollm2.NAME}` (assay perplexity --quick-test --offline)."
        ) from None
    finally:
        if shown:
            library.enable_progress_bar()
