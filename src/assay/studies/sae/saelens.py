"""Saves and loads coders in SAELens folders: `sae_weights.safetensors` and `cfg.json`.

    save_saelens(saved_module(record), "folder")                 SAELens codes RAW activations with it
    save_saelens(module, "folder", decoder=ridge_decoder(codes, x))       a decoder-free coder brings a fitted decoder
    module = load_saelens("folder")                              codes raw activations too

Coders here are trained on centred and scaled rows, (raw - mean) / scale. An export folds both into the weights,

    W_enc / scale,   W_dec scale,   b_dec scale + mean,   and b_enc - W_enc mean / scale where b_dec is not subtracted

so that codes stay the same numbers and reconstructions are raw. Rows of W_dec then have the length `scale`; SAELens's
own `fold_W_dec_norm` makes them 1 where that is wanted.

SAELens knows `standard`, `topk`, `jumprelu` and `gated`. BatchTopK and Matryoshka code rows one by one with a
threshold, so they are saved as jumprelu. A coder without a decoder is `standard` with the one it is given. W_enc is
(d_in, d_sae) there.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assay.core.errors import UserError
from assay.core.files import write_files
from assay.core.store import disk_errors
from assay.metrics.sparsity import RidgeDecoder
from assay.nn.preparation import Preparation
from assay.sparse_coders.base import CoderModule, DecoderModule, EncoderModule, FittedModule, TrainedCoder
from assay.sparse_coders.batch_cut import BatchCut
from assay.sparse_coders.gated import Gated
from assay.sparse_coders.gated import Module as GatedModule
from assay.sparse_coders.jump_relu import JumpReLU
from assay.sparse_coders.jump_relu import Module as JumpModule
from assay.sparse_coders.lse_infomax import Module as LseModule
from assay.sparse_coders.relu_l1 import Module as ReluModule
from assay.sparse_coders.relu_l1 import ReluL1
from assay.sparse_coders.topk import Module as TopKModule
from assay.sparse_coders.topk import TopK
from assay.studies.sae.saelens_config import BATCH_CUT, CONFIG, WEIGHTS, Folder, read_folder
from assay.train.artifacts import file_parts

__all__ = ["CONFIG", "WEIGHTS", "load_saelens", "save_saelens"]

WRITTEN_FOR = "6.54.12"
"""The version of SAELens whose folders these are."""
ROWS = 4096
"""Rows of a matrix that are multiplied in float64 at a time."""


@torch.no_grad()
def save_saelens(
    module: CoderModule,
    folder: str | Path,
    *,
    decoder: RidgeDecoder | None = None,
    preparation: Preparation | None = None,
    metadata: dict[str, Any] | None = None,
) -> Path:
    """Write one coder for raw activations; `metadata` may name its model and hook. `preparation` says how the rows it
    was trained on (and the decoder fitted to) were made from raw ones; `saved_module` brings it along."""
    if module.models != 1:
        raise UserError("SAELens folders hold one coder: pick it out of its bank first (`CoderBank.model(place)`).")
    architecture, tensors, extra = _exported(module, decoder)
    subtracts = isinstance(module, DecoderModule) and getattr(module, "form", "") != "spec"
    preparation = preparation or module.preparation
    if preparation is not None:
        tensors = _folded(tensors, preparation, subtracts=subtracts)
    config = {
        "architecture": architecture,
        "d_in": module.d_in,
        "d_sae": module.d_code,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": subtracts,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": {"sae_lens_version": WRITTEN_FOR, **(metadata or {})},
        **extra,
    }
    path = Path(folder)
    about = (json.dumps(config, indent=1) + "\n").encode()
    kept = {name: value.detach().float() for name, value in tensors.items()}
    with disk_errors(path):
        write_files({path / WEIGHTS: file_parts(kept), path / CONFIG: about})
    return path


def _exported(module: CoderModule, decoder: RidgeDecoder | None) -> tuple[str, dict[str, Tensor], dict[str, Any]]:
    """The architecture, its tensors as the coder has them, and what its config says besides."""
    if not isinstance(module, EncoderModule | FittedModule):
        name = type(module).__module__.rpartition(".")[2]
        raise UserError(
            f"SAELens has no architecture for {name}: it does not code a row by a linear map and a threshold. "
            "Export a coder that does, such as topk."
        )
    tensors = {"W_enc": module.W_enc[0].T, "b_enc": module.b_enc[0]}
    if isinstance(module, DecoderModule):
        tensors |= {"W_dec": module.W_dec[0], "b_dec": module.b_dec[0]}
    elif decoder is None:
        raise UserError("this coder has no decoder of its own: give one, fitted to its codes (ridge_decoder).")
    else:
        tensors |= {"W_dec": decoder.W, "b_dec": decoder.b}
    match module:
        case LseModule() if module.activation != "relu":
            raise UserError(f"SAELens has no '{module.activation}' units: only relu is exported.")
        case FittedModule() if not module.rectified:
            raise UserError(
                "SAELens has no signed codes, which pca and fast_ica give: export fast_ica:rectified=true, which has a "
                "unit for each sign."
            )
        case LseModule() if module.scale == "unit_norm":
            return "standard", {**tensors, "W_enc": torch.nn.functional.normalize(module.W_enc[0], dim=1).T}, {}
        case LseModule() | FittedModule() | ReluModule():
            return "standard", tensors, {}
        case TopKModule():
            return "topk", tensors, {"k": int(module.k[0]), "rescale_acts_by_decoder_norm": False}
        case JumpModule():
            return "jumprelu", {**tensors, "threshold": module.threshold[0]}, {}
        case BatchCut():
            return "jumprelu", {**tensors, "threshold": module.threshold.expand(module.d_code)}, {}
        case GatedModule():
            del tensors["b_enc"]
            gates = {"b_gate": module.b_enc[0], "b_mag": module.b_mag[0], "r_mag": module.r_mag[0]}
            return "gated", {**tensors, **gates}, {}
        case _:
            name = type(module).__module__.rpartition(".")[2]
            raise UserError(
                f"SAELens has no architecture for {name}. Export a coder that it knows: relu_l1, topk, batch_topk, "
                "matryoshka, jump_relu, gated or lse_infomax."
            )


def _folded(tensors: dict[str, Tensor], preparation: Preparation, *, subtracts: bool) -> dict[str, Tensor]:
    """Fold centring and scale into the weights: codes stay as they are, inputs and reconstructions are raw."""
    mean, scale = preparation.mean.to(tensors["b_dec"]).double(), preparation.scale
    if mean.shape != tensors["b_dec"].shape:
        raise UserError(f"the preparation is of {len(mean)} inputs, and the coder has {len(tensors['b_dec'])}.")
    found = {
        **tensors,
        "W_enc": tensors["W_enc"] / scale,
        "W_dec": tensors["W_dec"] * scale,
        "b_dec": tensors["b_dec"].double() * scale + mean,
    }
    if not subtracts:  # what is subtracted is b_dec, which has the mean in it
        found["b_enc"] = tensors["b_enc"].double() - _product(tensors["W_enc"].T, mean) / scale
    return found


def _product(W: Tensor, vector: Tensor) -> Tensor:
    """W times a vector, in float64, some rows at a time: a copy of a large matrix would take more than the coder."""
    return torch.cat([rows.double() @ vector.double() for rows in W.split(ROWS)])


@torch.no_grad()
def load_saelens(folder: str | Path, *, scaling_factor: float | None = None) -> DecoderModule:
    """Load the coder of a SAELens folder, with its decoder: it codes what SAELens codes with it, raw activations.
    `scaling_factor` is for a folder whose config has expected_average_only_in, and does not hold the factor."""
    found = read_folder(Path(folder), scaling_factor)
    module = _fresh(found)
    module.W_enc[0].copy_(found.tensor("W_enc").T)
    for name in ("W_dec", "b_dec"):
        module.get_parameter(name)[0].copy_(found.tensor(name))
    module.b_enc[0].copy_(found.tensor("b_gate" if found.architecture == "gated" else "b_enc"))
    if isinstance(module, GatedModule):
        module.r_mag[0].copy_(found.tensor("r_mag"))
        module.b_mag[0].copy_(found.tensor("b_mag"))
    if isinstance(module, JumpModule):
        threshold = found.tensor("topk_threshold" if found.architecture in BATCH_CUT else "threshold")
        if found.architecture in BATCH_CUT and found.by_norm:
            # It is compared with activations times norms, and those shrink as W_dec / factor does.
            threshold = threshold / found.factor
        module.log_threshold[0].copy_(threshold.expand(found.d_sae).double().clamp_min(1e-30).log())
    _scale(module, found)
    if not found.subtracts and not (isinstance(module, ReluModule) and module.form == "spec"):
        # Ours subtracts b_dec from the input; W b_dec in the biases undoes it.
        undone = _product(module.W_enc[0], module.b_dec[0])
        module.b_enc[0].copy_(module.b_enc[0].double() + undone)
        if isinstance(module, GatedModule):
            module.b_mag[0].copy_(module.b_mag[0].double() + module.r_mag[0].double().exp() * undone)
    return module


def _scale(module: DecoderModule, found: Folder) -> None:
    """Fold what SAELens multiplies rows and activations by into the weights."""
    if found.factor != 1:
        module.W_enc.mul_(found.factor)
        module.W_dec.div_(found.factor)
        module.b_dec.div_(found.factor)
    if found.by_norm:
        norms = module.W_dec.norm(dim=2).clamp_min(1e-8)
        module.W_enc.mul_(norms[:, :, None])
        module.b_enc.mul_(norms)
        module.W_dec.div_(norms[:, :, None])


def _fresh(found: Folder) -> DecoderModule:
    sizes = 1, found.d_in, found.d_sae
    coders: dict[str, Callable[[], TrainedCoder]] = {
        "standard": lambda: ReluL1(form="norm_weighted" if found.subtracts else "spec"),
        "topk": lambda: TopK(k=found.k),
        "gated": Gated,
    }
    made = coders.get(found.architecture, JumpReLU)().build(*sizes)
    assert isinstance(made, DecoderModule)
    return made
