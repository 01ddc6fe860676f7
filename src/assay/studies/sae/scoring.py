"""Computes the metrics of coders on held-out rows, alike for every kind."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from assay.metrics import sparsity
from assay.metrics.logistic import Probe, choose, fit_all_as_scikit_learn, fit_paths
from assay.nn import infomax
from assay.sparse_coders.base import CoderModule
from assay.studies.sae.concepts import concept_scores
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
    return (
        _scores(module, own, readers, data) for module, own, readers in zip(modules, z, _fitted(z, data), strict=True)
    )


@torch.no_grad()
def _scores(module: CoderModule, z: Tensor, readers: "_Readers", data: Vectors) -> dict[str, Any]:
    train, validation, test = data.train, data.validation, data.test
    z_validation, z_test = (codes(module, part.x) for part in (validation, test))
    decoder = sparsity.ridge_decoder(z, train.x, chosen_on=(z_validation, validation.x) if len(validation) else None)
    found: dict[str, Any] = {
        "l0": sparsity.l0(z_test),
        "dead": sparsity.dead(z_test),
        "fvu": sparsity.fraction_unexplained(test.x, decoder.decode(z_test)),
        "params": sum(p.numel() for p in [*module.parameters()] or module.buffers()),
        "log_inactive": sparsity.log_inactive(z_test),
    }
    found["explained_variance"] = 1 - found["fvu"]
    if len(validation):
        found["validation_fvu"] = sparsity.fraction_unexplained(validation.x, decoder.decode(z_validation))
    own = _own(module, z_test)
    if own is not None:
        found["fvu_own"] = sparsity.fraction_unexplained(test.x, own)
    found |= _of_the_spec(module, z_test, test.x, own)
    found |= _read(readers, (z, train), (z_validation, validation), (z_test, test))
    if data.splice is not None:
        found |= data.splice(lambda x: decoder.decode(codes(module, x)))
    if data.dictionary is not None and test.fired is not None:
        directions = module.directions()[0]
        true = sparsity.recovery(directions, z_test, data.dictionary, test.fired)
        found |= {"atom_cosine": true.cosine, "atoms_found": true.found, "firing_f1": true.f1}
    found |= concept_scores(module, decoder, (z, z_test), data)
    return found


def _first(part: Part, rows: int) -> Part:
    return Part(*(None if t is None else t[:rows] for t in (part.x, part.labels, part.fired)))  # type: ignore[arg-type]


def _own(module: CoderModule, z: Tensor) -> Tensor | None:
    return module.decode(z[None])[0] if module.has_decoder else None


def _of_the_spec(module: CoderModule, z: Tensor, x: Tensor, own: Tensor | None) -> dict[str, Any]:
    """Compute the spec's metrics; the reconstruction is by the coder's own decoder if it has one, by W^T otherwise."""
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


class _Readers(NamedTuple):
    """Logistic probes of one model, where there are labels."""

    path: Sequence[Probe] = ()
    """A probe per penalty, where there are validation rows to choose by."""
    specs: Probe | None = None


def _fitted(z: Sequence[Tensor], data: Vectors) -> list[_Readers]:
    """Fit the probes of all models on their codes of the training rows, together."""
    labels, nobody = data.train.labels, [_Readers()] * len(z)
    if labels is None or data.test.labels is None:
        return nobody
    rows, found = _probed(z[0]), nobody
    if len(data.validation) and data.validation.labels is not None:
        paths = fit_paths(torch.stack([code[:rows] for code in z]), labels[:rows])
        found = [_Readers(path) for path in paths]
    if z[0].numel() <= SPECS_PROBE:
        probes = fit_all_as_scikit_learn(torch.stack([*z]), labels)
        found = [readers._replace(specs=probe) for readers, probe in zip(found, probes, strict=True)]
    return found


def _probed(z: Tensor) -> int:
    return min(PROBED_ON, max(1, PROBED // z.shape[1]))


def _read(
    readers: _Readers, train: tuple[Tensor, Part], validation: tuple[Tensor, Part], test: tuple[Tensor, Part]
) -> Mapping[str, float]:
    """Score the linear probes: with the spec's penalty, with one chosen on validation, and on k units alone."""
    (z, fitted), (z_validation, chosen), (z_test, judged) = train, validation, test
    if fitted.labels is None or judged.labels is None:
        return {}
    found: dict[str, float] = {}
    if readers.path and chosen.labels is not None:
        probe = choose(readers.path, z_validation, chosen.labels)
        found["probe_accuracy"] = probe.accuracy(z_test, judged.labels)
        found["probe_C"] = probe.C
        found["validation_probe_accuracy"] = probe.accuracy(z_validation, chosen.labels)
    if readers.specs:
        found["linear_probe_accuracy"] = readers.specs.accuracy(z_test, judged.labels)
    rows = _probed(z)
    sparse = sparsity.k_sparse_accuracy((z[:rows], fitted.labels[:rows]), (z_test, judged.labels), KS)
    return found | {f"probe_{k}_units": accuracy for k, accuracy in sparse.items()}
