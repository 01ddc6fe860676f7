"""Scores of a code on data whose atoms are planted: the true L0, and, where some atoms imply others, what became of
those concepts: absorption, k-sparse probing, targeted probe perturbation and spurious correlation removal."""

from typing import Any

from torch import Tensor

from assay.metrics.absorption import absorption, families
from assay.metrics.erasure import Coded, spurious_removal, targeted_perturbation
from assay.metrics.sparsity import RidgeDecoder, k_sparse_of_concepts
from assay.sparse_coders.base import CoderModule
from assay.vectors.base import Part, Vectors

ERASED = (2, 5, 20)
"""Units that are switched off at a time."""
KS = (1, 2, 5)
PROBED = 2_000
"""Most training rows for the probes of inputs that TPP perturbs."""


def concept_scores(
    module: CoderModule, decoder: RidgeDecoder, codes: tuple[Tensor, Tensor], data: Vectors
) -> dict[str, Any]:
    """Score the codes of training and test rows; nothing where atoms are not known."""
    train, test = data.train, data.test
    if data.dictionary is None or train.fired is None or test.fired is None:
        return {}
    found: dict[str, Any] = {"true_l0": float((test.fired > 0).sum(dim=1).double().mean())}
    if data.parents is None:
        return found
    z, z_test = codes
    own = absorption(module.directions()[0], z_test, decoder, test.x, data.dictionary, test.fired, data.parents)
    found |= {"absorption": own.rate, "concept_f1": own.f1}
    concepts = list(families(data.parents))
    fitted, judged = (_coded(part, code, concepts) for part, code in ((train, z), (test, z_test)))
    sparse = k_sparse_of_concepts((fitted.code, fitted.has), (judged.code, judged.has), KS)
    found |= {f"probe_{k}_units": accuracy for k, accuracy in sparse.items()}
    perturbed = targeted_perturbation(fitted.first(PROBED), judged, decoder.W, ERASED)
    removed = spurious_removal(fitted, judged, decoder.W, ERASED)
    named = {"tpp": perturbed, "scr": removed}
    return found | {f"{name}_{count}": score for name, by_count in named.items() for count, score in by_count.items()}


def _coded(part: Part, code: Tensor, concepts: list[int]) -> Coded:
    assert part.fired is not None
    return Coded(part.x, code, part.fired[:, concepts] > 0)
