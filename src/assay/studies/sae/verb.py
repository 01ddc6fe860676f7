"""The base of the spec's verbs: a YAML file chooses runs of the study `sae`."""

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PureWindowsPath
from typing import Any

from assay.core.errors import UserError
from assay.core.run import Record, Run, finite
from assay.core.study import Report, Study
from assay.report.files import drawn
from assay.report.rows import Row
from assay.sparse_coders.base import SparseCoder
from assay.studies.sae.charts import FIGURES, spec_checkpoints
from assay.studies.sae.config import LISTS, Config, load_config
from assay.studies.sae.sae import check_sizes, coder_run, look_in, missing_data
from assay.studies.sae.weights import keep
from assay.vectors.base import VectorData
from assay.vectors.mnist import Mnist


@dataclass(frozen=True, kw_only=True)
class FromConfig(Study):
    """Options that a YAML file gives, unless a flag does."""

    config: str = "default"
    """A YAML file, or the name of one that ships with assay."""
    output_dir: Path = Path("results")
    """Folder for the JSON file and the figures."""
    data_dir: Path | None = None
    """The folder with the data set's files, or `hub`, instead of the file's data.data_dir."""
    dataset: str = ""
    """The vectors to code, such as digits or dictionary:hierarchy=true, instead of the file's data.dataset."""
    epochs: int = 0
    """Epochs, instead of the file's training.epochs; 0: the file's."""
    seeds: tuple[int, ...] = ()
    """Seeds, instead of the file's; none: the file's."""

    def figure(self, out: Report, name: str, chart: Any, *, caption: str) -> None:
        """Write a figure beside the JSON file, as the spec's scripts do, and with the study's charts."""
        out.chart(name, chart, caption=caption)
        out.file(self.output_dir / f"{name}.pdf", drawn(chart, ".pdf"))

    def promised(self) -> Sequence[Path]:
        return (self.output_dir / f"{self.name.rpartition('.')[2]}_results.json",)

    @cached_property
    def loaded(self) -> Config:
        return load_config(self.config, self.name.rpartition(".")[2])

    @cached_property
    def vectors(self) -> VectorData:
        return self.loaded.data(self.dataset)

    @property
    def searched(self) -> Path | None:
        """The data folder named by the flag, or for MNIST, the spec's data, by the file."""
        named = self.loaded.data_dir
        if self.data_dir or not isinstance(self.vectors, Mnist) or named == Path("data"):
            return self.data_dir
        return None if _of_windows(named) else named

    def prepare(self, runs: Sequence[Run]) -> None:
        keep("whole")  # figures and checkpoints are made of them
        look_in(self.searched, self.vectors)
        self.vectors.locate()

    def check(self, runs: Sequence[Run]) -> None:
        config, data = self.loaded, self.vectors
        width = data.width()
        wanted = (config.own.get("model") or {}).get("input_dim")
        for key in (key for key in LISTS if key in config.sections and key not in config.own):
            warnings.warn(f"{config.where} has no {key}: those of assay's {self.name} are taken", stacklevel=2)
        if not self.data_dir and isinstance(data, Mnist) and _of_windows(config.data_dir):
            said = f"data.data_dir {config.data_dir} is a folder of Windows: looking in the usual places"
            warnings.warn(f"{config.where}: {said}", stacklevel=2)
        if wanted not in (None, width or wanted) and not self.dataset:
            raise UserError(f"{config.where}: model.input_dim is {wanted}, but {data.label} has {width} inputs.")
        check_sizes(runs, self.searched)

    def unfetched(self, runs: Sequence[Run]) -> str:
        return missing_data(runs, self.searched)

    def one(
        self, coder: SparseCoder, *, seed: int, lr: float | None = None, optimizer: str = "", units: int = 0
    ) -> Run:
        config = self.loaded
        recipe = config.recipe(epochs=self.epochs, optimizer=optimizer)
        rate = config.lr if lr is None else lr
        data = {"data": self.vectors, "content": self.vectors.fingerprint(self.searched)}
        return coder_run(data, coder, seed=seed, d_code=units or config.hidden_dim, lr=rate, recipe=recipe)


def _of_windows(folder: Path) -> bool:
    """Whether a folder names a drive that this system cannot have: the spec's own files say E:/ml_datasets."""
    return os.name != "nt" and bool(PureWindowsPath(folder).drive)


@dataclass(frozen=True, kw_only=True)
class Comparison(FromConfig):
    """A verb that compares the coders a config names, each with the same seeds."""

    def coders(self) -> Mapping[str, SparseCoder]:
        """Return the coders by the names that the config gives them."""
        raise NotImplementedError(f"{type(self).__name__}.coders")

    def plan(self) -> list[Run]:
        seeds, coders = self.seeds or self.loaded.seeds, self.coders()
        return [self.one(coder, seed=seed) for seed in seeds for coder in coders.values()]

    def rows(self, records: Sequence[Record], title: str) -> list[Row]:
        """Return a row per coder in the config's order, its runs by seed; the names stand under `title`."""
        done = sorted((r for r in records if r.status == "done"), key=lambda record: record.run.seed)
        own = {
            name: tuple(r for r in done if r.run.options["coder"] == coder.spec())
            for name, coder in self.coders().items()
        }
        return [Row(found, names={title: name}, label=name) for name, found in own.items() if found]

    def write(self, out: Report, found: Sequence[Row], results: Any, *, figure: str, caption: str) -> None:
        """Write the spec's JSON file, its figure, drawn from that file, and its checkpoints."""
        out.file(self.promised()[0], as_json(results))
        self.figure(out, figure, FIGURES[figure](results), caption=caption)
        for path, data in spec_checkpoints(self.output_dir / "checkpoints", found):
            out.file(path, data)


def as_json(value: Any) -> bytes:
    return (json.dumps(finite(value)[0], indent=1, allow_nan=False) + "\n").encode()
