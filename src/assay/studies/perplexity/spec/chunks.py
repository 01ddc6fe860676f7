"""Cuts texts into windows and computes a model's loss on them, under the spec's names, without the command.

for chunk in create_perplexity_dataset("pydoc", tokenizer, max_length=512): ...
compute_perplexity(model, ids, method="h2o", sparsity=0.9)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from assay.core.errors import UserError
from assay.data.text import Corpus, load_corpus, named
from assay.models.causal_lm import load_model, load_tokenizer, sparse
from assay.studies.perplexity.spec.runner import PerplexityResult, aggregate_results
from assay.studies.perplexity.windows import Spans, bos_of, spans_of, windows_of


@dataclass(frozen=True, eq=False)
class TextChunk:
    """A window: inputs begin with BOS, and every target is scored."""

    inputs: Int[Tensor, " time"]
    targets: Int[Tensor, " time"]
    document: int


@dataclass(frozen=True)
class PerplexityDatasetLoader:
    """The windows of a text, each token a target once."""

    default: ClassVar[str] = "pydoc"

    tokenizer: Any
    name: str = ""
    max_length: int = 1024
    max_samples: int | None = None
    max_windows: int = 0

    @property
    def corpus(self) -> Corpus:
        return load_corpus(self.name or self.default, limit=self.max_samples)

    def spans(self) -> Spans:
        chosen = {"max_samples": self.max_samples, "max_windows": self.max_windows}
        return spans_of(self.corpus, self.tokenizer, longest=self.max_length, **chosen)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[TextChunk]:
        spans = self.spans().found
        for window in windows_of(spans, context=self.max_length, bos=bos_of(self.tokenizer)):
            yield TextChunk(window.inputs, window.targets, spans[window.span].document)


class WikiTextDataset(PerplexityDatasetLoader):
    default = "wikitext-103"


class C4Dataset(PerplexityDatasetLoader):
    default = "c4"


class PG19Dataset(PerplexityDatasetLoader):
    default = "pg19"


def create_perplexity_dataset(name: str, tokenizer: Any, **options: Any) -> PerplexityDatasetLoader:
    return PerplexityDatasetLoader(tokenizer, named(name), **options)


def load_all_datasets(names: Sequence[str], tokenizer: Any, **options: Any) -> dict[str, PerplexityDatasetLoader]:
    return {name: create_perplexity_dataset(name, tokenizer, **options) for name in names}


def create_dataloader(dataset: PerplexityDatasetLoader, batch_size: int = 1) -> Any:
    """Batches of (inputs, targets)."""
    pairs = [(chunk.inputs, chunk.targets) for chunk in dataset]
    return torch.utils.data.DataLoader(pairs, batch_size=batch_size)  # type: ignore[arg-type]


def get_dataset_stats(dataset: PerplexityDatasetLoader) -> dict[str, Any]:
    spans = dataset.spans()
    tokens = sum(len(span.tokens) for span in spans.found)
    counts = {"documents": spans.documents, "too_short": spans.too_short, "tokens": tokens}
    return counts | {"windows": tokens // dataset.max_length, "sha256": dataset.corpus.sha256}


@torch.no_grad()
def compute_perplexity(
    model: nn.Module, inputs: Int[Tensor, "batch time"], targets: Int[Tensor, "batch last"] | None = None, **method: Any
) -> PerplexityResult:
    """The loss of `targets`, which follow the last inputs, or of each token but the first; `method="h2o", sparsity=0.9`
    makes attention sparse."""
    if targets is None:
        inputs, targets = inputs[:, :-1], inputs[:, 1:]
    with sparse(model, method.pop("method", "dense"), **method):
        logits = model(inputs, use_cache=False).logits[:, -targets.shape[1] :]
    loss = cross_entropy(logits.float().flatten(0, 1), targets.flatten())
    return PerplexityResult(loss.item(), targets.numel(), len(targets))


def compute_sliding_window_perplexity(
    model: nn.Module, ids: Int[Tensor, " time"], *, context: int, stride: int, **method: Any
) -> PerplexityResult:
    """Score each token but the first once, from at least context - stride tokens before it where there are so many."""
    if not 0 < stride <= context:
        raise UserError(f"stride={stride}: at least 1, and no more than the context of {context}.")
    found, scored = list[PerplexityResult](), 1
    while scored < len(ids):
        end = min(len(ids), max(scored + stride, min(context + 1, len(ids))))
        window = ids[max(0, end - 1 - context) : end]
        found.append(compute_perplexity(model, window[None, :-1], window[None, scored - end :], **method))
        scored = end
    return aggregate_results(found)


@dataclass
class PerplexityEvaluator:
    """Evaluates a model and its tokenizer, given by name."""

    model: Any
    tokenizer: Any = None
    method: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.model, str):
            self.tokenizer = self.tokenizer or load_tokenizer(self.model)
            self.model = load_model(self.model)

    def evaluate(self, dataset: PerplexityDatasetLoader) -> PerplexityResult:
        device = next(self.model.parameters()).device
        pairs = ((chunk.inputs[None].to(device), chunk.targets[None].to(device)) for chunk in dataset)
        return aggregate_results([compute_perplexity(self.model, *pair, **self.method) for pair in pairs])
