"""The parts of an experiment under the spec's names: texts, methods, the model and the two sweeps.

An unknown key is an error; a known one that has no effect here (another program's batch size) is a warning.
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from assay.attention import attention
from assay.core.convert import nearest, option_types
from assay.core.errors import UserError
from assay.data.text import named


class PerplexityDataset(StrEnum):
    WIKITEXT_103 = "wikitext-103"
    WIKITEXT_2 = "wikitext-2"
    C4 = "c4"
    PG19 = "pg19"
    PYDOC = "pydoc"
    COPY = "copy"


MethodName = StrEnum("MethodName", {name.upper(): name for name in attention.names()})  # type: ignore[misc]


@dataclass(frozen=True)
class DatasetConfig:
    """Options of one text. Windows never overlap and sources are known, so the other keys have no effect."""

    name: str = ""
    hf_path: str | None = None
    hf_subset: str | None = None
    split: str = "test"
    text_column: str = "text"
    max_samples: int | None = None
    min_length: int = 512
    max_length: int = 4096
    stride: int | None = None
    cache_dir: str | None = None

    without_meaning = (
        "hf_path", "hf_subset", "split", "text_column", "min_length", "max_length", "stride", "cache_dir",
    )  # fmt: skip


@dataclass(frozen=True)
class MethodConfig:
    """Options of one method; None is the method's own default."""

    name: str = ""
    sparsity: float | None = None
    block_size: int | None = None
    lambda_redundancy: float | None = None
    magnitude_ratio: float | None = None
    formula: str | None = None
    normalization: str | None = None
    num_sink_tokens: int | None = None
    window_size: int | None = None
    local_window: int | None = None
    stride: int | None = None
    causal: bool | None = None
    keep_diagonal: bool | None = None

    def word(self, name: str) -> str:
        """Write the method as `streaming_llm:num_sink_tokens=8`, without the options that it does not have."""
        known = option_types(attention[name.partition(":")[0]])
        return ":".join([name, *(f"{key}={value}" for key, value in self._given() if key in known)])

    def unheard(self, name: str) -> list[str]:
        known = option_types(attention[name.partition(":")[0]])
        return [f"{name}.{key}" for key, value in self._given() if key not in known and (key, value) not in ALWAYS]

    def _given(self) -> list[tuple[str, Any]]:
        return [(key, value) for key, value in asdict(self).items() if value is not None and key != "name"]


ALWAYS = (("causal", True), ("keep_diagonal", True), ("formula", "additive"), ("normalization", "minmax"))
"""Options that every method follows anyway."""


@dataclass(frozen=True)
class ModelConfig:
    name: str = "meta-llama/Llama-2-7b-hf"
    revision: str | None = None
    torch_dtype: str = "auto"
    device_map: str = "auto"
    max_length: int = 4096
    use_flash_attention: bool = True
    gradient_checkpointing: bool = False
    add_bos: bool = True
    add_eos: bool = False

    without_meaning = ("device_map", "use_flash_attention", "gradient_checkpointing", "add_bos", "add_eos")


@dataclass(frozen=True)
class ContextLengthSweepConfig:
    enabled: bool = True
    context_lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384)
    fixed_sparsity: float = 0.9


@dataclass(frozen=True)
class SparsitySweepConfig:
    enabled: bool = True
    sparsity_levels: tuple[float, ...] = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
    fixed_context_length: int = 4096


DATASET_CONFIGS = {name.value: DatasetConfig(name=name.value) for name in PerplexityDataset}
METHOD_CONFIGS = {name: MethodConfig(name=name) for name in attention.names()}


def get_dataset_config(name: str) -> DatasetConfig:
    return _chosen(DATASET_CONFIGS, named(name), "dataset")


def get_method_config(name: str) -> MethodConfig:
    return _chosen(METHOD_CONFIGS, attention[name].name, "method")


def _chosen(table: Mapping[str, Any], name: str, kind: str) -> Any:
    if name not in table:
        raise UserError(f"no {kind} '{name}'.{nearest(name, table)} Known: {', '.join(table)}.")
    return table[name]


def unheard(config: Any, what: str = "") -> list[str]:
    """Return the keys that are set and have no effect here."""
    return [f"{what}{key}" for key in config.without_meaning if getattr(config, key) != getattr(type(config), key)]


def warn(keys: Iterable[str]) -> None:
    """Name the keys without effect, each once."""
    if each := dict.fromkeys(keys):
        say(f"accepted, but without meaning here: {', '.join(each)}")


def say(text: str) -> None:
    warnings.warn(text, stacklevel=3)
