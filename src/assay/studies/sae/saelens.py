"""Saves and loads coders in SAELens folders: `sae_weights.safetensors` and `cfg.json`.

    save_saelens(module, "folder", decoder=ridge_decoder(codes, x))       a decoder-free coder brings a fitted decoder
    module = load_saelens("folder")

SAELens knows `standard`, `topk`, `jumprelu` and `gated`. BatchTopK and Matryoshka code rows one by one with a
threshold, so they are saved as jumprelu. A decoder-free coder is `standard` with the decoder it is given. W_enc is
(d_in, d_sae) there.
"""

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from assay.core.errors import UserError
from assay.core.files import TEXT, is_there, read_file, reason
from assay.core.store import disk_errors, write_file
from assay.metrics.sparsity import RidgeDecoder
from assay.sparse_coders.base import CoderModule, DecoderModule, EncoderModule
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

WEIGHTS, CONFIG = "sae_weights.safetensors", "cfg.json"
VECTORS = {
    "standard": ("b_enc",),
    "topk": ("b_enc",),
    "jumprelu": ("b_enc", "threshold"),
    "gated": ("b_gate", "b_mag", "r_mag"),
}
"""Tensors with one number per unit, by architecture."""
SIZES = ("architecture", "d_in", "d_sae", "k", "apply_b_dec_to_input")
"""Keys of cfg.json that are used."""
HARMLESS = (
    "dtype",
    "device",
    "metadata",
    "model_name",
    "hook_name",
    "hook_layer",
    "hook_head_index",
    "sae_lens_version",
    "prepend_bos",
    "dataset_path",
    "dataset_trust_remote_code",
    "context_size",
    "model_from_pretrained_kwargs",
    "neuronpedia_id",
    "seqpos_slice",
    "sae_lens_training_version",
)
"""Keys about a coder's origin, which change no code."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "normalize_activations": ("none", None),
    "reshape_activations": ("none", None),
    "rescale_acts_by_decoder_norm": (False, None),
    "activation_fn": ("relu", None),
    "activation_fn_str": ("relu", None),
    "activation_fn_kwargs": ({}, None),
    "finetuning_scaling_factor": (False, None),
}
"""Keys that change a code unless they have one of these values."""


@torch.no_grad()
def save_saelens(
    module: CoderModule,
    folder: str | Path,
    *,
    decoder: RidgeDecoder | None = None,
    metadata: dict[str, Any] | None = None,
) -> Path:
    """Write one coder; `metadata` may name its model and hook."""
    if module.models != 1 or not isinstance(module, EncoderModule):
        raise UserError("SAELens folders hold one trained coder: pick it out of its bank first.")
    architecture, tensors, extra = _exported(module, decoder)
    config = {
        "architecture": architecture,
        "d_in": module.d_in,
        "d_sae": module.d_code,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": isinstance(module, DecoderModule) and getattr(module, "form", "") != "spec",
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": {"sae_lens_version": "6.18.0", **(metadata or {})},
        **extra,
    }
    path = Path(folder)
    kept = {name: value.detach().float().cpu().contiguous().clone() for name, value in tensors.items()}
    with disk_errors(path):
        write_file(path / WEIGHTS, safetensors.torch.save(kept))
        write_file(path / CONFIG, (json.dumps(config, indent=1) + "\n").encode())
    return path


def _exported(module: EncoderModule, decoder: RidgeDecoder | None) -> tuple[str, dict[str, Tensor], dict[str, Any]]:
    tensors = {"W_enc": module.W_enc[0].T, "b_enc": module.b_enc[0]}
    if isinstance(module, DecoderModule):
        tensors |= {"W_dec": module.W_dec[0], "b_dec": module.b_dec[0]}
    elif decoder is None:
        raise UserError("this coder has no decoder of its own: give one, fitted to its codes (ridge_decoder).")
    else:
        tensors |= {"W_dec": decoder.W, "b_dec": decoder.b}
    match module:
        case LseModule():
            if module.activation != "relu":
                raise UserError(f"SAELens has no '{module.activation}' units: only relu is exported.")
            if module.scale == "unit_norm":
                tensors["W_enc"] = torch.nn.functional.normalize(module.W_enc[0], dim=1).T
            return "standard", tensors, {}
        case ReluModule():
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
            raise UserError(f"SAELens has no architecture for {type(module).__module__.rpartition('.')[2]}.")


@torch.no_grad()
def load_saelens(folder: str | Path) -> DecoderModule:
    """Load the coder of a SAELens folder, with its decoder. Inputs must be prepared as its `cfg.json` says."""
    path = Path(folder)
    config, found = _folder(path)
    _refuse_what_is_not_followed(config, path)
    module = _fresh(config, path)
    state = {name: value[None].float() for name, value in found.items()}
    state["W_enc"] = state["W_enc"].mT.contiguous()
    if isinstance(module, GatedModule):
        state["b_enc"] = state.pop("b_gate")
    if isinstance(module, JumpModule):
        state["log_threshold"] = state.pop("threshold").clamp_min(1e-30).log()
    if not config.get("apply_b_dec_to_input", True) and not (isinstance(module, ReluModule) and module.form == "spec"):
        # Ours subtracts b_dec from the input; W b_dec in the bias undoes it.
        state["b_enc"] = state["b_enc"] + torch.einsum("mkd,md->mk", state["W_enc"], state["b_dec"])
    for name, parameter in module.named_parameters():
        parameter.copy_(state[name])
    return module


def _folder(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the options and weights of a SAELens folder, and check each weight's shape."""
    if not is_there(path / CONFIG) or not is_there(path / WEIGHTS):
        raise UserError(f"'{path}' is no SAELens folder: it needs {CONFIG} and {WEIGHTS}.")
    try:
        config = json.loads(read_file(path / CONFIG, limit=TEXT))
        found = safetensors.torch.load(read_file(path / WEIGHTS))
        d_in, d_sae = int(config["d_in"]), int(config["d_sae"])
        shapes = {"W_enc": (d_in, d_sae), "W_dec": (d_sae, d_in), "b_dec": (d_in,)}
        shapes |= dict.fromkeys(VECTORS.get(str(config.get("architecture", "standard")), ()), (d_sae,))
        for name, shape in shapes.items():
            if tuple(found[name].shape) != shape or not found[name].is_floating_point():
                raise ValueError(f"{name} is {found[name].dtype} {tuple(found[name].shape)}, where {shape} belongs")
        if config.get("architecture") == "topk" and not 1 <= int(config["k"]) <= d_sae:
            raise ValueError(f"k={config['k']} of {d_sae} units")
    except KeyError as error:
        raise UserError(f"'{path}' is no SAELens folder: {error} is missing.") from None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, safetensors.SafetensorError) as error:
        raise UserError(f"'{path}' is no SAELens folder: {reason(error)}.") from None
    return config, found


