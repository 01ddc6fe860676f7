"""Reads and checks the spec's YAML files, and turns them into coders and recipes.

`--config` takes a path, or the name of a file that ships with assay: default, ablation, benchmark, dynamics.
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from assay.core.convert import construct, convert, nearest
from assay.core.errors import UserError
from assay.core.files import TEXT, is_there, read_file, reason
from assay.data import yaml_text
from assay.sparse_coders.base import SparseCoder
from assay.sparse_coders.lse_infomax import LseInfomax
from assay.sparse_coders.relu_l1 import ReluL1
from assay.train.coder_bank import CoderRecipe
from assay.vectors import vectors
from assay.vectors.base import VectorData
from assay.vectors.dictionary import Dictionary
from assay.vectors.mnist import Mnist

WEIGHTS = ("lambda_lse", "lambda_var", "lambda_tc", "lambda_wr", "variance_eps")
KEYS: Mapping[str, Any] = {
    "model": ("input_dim", "hidden_dim", "activation"),
    "loss": WEIGHTS,
    "training": ("epochs", "batch_size", "lr", "optimizer", "seed"),
    "data": ("dataset", "data_dir"),
    "configurations": ("name", *WEIGHTS),
    "models": ("name", "type", "l1_weight"),
    "sweep": ("optimizers", "learning_rates", "seeds"),
    "seeds": None,
}
"""Sections of a file and the keys of each."""
LISTS = ("configurations", "models")
"""Sections that are lists of entries."""
WORDS = ("name", "type", "dataset", "data_dir", "activation", "optimizer")
"""Keys whose values are text even if they look like numbers."""
# YAML 1.1 reads 1e-6 as text, since it requires a dot in a number with an exponent.
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


@dataclass(frozen=True)
class Config:
    """A file's contents, with defaults filled in."""

    where: str
    sections: Mapping[str, Any]
    own: Mapping[str, Any] = field(default_factory=dict)
    """The file's own contents, without the defaults."""

    def get(self, section: str, key: str, default: Any) -> Any:
        return (self.sections.get(section) or {}).get(key, default)

    @property
    def hidden_dim(self) -> int:
        return int(convert(int, self.get("model", "hidden_dim", 64), what=f"{self.where}: model.hidden_dim"))

    @property
    def lr(self) -> float:
        return float(convert(float, self.get("training", "lr", 1e-3), what=f"{self.where}: training.lr"))

    @property
    def data_dir(self) -> Path:
        return Path(str(self.get("data", "data_dir", "data")))

    @property
    def seeds(self) -> tuple[int, ...]:
        given = self.sections.get("seeds") or self.get("sweep", "seeds", None) or [self.get("training", "seed", 42)]
        return tuple(convert(tuple[int, ...], given, what=f"{self.where}: seeds"))

    def recipe(self, *, epochs: int = 0, optimizer: str = "") -> CoderRecipe:
        given = {
            "epochs": epochs or self.get("training", "epochs", 100),
            "batch": self.get("training", "batch_size", 128),
            "optimizer": optimizer or self.get("training", "optimizer", "adam"),
        }
        return convert(CoderRecipe, given, what=f"{self.where}: training")

    def data(self, name: str = "") -> VectorData:
        """Return the data set by name. The spec trains on all of MNIST's 60,000 rows: none are left for validation."""
        name = name or str(self.get("data", "dataset", "mnist"))
        if name == "mnist":
            return Mnist(validation=0)
        if name == "synthetic":
            return Dictionary(
                d_in=convert(int, self.get("model", "input_dim", 64), what=f"{self.where}: model.input_dim")
            )
        return vectors.parse(name)

    def encoder(self, weights: Mapping[str, Any] | None = None) -> LseInfomax:
        given = {**(self.sections.get("loss") or {}), **(weights or {})}
        options = {key: given[key] for key in WEIGHTS if key in given}
        activation = self.get("model", "activation", "relu")
        return construct(LseInfomax, {**options, "activation": activation}, what=f"{self.where}: loss")

    def configurations(self) -> dict[str, LseInfomax]:
        return {str(given["name"]): self.encoder(given) for given in self._entries("configurations")}

    def models(self) -> dict[str, SparseCoder]:
        """`type: encoder` (encoder_lse_infomax), `type: sae` (standard_sae) with its l1_weight, or the word of any
        sparse coder, such as topk:k=8."""
        return {str(given["name"]): self._model(given) for given in self._entries("models")}

    def _model(self, given: Mapping[str, Any]) -> SparseCoder:
        match kind := str(given.get("type", "encoder")):
            case "encoder" | "encoder_lse_infomax":
                return self.encoder()
            case "sae" | "standard_sae":
                l1 = convert(float, given.get("l1_weight", 0.01), what=f"{self.where}: l1_weight")
                return ReluL1(l1=l1, form="spec")
            case _:
                return SparseCoder.registry.parse(kind)

    def _entries(self, section: str) -> Sequence[Mapping[str, Any]]:
        entries = self.sections.get(section)
        if not entries or not all(isinstance(entry, Mapping) and "name" in entry for entry in entries):
            raise UserError(f"{self.where}: '{section}' must be a list of entries, each with a name.")
        return list(entries)


def load_config(name: str, verb: str = "default") -> Config:
    shipped = {
        path.name.removesuffix(".yaml"): path for path in files("assay.studies.sae").joinpath("config").iterdir()
    }
    path = Path(name)
    source: Any = path if path.suffix in (".yaml", ".yml") or "/" in name else shipped.get(name)
    if path.parts[-2:-1] == ("config",) and not is_there(path) and path.stem in shipped:  # the spec's own commands
        warnings.warn(f"there is no {name} here: the {path.stem}.yaml that ships with assay is used", stacklevel=2)
        source = shipped[path.stem]
    if source is None or (source is path and not is_there(path)):
        known = ", ".join(sorted(shipped))
        raise UserError(f"no config '{name}'.{nearest(name, shipped)} Give a YAML file, or one of: {known}.")
    try:
        text = read_file(path, limit=TEXT).decode() if source is path else source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the config {name}: {reason(error)}. Give a YAML file in UTF-8.") from None
    found = parse_config(text, where=name)
    # default.yaml fills in what a file leaves out, and the verb's own file which coders are compared.
    default, own = (parse_config(shipped[each].read_text("utf-8"), where=each).sections for each in ("default", verb))
    whole = {key: {**value, **(found.sections.get(key) or {})} for key, value in default.items()}
    compared = {key: own[key] for key in LISTS if key in own}
    return Config(name, {**compared, **found.sections, **whole}, found.sections)


def parse_config(text: str, *, where: str) -> Config:
    read = yaml_text.parse(text, what=where)
    if not isinstance(read, Mapping):
        raise UserError(f"{where}: expected sections such as model, loss and training.")
    sections = _numbers(read)
    for section, content in sections.items():
        if section not in KEYS:
            section = str(section)
            raise UserError(f"{where} has no section '{section}'.{nearest(section, KEYS)} Known: {', '.join(KEYS)}.")
        if section == "seeds" or content is None:
            continue
        entries = content if section in LISTS else [content]
        if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
            kind = "a list of entries, each with a name" if section in LISTS else "keys with values"
            raise UserError(f"{where}: '{section}' must be {kind}.")
        for key in (str(key) for entry in entries for key in entry):
            if key not in KEYS[section]:
                known = ", ".join(KEYS[section])
                raise UserError(
                    f"{where}: '{section}' has no key '{key}'.{nearest(key, KEYS[section])} It has: {known}."
                )
    return Config(where, sections)


def _numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: item if key in WORDS else _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return float(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value
