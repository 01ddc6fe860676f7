"""Computes the metrics of coders on held-out rows, alike for every kind."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.metrics import erasure, sparsity
from assay.metrics.absorption import absorption, families
from assay.metrics.logistic import Probe, choose, fit_all_as_scikit_learn, fit_paths
from assay.nn import infomax
from assay.sparse_coders.base import CoderModule
from assay.studies.sae.spec import metrics as spec
from assay.vectors.base import Part, Vectors

AT_ONCE = 2**24
"""Most numbers of a code that are computed at a time."""
FITTED_ON = 2**28
"""Most numbers of the training rows' code that decoders and probes are fitted on; further rows are left out."""
PROBED_ON, PROBED = 20_000, 2**25
"""Most training rows, and numbers of their code, for probes whose penalty is chosen: wide codes have fewer rows."""
SPECS_PROBE = 2**26
"""Most numbers of the training rows' code for the spec's probe, which uses every row, at one penalty."""
TOGETHER = 2**27
"""Most numbers of codes of models that are scored together; they are held twice, in float64 too."""
KS = (1, 2, 5)
ERASED = (2, 5, 20)
"""Units that are switched off at a time, of planted concepts."""
PERTURBED = 2_000
"""Most training rows for the probes of inputs that TPP perturbs."""


