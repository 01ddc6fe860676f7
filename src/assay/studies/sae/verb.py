"""The base of the spec's verbs: a YAML file chooses runs of the study `sae`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from assay.core.errors import UserError
from assay.core.run import Record, Run, finite
from assay.core.study import Report, Study
from assay.sparse_coders.base import SparseCoder
from assay.studies.sae.config import Config, load_config
from assay.studies.sae.sae import Coded, check_sizes, coder_run, look_in, missing_data
from assay.vectors.base import VectorData
from assay.vectors.mnist import Mnist


@dataclass(frozen=True, kw_only=True)
class FromConfig(Study):
    """Options that a YAML file gives, unless a flag does."""

    lowered: ClassVar[Mapping[str, str]] = {
        "d_code": "model.hidden_dim of --config",
        "recipe.batch": "training.batch_size of --config",
        "data": "--dataset",
        "coder": "--config",
    }

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
        from assay.report.files import drawn

        out.chart(name, chart, caption=caption)
        out.file(self.output_dir / f"{name}.pdf", drawn(chart, ".pdf"))

    def loaded(self) -> Config:
        return load_config(self.config)

    def vectors(self, config: Config) -> VectorData:
        return config.data(self.dataset)

    def searched(self, config: Config) -> Path | None:
        """The data folder named by the flag, or for MNIST, the spec's data, by the file."""
        by_file = config.data_dir if config.data_dir != Path("data") else None
        return self.data_dir or (by_file if isinstance(self.vectors(config), Mnist) else None)

    def wanted_seeds(self, config: Config) -> tuple[int, ...]:
        return self.seeds or config.seeds

    def prepare(self, runs: Sequence[Run]) -> None:
        from assay.studies.sae.weights import keep

        keep("whole")  # figures and checkpoints are made of them
        config = self.loaded()
        data = self.vectors(config)
        look_in(self.searched(config), data)
        data.locate()

    def check(self, runs: Sequence[Run]) -> None:
        config = self.loaded()
        data = self.vectors(config)
        shape = data.shape()
        wanted = (config.own.get("model") or {}).get("input_dim")
        if shape is not None and wanted is not None and not self.dataset and wanted != shape[1]:
            raise UserError(f"{config.where}: model.input_dim is {wanted}, but {data.label} has {shape[1]} inputs.")
        check_sizes(runs, self.searched(config))

    def unfetched(self, runs: Sequence[Run]) -> str:
        return missing_data(runs, self.searched(self.loaded()))

    def one(
        self, config: Config, coder: SparseCoder, *, seed: int, lr: float | None = None, optimizer: str = ""
    ) -> Run:
        recipe = config.recipe(epochs=self.epochs, optimizer=optimizer)
        rate = config.lr if lr is None else lr
        data = self.vectors(config)
        coded = Coded(data, data.fingerprint(self.searched(config)))
        return coder_run(coded, coder, seed=seed, d_code=config.hidden_dim, lr=rate, recipe=recipe)


def named(records: Sequence[Record], coders: dict[str, Any]) -> list[tuple[str, Record]]:
    """Pair records with the name that a config gave their coder, in the config's order, then by seed."""
    done = sorted((r for r in records if r.status == "done"), key=lambda record: record.run.seed)
    return [(name, r) for name, coder in coders.items() for r in done if r.run.options["coder"] == coder.spec()]


def by_name(records: Sequence[Record], coders: dict[str, Any]) -> dict[str, list[Record]]:
    """Group records by the name that a config gave their coder."""
    groups: dict[str, list[Record]] = {}
    for name, record in named(records, coders):
        groups.setdefault(name, []).append(record)
    return groups


def as_json(value: Any) -> bytes:
    return (json.dumps(finite(value)[0], indent=1, allow_nan=False) + "\n").encode()
