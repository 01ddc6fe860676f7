"""Everything a record says of one coder: how it codes rows it was not trained on, judged alike for every kind."""

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
from assay.studies.sae.spec import metrics as spec
from assay.vectors.base import Part, Vectors

AT_ONCE = 2**24
"""Numbers of a code that are computed at a time."""
FITTED_ON = 2**28
"""Numbers of the training rows' code that decoders and probes are fitted on, at most: rows are left out above it."""
PROBED_ON, PROBED = 20_000, 2**25
"""Training rows of the probes whose penalty is chosen, at most, and numbers of their code: wide codes have fewer."""
SPECS_PROBE = 2**26
"""Numbers of the training rows' code up to which the spec's probe is fitted too: it sees every row, at one penalty."""
TOGETHER = 2**27
"""Numbers of the training rows' codes of models that are scored together; they are held twice, in float64 too."""
KS = (1, 2, 5)


def together(data: Vectors, d_code: int) -> int:
    """Models to score at a time. A CPU gains nothing by more than one; and alone, no model's bits depend on others."""
    return 1 if data.train.x.device.type == "cpu" else max(1, TOGETHER // (len(data.train) * d_code))


@torch.no_grad()
def codes(module: CoderModule, x: Float[Tensor, "n d_in"]) -> Float[Tensor, "n d_code"]:
    """The codes of one model, some rows at a time."""
    size = max(1, AT_ONCE // module.d_code)
    return torch.cat([module.encode(rows[None])[0] for rows in x.split(size)])


@torch.no_grad()
def score(modules: Sequence[CoderModule], data: Vectors) -> Iterator[dict[str, Any]]:
    """Metrics of each of some models of one size; those of the spec under its names. Their probes are fitted together,
    and at once; the rest is done as each is asked for."""
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
    return found


def _first(part: Part, rows: int) -> Part:
    return Part(*(None if t is None else t[:rows] for t in (part.x, part.labels, part.fired)))  # type: ignore[arg-type]


def _own(module: CoderModule, z: Tensor) -> Tensor | None:
    return module.decode(z[None])[0] if module.has_decoder else None


def _of_the_spec(module: CoderModule, z: Tensor, x: Tensor, own: Tensor | None) -> dict[str, Any]:
    """By the spec's formulas; the reconstruction is the own decoder's where there is one, W^T otherwise."""
    W = getattr(module, "W_enc", module.directions())[0].detach()
    r = torch.softmax(-z, dim=1)
    l0, density = spec.sparsity_l0(z)
    normalised = spec.normalized_reconstruction_mse(z, W, x)
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
        "reconstruction_mse": spec.reconstruction_mse(z, W, x) if own is None else float((x - own).square().mean()),
        "normalized_reconstruction_mse": normalised,
        "l0_sparsity": l0,
        "l0_density": density,
        "weight_norm": float(W.norm(dim=1).mean()),
    }


class _Readers(NamedTuple):
    """Logistic probes of one model, where there are labels."""

    path: Sequence[Probe] = ()
    """Of every penalty, where there are validation rows to choose by."""
    specs: Probe | None = None


def _fitted(z: Sequence[Tensor], data: Vectors) -> list[_Readers]:
    """The readers of some models' codes of the training rows, all fitted together."""
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
    """Accuracies of linear readers: the spec's penalty, one chosen on validation, and of k units alone."""
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
