"""Quantised language models run as their config says (`quantization_config`), by the packages that quantise them.

bitsandbytes, torchao, gptq, awq, ...     found by transformers; each needs a package that no extra of assay installs
"""

import importlib.util
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from assay.core.errors import UserError

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


def check_quantised(name: str, method: str) -> None:
    """Raise UserError for a method that transformers does not know, which it would leave out without a word, and for
    packages that are missing."""
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


def hush() -> None:
    """Keep bitsandbytes from logging one line for each product of a float32 model, whose inputs it rounds to 16 bit."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