def _refuse_what_is_not_followed(config: dict[str, Any], path: Path) -> None:
    """Raise for unsupported options: if ignored, codes would silently differ from those of SAELens."""
    for key, value in config.items():
        if key in SIZES or key in HARMLESS:
            continue
        if key not in NEUTRAL:
            raise UserError(f"'{path}': {CONFIG} has '{key}', and it is not known here whether that changes the codes.")
        if value not in NEUTRAL[key]:
            asked = f"'{path}': {CONFIG} asks for {key}={value!r}, which is not done here."
            raise UserError(f"{asked} Fold it into the weights first (SAELens has functions that do).")


def _fresh(config: dict[str, Any], path: Path) -> DecoderModule:
    sizes = 1, int(config["d_in"]), int(config["d_sae"])
    match config.get("architecture", "standard"):
        case "standard":
            form: Any = "norm_weighted" if config.get("apply_b_dec_to_input", True) else "spec"
            made: CoderModule = ReluL1(form=form).build(*sizes)
        case "topk":
            made = TopK(k=int(config["k"])).build(*sizes)
        case "jumprelu":
            made = JumpReLU().build(*sizes)
        case "gated":
            made = Gated().build(*sizes)
        case other:
            raise UserError(
                f"'{path}': architecture '{other}' is not known here. Known: standard, topk, jumprelu, gated."
            )
    assert isinstance(made, DecoderModule)
    return made
