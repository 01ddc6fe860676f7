"""Runs the study from Python, under the spec's names.

results = run_benchmark(create_quick_test(offline=True))
results["results"]["pydoc"]["h2o"]["sparsity_sweep"]["0.9"]["perplexity"]
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from assay.core.convert import construct, convert
from assay.core.errors import UserError
from assay.core.executors.base import Executor
from assay.core.run import Record
from assay.report.files import write_section
from assay.report.section import Section
from assay.studies.perplexity.document import documents_of
from assay.studies.perplexity.perplexity import Perplexity
from assay.studies.perplexity.spec.config import warn
from assay.studies.perplexity.spec.experiment import BenchmarkConfig, ExperimentConfig


@dataclass
class PerplexityBenchmarkRunner:
    """Runs one experiment; results stored under `out` are not computed again."""

    config: ExperimentConfig
    out: str | Path = "results"
    device: str = "auto"
    executor: str = "serial"
    records: list[Record] = field(default_factory=list)

    @cached_property
    def study(self) -> Perplexity:
        return construct(Perplexity, self.config.options(), what="experiment")

    def run(self) -> dict[str, Any]:
        """Run, write JSON, figures and tables, and return the spec's document."""
        from assay.api import Execution, Session

        warn(self.config.unheard())
        executor = convert(Executor, self.executor, what="executor")
        execution = Execution(executor=executor, device=self.device, out=Path(self.out))
        self.records = list(Session.open(self.study, {}, execution).compute())
        section = Section(self.study.name)
        self.study.report(self.records, section)
        write_section(section, self.study.folder(Path(self.out)))
        (document,) = documents_of(
            self.records, name=self.study.title, description=self.study.description, sweeps=self.study.sweeps()
        )
        return document


def run_benchmark(config: ExperimentConfig | BenchmarkConfig | str | Path, **placing: Any) -> dict[str, Any]:
    """Run an experiment and return its document; for several, a document each, by name."""
    if isinstance(config, ExperimentConfig):
        return PerplexityBenchmarkRunner(config, **placing).run()
    several = config if isinstance(config, BenchmarkConfig) else BenchmarkConfig.load(config)
    found = {one.name: PerplexityBenchmarkRunner(one, **placing).run() for one in several.placed()}
    return next(iter(found.values())) if len(found) == 1 else found


def analyze_context_scaling(results: Mapping[str, Any], dataset: str, method: str) -> dict[str, list[Any]]:
    """Figure 4 as numbers: perplexities by context length, and the reduction by each longer context."""
    sweep = _sweep(results, dataset, method, "context_length_sweep")
    contexts = sorted(map(int, sweep))
    found = [sweep[str(context)]["perplexity"] for context in contexts]
    steps = [None if a is None or b is None else a - b for a, b in pairwise(found)]
    return {"context_lengths": contexts, "perplexities": found, "ppl_decrease": steps}


def analyze_sparsity_tradeoff(results: Mapping[str, Any], dataset: str, method: str) -> dict[str, Any]:
    """Figure 8 as numbers: perplexities by nominal sparsity, the realised sparsity, and per cent over dense."""
    sweep = _sweep(results, dataset, method, "sparsity_sweep")
    levels = sorted(map(float, sweep))
    cells = [sweep[str(level)] for level in levels]
    return {
        "sparsity_levels": levels,
        "realised": [cell["realised_sparsity"] for cell in cells],
        "perplexities": [cell["perplexity"] for cell in cells],
        "relative_degradation": [None if (more := cell["delta_vs_dense"]) is None else 100 * more for cell in cells],
        "dense_ppl": next((cell["dense_perplexity"] for cell in cells if cell.get("dense_perplexity")), None),
    }


def _sweep(results: Mapping[str, Any], dataset: str, method: str, sweep: str) -> Mapping[str, Any]:
    try:
        return results["results"][dataset][method][sweep]
    except KeyError as error:
        held = "; ".join(f"{dataset}: {', '.join(methods)}" for dataset, methods in results["results"].items())
        raise UserError(f"the results have no {error}: they hold {held}.") from None


@dataclass(frozen=True)
class PerplexityResult:
    """A loss over some tokens."""

    cross_entropy: float
    num_tokens: int
    num_samples: int = 1
    bits_per_char: float | None = None

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.cross_entropy, 700.0))

    @property
    def bits_per_token(self) -> float:
        return self.cross_entropy / math.log(2)


def aggregate_results(results: Sequence[PerplexityResult]) -> PerplexityResult:
    """Pool results: every token counts once."""
    tokens = sum(one.num_tokens for one in results)
    if not tokens:
        raise UserError("no token was scored: there is nothing to aggregate.")
    loss = sum(one.cross_entropy * one.num_tokens for one in results) / tokens
    return PerplexityResult(loss, tokens, sum(one.num_samples for one in results))


def format_perplexity_result(result: PerplexityResult) -> str:
    return (
        f"perplexity {result.perplexity:.3f}, {result.cross_entropy:.4f} nats or {result.bits_per_token:.4f} bits per "
        f"token, over {result.num_tokens} tokens of {result.num_samples} samples"
    )


def compute_perplexity_statistics(perplexities: Sequence[float]) -> dict[str, float]:
    """Summarise the perplexities of samples. Their mean does not estimate the perplexity: see `aggregate_results`."""
    import torch

    values = torch.tensor(list(perplexities), dtype=torch.float64)
    if not len(values):
        raise UserError("statistics need at least one perplexity.")
    p25, median, p75 = torch.quantile(values, torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
    spread = values.std().item() if len(values) > 1 else 0.0
    ends = {"min": values.min().item(), "max": values.max().item()}
    return {"mean": values.mean().item(), "std": spread, "median": median, "p25": p25, "p75": p75, **ends}