def together(data: Vectors, d_code: int) -> int:
    """Number of models to score at a time: one on a CPU, which gains nothing by more."""
    return 1 if data.train.x.device.type == "cpu" else max(1, TOGETHER // (len(data.train) * d_code))


@torch.no_grad()
def codes(module: CoderModule, x: Float[Tensor, "n d_in"]) -> Float[Tensor, "n d_code"]:
    """Compute the codes of one model, some rows at a time."""
    size = max(1, AT_ONCE // module.d_code)
    return torch.cat([module.encode(rows[None])[0] for rows in x.split(size)])


@torch.no_grad()
def score(modules: Sequence[CoderModule], data: Vectors) -> Iterator[dict[str, Any]]:
    """Yield the metrics of each model, all of one size; those of the spec under its names. Probes are fitted together,
    up front; the rest is computed per model."""
    if not modules:
        return iter(())
    rows = max(1, FITTED_ON // modules[0].d_code)
    train, validation, test = (_first(part, rows) for part in (data.train, data.validation, data.test))
    data = replace(data, train=train, validation=validation, test=test)
    z = [codes(module, data.train.x) for module in modules]
    return (_scores(*own, data) for own in zip(modules, z, *_fitted(z, data), strict=True))


@dataclass(frozen=True)
class Frozen:
    """A coder that is scored: its codes of the three parts, and the ridge decoder fitted to them."""

    module: CoderModule
    data: Vectors
    z: Float[Tensor, "n d_code"]
    z_validation: Float[Tensor, "m d_code"]
    z_test: Float[Tensor, "k d_code"]
    decoder: sparsity.RidgeDecoder
    path: Sequence[Probe]
    """A logistic probe per penalty, where there are labels, and validation rows to choose by."""
    specs: Probe | None
    """The spec's probe, where there are labels."""

    def own(self, z: Float[Tensor, "n d_code"]) -> Float[Tensor, "n d_in"] | None:
        """The reconstruction by the coder's own decoder, if it has one."""
        return self.module.decode(z[None])[0] if self.module.has_decoder else None


@torch.no_grad()
def _scores(
    module: CoderModule, z: Tensor, path: Sequence[Probe], specs: Probe | None, data: Vectors
) -> dict[str, Any]:
    z_validation, z_test = (codes(module, part.x) for part in (data.validation, data.test))
    chosen_on = (z_validation, data.validation.x) if len(data.validation) else None
    decoder = sparsity.ridge_decoder(z, data.train.x, chosen_on=chosen_on)
    frozen = Frozen(module, data, z, z_validation, z_test, decoder, path, specs)
    return {name: value for measured in SCORES for name, value in measured(frozen).items()}


def _reconstruction(frozen: Frozen) -> dict[str, Any]:
    """What is left unexplained, by how many units, and how many never fire: by the ridge decoder that every coder gets,
    and by the coder's own."""
    module, validation, test = frozen.module, frozen.data.validation, frozen.data.test
    found: dict[str, Any] = {
        "l0": sparsity.l0(frozen.z_test),
        "dead": sparsity.dead(frozen.z_test),
        "fvu": sparsity.fraction_unexplained(test.x, frozen.decoder.decode(frozen.z_test)),
        "params": sum(p.numel() for p in [*module.parameters()] or module.buffers()),
        "log_inactive": sparsity.log_inactive(frozen.z_test),
    }
    found["explained_variance"] = 1 - found["fvu"]
    if len(validation):
        guess = frozen.decoder.decode(frozen.z_validation)
        found["validation_fvu"] = sparsity.fraction_unexplained(validation.x, guess)
    if (own := frozen.own(frozen.z_test)) is not None:
        found["fvu_own"] = sparsity.fraction_unexplained(test.x, own)
    if frozen.data.streamed and (own := frozen.own(frozen.z_validation)) is not None:
        found["validation_fvu_own"] = sparsity.fraction_unexplained(validation.x, own)
    return found


def _spliced(frozen: Frozen) -> dict[str, Any]:
    """What a reconstruction costs the language model that the rows come from: by the ridge decoder, and, under names
    that end in `_own`, by the coder's own."""
    if frozen.data.splice is None:
        return {}
    module = frozen.module
    found: dict[str, Any] = frozen.data.splice(lambda x: frozen.decoder.decode(codes(module, x)))
    if not module.has_decoder:
        return found
    own = frozen.data.splice(lambda x: module.decode(codes(module, x)[None])[0])
    return found | {f"{name}_own": value for name, value in own.items() if name not in ("ce", "ce_mean", "ce_zero")}


def _recovered(frozen: Frozen) -> dict[str, Any]:
    """How much of a known dictionary was found."""
    dictionary, fired = frozen.data.dictionary, frozen.data.test.fired
    if dictionary is None or fired is None:
        return {}
    true = sparsity.recovery(frozen.module.directions()[0], frozen.z_test, dictionary, fired)
    return {"atom_cosine": true.cosine, "atoms_found": true.found, "firing_f1": true.f1}


def _first(part: Part, rows: int) -> Part:
    return Part(*(None if t is None else t[:rows] for t in (part.x, part.labels, part.fired)))  # type: ignore[arg-type]


def _of_the_spec(frozen: Frozen) -> dict[str, Any]:
    """Compute the spec's metrics; the reconstruction is by the coder's own decoder if it has one, by W^T otherwise."""
    module, z, x, own = frozen.module, frozen.z_test, frozen.data.test.x, frozen.own(frozen.z_test)
    W = getattr(module, "W_enc", module.directions())[0].detach()
    r = torch.softmax(-z, dim=1)
    l0, density = spec.sparsity_l0(z)
    normalised = spec.normalized_reconstruction_mse(x, z, W)
    if own is not None:
        guess = own / (own.norm(dim=1, keepdim=True) + spec.TINY) * x.norm(dim=1, keepdim=True)
        normalised = float((x - guess).square().mean())
    redundancy = spec.redundancy_score(z)
    return {
        "dead_units": spec.dead_units(z),
        "dead_units_pct": 100 * spec.dead_units(z) / z.shape[1],
        "redundancy_score": redundancy,
        "redundancy_debiased": redundancy - infomax.sampling_floor(z.shape[1], len(z)),
        "weight_redundancy": spec.weight_redundancy(W),
        "effective_rank": spec.effective_rank(W),
        "responsibility_entropy": spec.responsibility_entropy(r),
        "max_responsibility": float(r.amax(dim=1).mean()),
        "reconstruction_mse": spec.reconstruction_mse(x, z, W) if own is None else float((x - own).square().mean()),
        "normalized_reconstruction_mse": normalised,
        "l0_sparsity": l0,
        "l0_density": density,
        "weight_norm": float(W.norm(dim=1).mean()),
    }


def _fitted(z: Sequence[Tensor], data: Vectors) -> tuple[Sequence[Sequence[Probe]], Sequence[Probe | None]]:
    """Fit the probes of all models on their codes of the training rows, together: `path` and `specs` of each."""
    labels, rows = data.train.labels, _probed(z[0])
    paths: Sequence[Sequence[Probe]] = [()] * len(z)
    specs: Sequence[Probe | None] = [None] * len(z)
    if labels is None or data.test.labels is None:
        return paths, specs
    if len(data.validation) and data.validation.labels is not None:
        paths = fit_paths(torch.stack([code[:rows] for code in z]), labels[:rows])
    if z[0].numel() <= SPECS_PROBE:
        specs = fit_all_as_scikit_learn(torch.stack([*z]), labels)
    return paths, specs


def _probed(z: Tensor) -> int:
    return min(PROBED_ON, max(1, PROBED // z.shape[1]))


def _read(frozen: Frozen) -> Mapping[str, float]:
    """Score the linear probes: with the spec's penalty, with one chosen on validation, and on k units alone."""
    z, z_validation, z_test = frozen.z, frozen.z_validation, frozen.z_test
    fitted, chosen, judged = frozen.data.train, frozen.data.validation, frozen.data.test
    if fitted.labels is None or judged.labels is None:
        return {}
    found: dict[str, float] = {}
    if frozen.path and chosen.labels is not None:
        probe = choose(frozen.path, z_validation, chosen.labels)
        found["probe_accuracy"] = probe.accuracy(z_test, judged.labels)
        found["probe_C"] = probe.C
        found["validation_probe_accuracy"] = probe.accuracy(z_validation, chosen.labels)
    if frozen.specs:
        found["linear_probe_accuracy"] = frozen.specs.accuracy(z_test, judged.labels)
    rows = _probed(z)
    sparse = sparsity.k_sparse_accuracy((z[:rows], fitted.labels[:rows]), (z_test, judged.labels), KS)
    return found | {f"probe_{k}_units": accuracy for k, accuracy in sparse.items()}


def _concepts(frozen: Frozen) -> Mapping[str, Any]:
    """Score the code where atoms are planted: the true L0, and, where some atoms imply others, what became of those
    concepts: absorption, k-sparse probing, targeted probe perturbation and spurious correlation removal."""
    data, train, test, W = frozen.data, frozen.data.train, frozen.data.test, frozen.decoder.W
    if data.dictionary is None or train.fired is None or test.fired is None:
        return {}
    found: dict[str, Any] = {"true_l0": float((test.fired > 0).sum(dim=1).double().mean())}
    if data.parents is None:
        return found
    own = absorption(
        frozen.module.directions()[0], frozen.z_test, frozen.decoder, test.x, data.dictionary, test.fired, data.parents
    )
    found |= {"absorption": own.rate, "concept_f1": own.f1}
    concepts = list(families(data.parents))
    fitted = erasure.Coded(train.x, frozen.z, train.fired[:, concepts] > 0)
    judged = erasure.Coded(test.x, frozen.z_test, test.fired[:, concepts] > 0)
    perturbed = erasure.targeted_perturbation(fitted.first(PERTURBED), judged, W, ERASED)
    removed = erasure.spurious_removal(fitted, judged, W, ERASED)
    sparse = sparsity.k_sparse_of_concepts((fitted.code, fitted.has), (judged.code, judged.has), KS)
    found |= {f"probe_{k}_units": accuracy for k, accuracy in sparse.items()}
    found |= {f"tpp_{count}": score for count, score in perturbed.items()}
    return found | {f"scr_{count}": score for count, score in removed.items()}


SCORES: tuple[Callable[[Frozen], Mapping[str, Any]], ...] = (
    _reconstruction, _of_the_spec, _read, _spliced, _recovered, _concepts,
)  # fmt: skip
"""What is measured of a frozen coder: each gives metrics by name, or none where the data do not have what it needs."""
