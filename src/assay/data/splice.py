"""A language model is run with a module's output replaced by its reconstruction: what does it cost the model?

    loss recovered   (worst - spliced) / (worst - own), of the cross entropy of the next token; worst: the module's
                     output at zero, or at its mean
    kl               KL(own || spliced) of the next token's distribution, in nats

1 is a reconstruction that costs nothing. A share above 1 is no error of measurement: it says that the model predicts
this text better from the reconstruction than from its own activations (`ce_spliced` < `ce`), which happens by a little
where the text is unlike what the model was trained on. KL has no such case: it is 0 for a perfect reconstruction alone.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

from assay.data import activation_cache
from assay.nn.preparation import Preparation

CLEARLY = 0.2
"""Nats by which a baseline must exceed the model's own cross entropy for loss recovered to be reported: a
reconstruction moves the loss by tenths, in either direction where the text is unlike the model's training data."""
Reconstruct = Callable[[Tensor], Tensor]


class Splice:
    """Runs a language model with a module's output replaced, on the sequences of some batches."""

    def __init__(
        self, model: nn.Module, hook: str, batches: Sequence[Int[Tensor, "sequences context"]], preparation: Preparation
    ) -> None:
        self.model, self.hook, self.preparation = model, hook, preparation
        device = next(model.parameters()).device
        self.batches = [batch.to(device) for batch in batches]
        self.baselines: dict[str, float] = {}
        """Losses that do not depend on the reconstruction, measured once."""

    def loss_recovered(self, reconstruct: Reconstruct) -> dict[str, float]:
        """Measure cross entropy of the next token with the module's output as it is, reconstructed, at its mean, and at
        zero; the share of the gap from zero (from the mean) to the model's own that the reconstruction recovers, where
        zero (the mean) is `CLEARLY` worse; and the divergence from the model's own distribution."""
        if not self.baselines:
            self.baselines = {
                "ce": self.loss(lambda x: x),
                "ce_mean": self.loss(lambda x: self.preparation.mean.to(x).expand_as(x)),
                "ce_zero": self.loss(torch.zeros_like),
            }

        def through(x: Tensor) -> Tensor:
            return self.preparation.restore(reconstruct(self.preparation.prepare(x.float()))).to(x.dtype)

        loss, kl = self.loss_and_divergence(through)
        found = {**self.baselines, "ce_spliced": loss, "kl": kl}
        for name, worst in (("loss_recovered", "ce_zero"), ("loss_recovered_from_mean", "ce_mean")):
            if found[worst] - found["ce"] >= CLEARLY:
                found[name] = (found[worst] - found["ce_spliced"]) / (found[worst] - found["ce"])
        return found

    @torch.no_grad()
    def loss(self, change: Reconstruct) -> float:
        """Compute the loss with the output changed at every token but attention sinks: the first of a sequence, and
        those above the limit."""
        return sum(_summed_loss(self._changed(ids, change), ids) for ids in self.batches) / self._count

    @torch.no_grad()
    def loss_and_divergence(self, change: Reconstruct) -> tuple[float, float]:
        """The same loss, and KL from the model's own distribution, which is computed again batch by batch: kept, the
        logits of a large vocabulary would fill the memory."""
        loss, divergence = 0.0, 0.0
        for ids in self.batches:
            own, spliced = self._logits(ids), self._changed(ids, change)
            loss += _summed_loss(spliced, ids)
            own, spliced = (log_softmax(logits, dim=2) for logits in (own, spliced))
            divergence += float((own.exp() * (own - spliced)).sum(dtype=torch.float64))
        return loss / self._count, divergence / self._count

    def _changed(self, ids: Int[Tensor, "sequences context"], change: Reconstruct) -> Float[Tensor, "s t vocab"]:
        def changed(x: Tensor) -> Tensor:
            usual = self.preparation.usual(x.float())
            usual[:, 0] = False
            return x.masked_scatter(usual[:, :, None], change(x[usual]))

        with activation_cache.replaced(self.model, self.hook, changed):
            return self._logits(ids)

    def _logits(self, ids: Int[Tensor, "sequences context"]) -> Float[Tensor, "s t vocab"]:
        logits: Tensor = self.model(ids).logits[:, 1:-1]
        return logits.float()

    @property
    def _count(self) -> int:
        return sum(ids[:, 2:].numel() for ids in self.batches)


def _summed_loss(logits: Float[Tensor, "s t vocab"], ids: Int[Tensor, "s context"]) -> float:
    return float(cross_entropy(logits.flatten(0, 1), ids[:, 2:].flatten(), reduction="sum"))
