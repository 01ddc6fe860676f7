"""The spec's experiments, as objects and as YAML or JSON files, translated to flags.

    as_words(ExperimentConfig(methods=["dense", "h2o"], model=ModelConfig(name="gpt2")).options())
        ->  ["--title", "perplexity", "--model", "gpt2", "--datasets", "wikitext-103", "--methods", "dense", "h2o", ...]

A file holds one experiment, or several under `experiments`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any, Self

from assay.attention import attention
from assay.core.convert import construct, nearest
from assay.core.errors import UserError
from assay.core.files import TEXT, is_there, read_file, reason
from assay.core.plugin import to_json
from assay.data import yaml_text
from assay.studies.perplexity.spec.config import (
    ContextLengthSweepConfig,
    DatasetConfig,
    MethodConfig,
    ModelConfig,
    SparsitySweepConfig,
    say,
    unheard,
)

OFFLINE = "quick_test_offline"
SEED = 42


@dataclass(frozen=True)
class ExperimentConfig:
    """One experiment: a model, texts, methods and two sweeps."""

    name: str = "perplexity"
    description: str = ""
    seed: int | None = None
    """None: the benchmark's seed, or 42."""
    model: ModelConfig = ModelConfig()
    datasets: tuple[str, ...] = ("wikitext-103",)
    dataset_configs: Any = field(default_factory=dict)
    methods: tuple[str, ...] = ("dense", "h2o", "cab_v4")
    method_configs: Any = field(default_factory=dict)
    context_length_sweep: ContextLengthSweepConfig = ContextLengthSweepConfig()
    sparsity_sweep: SparsitySweepConfig = SparsitySweepConfig()
    budgets: tuple[int, ...] = ()
    max_windows: int = 0
    batch_size: int = 1
    num_workers: int = 4
    output_dir: str = ""
    save_per_sample: bool = False
    log_level: str = "INFO"
    wandb_project: str | None = None

    without_meaning = ("batch_size", "num_workers", "save_per_sample", "wandb_project")

    def __post_init__(self) -> None:
        parts = {"model": ModelConfig, "context_length_sweep": ContextLengthSweepConfig}
        for key, part in (parts | {"sparsity_sweep": SparsitySweepConfig}).items():
            object.__setattr__(self, key, made(part, getattr(self, key), what=key))
        for key in ("datasets", "methods"):
            object.__setattr__(self, key, tuple(str(value) for value in getattr(self, key)))
        for key, cls in (("dataset_configs", DatasetConfig), ("method_configs", MethodConfig)):
            loose, named = getattr(self, key), self.datasets if key == "dataset_configs" else self.methods
            if not isinstance(loose, Mapping):
                raise UserError(f"{key}: expected a mapping from names to options, got {loose!r}.")
            for name in loose:
                if name not in named:
                    raise UserError(f"{key}: '{name}' is none of this experiment's.{nearest(str(name), named)}")
            given = {name: made(cls, value, what=f"{key} of '{name}'") for name, value in loose.items()}
            object.__setattr__(self, key, given)
        for method in self.methods:
            attention.parse(method)

    def options(self) -> dict[str, Any]:
        """Translate to fields of the study."""
        contexts, levels = self.context_length_sweep, self.sparsity_sweep
        fits = [length for length in contexts.context_lengths if length <= self.model.max_length]
        if contexts.enabled and (left := sorted(set(contexts.context_lengths) - set(fits))):
            say(f"contexts over max_length {self.model.max_length} are left out: {', '.join(map(str, left))}")
        fixed = min(levels.fixed_context_length, self.model.max_length)
        return {
            "title": self.name,
            "description": self.description,
            "model": self.model.name,
            "revision": self.model.revision,
            "dtype": self.model.torch_dtype,
            "max_length": self.model.max_length,
            "datasets": self.datasets,
            "methods": tuple(self.method_configs.get(name, MethodConfig()).word(name) for name in self.methods),
            "context_sweep": contexts.enabled,
            "context_lengths": tuple(fits) if contexts.enabled and fits else (fixed,),
            "fixed_sparsity": contexts.fixed_sparsity,
            "sparsity_sweep": levels.enabled,
            "sparsity_levels": levels.sparsity_levels,
            "fixed_context_length": fixed if levels.enabled or self.budgets else 0,
            "budgets": self.budgets,
            "max_samples": self._max_samples(),
            "max_windows": self.max_windows,
            "output_dir": self.output_dir,
            "verbose": self.log_level.upper() == "DEBUG",
            "seed": SEED if self.seed is None else self.seed,
        }

    def unheard(self) -> list[str]:
        """Return the keys that are set and have no effect here."""
        texts = (unheard(config, f"{name}.") for name, config in self.dataset_configs.items())
        methods = (config.unheard(name) for name, config in self.method_configs.items())
        return [*unheard(self), *unheard(self.model, "model."), *chain(*texts, *methods)]

    def _max_samples(self) -> tuple[str, ...]:
        """One number where all texts have the same, so that it also holds for texts that a flag names instead."""
        given = {name: self.dataset_configs.get(name, DatasetConfig()).max_samples for name in self.datasets}
        if len(numbers := set(given.values())) == 1:
            return tuple(str(number) for number in numbers if number is not None)
        return tuple(f"{name}={number}" for name, number in given.items() if number is not None)


@dataclass(frozen=True)
class BenchmarkConfig:
    """Several experiments, one after another."""

    experiments: tuple[ExperimentConfig, ...] = ()
    global_seed: int = SEED
    global_output_dir: str = ""
    num_gpus: int = 1
    mixed_precision: bool = True

    without_meaning = ("num_gpus", "mixed_precision")

    @classmethod
    def load(cls, source: str | Path) -> Self:
        """Load a YAML or JSON file, or one that comes with assay by its name: a config, `configs/NAME.yaml` where there
        is no such file, or one experiment of a config."""
        if is_there(path := Path(source)):
            try:
                return cls.from_text(read_file(path, limit=TEXT).decode(), what=str(source))
            except (UnicodeDecodeError, OSError) as error:
                raise UserError(f"--config {source}: not text in UTF-8: {reason(error)}.") from None
        folder, name = files("assay.studies.perplexity").joinpath("configs"), str(source)
        if path.parts[:-1] == ("configs",):
            say(f"there is no {source} here: the {(name := path.stem)}.yaml that ships with assay is used")
        texts = {Path(one.name).stem: one.read_text(encoding="utf-8") for one in folder.iterdir()}
        whole = {key: cls.from_text(text, what=key) for key, text in texts.items()}
        every = {one.name: cls((one,)) for found in whole.values() for one in found.experiments} | whole
        if name not in every:
            known = ", ".join(sorted(every))
            raise UserError(f"--config {source}: no such file, nor one of {known}.{nearest(name, every)}")
        return every[name]

    @classmethod
    def from_text(cls, text: str, *, what: str) -> Self:
        data = yaml_text.parse(text, what=what)
        if not isinstance(data, dict):
            raise UserError(f"{what}: expected an experiment, or `experiments:` with several.")
        whole = data if "experiments" in data else {"experiments": [data]}
        if not isinstance(whole["experiments"], list) or not all(isinstance(one, dict) for one in whole["experiments"]):
            raise UserError(f"{what}: `experiments` is a list of experiments.")
        places = (
            [what] if whole is not data else [f"{what}, experiment {i + 1}" for i in range(len(data["experiments"]))]
        )
        parts = [_experiment(one, where) for one, where in zip(whole["experiments"], places, strict=True)]
        return made(cls, {**whole, "experiments": tuple(parts)}, what=what)

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        return cls.load(path)

    from_json = from_yaml

    def to_yaml(self, path: str | Path) -> None:
        import yaml

        Path(path).write_text(yaml.safe_dump(to_json(self), sort_keys=False), encoding="utf-8")

    def to_json(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps(to_json(self), indent=1), encoding="utf-8")

    def placed(self) -> tuple[ExperimentConfig, ...]:
        """The experiments, with the benchmark's values where they have none of their own."""
        return tuple(
            replace(
                one,
                output_dir=one.output_dir or self.global_output_dir,
                seed=self.global_seed if one.seed is None else one.seed,
            )
            for one in self.experiments
        )


def as_words(options: Mapping[str, Any]) -> list[str]:
    """Write fields of the study as flags of `assay perplexity`."""
    words = list[str]()
    for key, value in options.items():
        if isinstance(value, bool):  # a bare flag inverts its default
            words += {"context_sweep": [] if value else ["--no-context_sweep"],
                      "sparsity_sweep": [] if value else ["--no-sparsity_sweep"],
                      "verbose": ["--verbose"] if value else []}[key]  # fmt: skip
        elif isinstance(value, tuple):  # an empty one too: without the flag it would be the study's default
            words += [f"--{key}", *map(str, value)]
        elif value not in (None, ""):
            words += [f"--{key}", str(value)]
    return words


def create_quick_test(*, offline: bool = False) -> ExperimentConfig:
    (experiment,) = BenchmarkConfig.load(OFFLINE if offline else "quick_test").experiments
    return experiment


def create_icml_benchmark() -> BenchmarkConfig:
    return BenchmarkConfig.load("icml_full")


def made(cls: type[Any], value: Any, *, what: str) -> Any:
    """Build a config from parsed YAML or JSON; lists become tuples."""
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise UserError(f"{what}: expected keys and values, got {value!r}.")
    return construct(cls, {key: item for key, item in value.items() if item is not None}, what=what)


def _experiment(given: Mapping[str, Any], where: str) -> ExperimentConfig:
    """Build an experiment; an error names its place in the file, also one about a part such as `model`."""
    try:
        return made(ExperimentConfig, given, what=where)
    except UserError as error:
        raise UserError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None
