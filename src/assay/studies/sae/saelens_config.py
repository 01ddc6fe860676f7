"""Reads the folders of SAELens: what `cfg.json` asks for, and whether it can be done here.

What would change a code and cannot be followed is refused by name, with what to do instead; nothing is ignored that
SAELens does not ignore.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from assay.core.errors import UserError
from assay.core.files import DAMAGE, TEXT, is_there, open_plain, read_file, reason
from assay.core.reading import fitting

WEIGHTS, CONFIG, SCALER = "sae_weights.safetensors", "cfg.json", "activation_scaler.json"
BATCH_CUT = ("batchtopk", "matryoshka_batchtopk")
"""What SAELens trains by the batch: checkpoints name it, what is saved after training is jumprelu."""
VECTORS = {
    "standard": ("b_enc",),
    "topk": ("b_enc",),
    "jumprelu": ("b_enc", "threshold"),
    "gated": ("b_gate", "b_mag", "r_mag"),
    **dict.fromkeys(BATCH_CUT, ("b_enc",)),
}
"""Tensors with one number per unit, by architecture."""
USED = {
    "architecture": str, "d_in": int, "d_sae": int, "k": int,
    "apply_b_dec_to_input": bool, "rescale_acts_by_decoder_norm": bool,
}  # fmt: skip
"""Keys of cfg.json that are followed, in the order of `Folder`."""
USUAL: Mapping[str, Any] = {"k": 0, "apply_b_dec_to_input": True, "rescale_acts_by_decoder_norm": False}
HARMLESS = (
    "dtype", "device", "metadata", "model_name", "hook_name", "hook_layer", "hook_head_index", "sae_lens_version",
    "prepend_bos", "dataset_path", "dataset_trust_remote_code", "context_size", "model_from_pretrained_kwargs",
    "neuronpedia_id", "seqpos_slice", "sae_lens_training_version", "model_class_name",
    # How a coder was trained; its weights are what came of it.
    "decoder_init_norm", "l1_coefficient", "lp_norm", "l1_warm_up_steps", "l0_coefficient", "l0_warm_up_steps",
    "jumprelu_init_threshold", "jumprelu_bandwidth", "jumprelu_sparsity_loss_mode", "jumprelu_tanh_scale",
    "jumprelu_ste_to_input", "pre_act_loss_coefficient", "target_l0", "aux_loss_coefficient", "use_sparse_activations",
    "topk_threshold_lr", "matryoshka_widths", "use_matryoshka_aux_loss",
    # hook_z makes one row of the heads' outputs; a row here has no heads to begin with.
    "reshape_activations",
    "finetuning_scaling_factor",  # the tensor says whether there is one
)  # fmt: skip
"""Keys that change no code of a row."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "normalize_activations": ("none", None, False),
    "activation_fn": ("relu", None),
    "activation_fn_str": ("relu", None),
    "activation_fn_kwargs": ({}, None),
}
"""Keys that change a code unless they have one of these values."""
AGAIN = "Save it again with SAELens 6 or newer: SAE.load_from_disk(folder).save_model(other)."
ROWS = "Set it to none in cfg.json, and prepare the rows yourself"
REMEDIES = {
    "constant_norm_rescale": f"{ROWS}: x * sqrt(d_in) / |x|; divide reconstructions by sqrt(d_in) / |x|.",
    "layer_norm": f"{ROWS}: (x - mean of the row) / (its std + 1e-5); undo that in reconstructions.",
    "covariance_whitening": "This is a checkpoint: SAELens folds the whitening in when training ends. Call its "
    "fold_activation_whitening on TrainingSAE.load_from_disk(folder), then save_inference_model(other).",
    "expected_average_only_in": "Give the factor that SAELens multiplied rows by: scaling_factor=...",
}
"""What to do instead, by the value of normalize_activations that is refused."""
OTHERWISE = "No coder here has such units: use SAELens for this one."


@dataclass(frozen=True)
class Folder:
    """The options of a SAELens folder, checked against the shapes of its weights."""

    path: Path
    architecture: str
    d_in: int
    d_sae: int
    k: int
    subtracts: bool
    """Whether b_dec is subtracted from the input."""
    by_norm: bool
    """Whether a unit counts by its activation times the norm of its decoder row."""
    factor: float
    """What rows are multiplied by before they are coded."""

    def tensor(self, name: str) -> Tensor:
        """Map one tensor of the file into memory; it is read when it is copied."""
        with safetensors.safe_open(os.path.realpath(self.path / WEIGHTS), "pt") as file:
            found: Tensor = file.get_tensor(name)
        if not found.float().isfinite().all():
            raise UserError(f"'{self.path}': {WEIGHTS} has numbers in {name} that are not finite: no coder has such.")
        return found


def read_folder(path: Path, scaling_factor: float | None) -> Folder:
    """Read the options of a folder, and raise for what is missing, damaged, or not done here."""
    if not is_there(path / CONFIG) or not is_there(path / WEIGHTS):
        raise UserError(f"'{path}' is no SAELens folder: it needs {CONFIG} and {WEIGHTS}.")
    try:
        config = _of_today(json.loads(read_file(path / CONFIG, limit=TEXT)))
        factor = _factor(config, path, scaling_factor)
        given: dict[str, Any] = {**USUAL, **{key: value for key, value in config.items() if value is not None}}
        fitting(given, USED)  # no number is rounded, and no text is a yes
        folder = Folder(*[path, *(given[key] for key in USED), factor])
        _refuse_what_is_not_followed(config, folder)
        _check_shapes(folder)
    except KeyError as error:
        raise UserError(f"'{path}' is no SAELens folder: {error} is missing.") from None
    except (*DAMAGE, safetensors.SafetensorError) as error:
        raise UserError(f"'{path}' is no SAELens folder: {reason(error)}.") from None
    return folder


def _of_today(config: dict[str, Any]) -> dict[str, Any]:
    """The config as SAELens 6 writes it: before, TopK was an activation function of `standard`."""
    config = {"architecture": "standard", **config}
    for key in ("activation_fn", "activation_fn_str"):
        if config.get(key) == "topk" and config["architecture"] in ("standard", "topk"):
            k = (config.get("activation_fn_kwargs") or {}).get("k", config.get("k"))
            config |= {"architecture": "topk", "k": k, key: None, "activation_fn_kwargs": None}
    if config.get("normalize_activations") is True:
        config["normalize_activations"] = "expected_average_only_in"
    return config


def _factor(config: dict[str, Any], path: Path, given: float | None) -> float:
    """What rows are multiplied by: as given, or from the file that SAELens writes beside a checkpoint."""
    if config.get("normalize_activations") != "expected_average_only_in":
        if given is not None:
            raise UserError(f"'{path}': {CONFIG} asks for no scaled rows: leave scaling_factor out.")
        return 1.0
    if given is None and is_there(path / SCALER):
        given = json.loads(read_file(path / SCALER, limit=TEXT))["scaling_factor"]
    if given is None:
        return 1.0  # refused below, as the key is
    if not (math.isfinite(given) and given > 0):
        raise UserError(f"'{path}': a scaling_factor of {given} is no factor: it must be above 0.")
    config["normalize_activations"] = "none"
    return float(given)


def _refuse_what_is_not_followed(config: dict[str, Any], folder: Folder) -> None:
    """Raise for unsupported options: if ignored, codes would silently differ from those of SAELens."""
    if folder.architecture not in VECTORS:
        known = ", ".join(VECTORS)
        raise UserError(f"'{folder.path}': architecture '{folder.architecture}' is not known here. Known: {known}.")
    if folder.by_norm and folder.architecture not in ("topk", *BATCH_CUT):
        raise UserError(
            f"'{folder.path}': rescale_acts_by_decoder_norm means nothing to {folder.architecture}. {AGAIN}"
        )
    for key, value in config.items():
        if key in USED or key in HARMLESS:
            continue
        if key not in NEUTRAL:
            unknown = f"'{folder.path}': {CONFIG} has '{key}', and it is not known here whether that changes the codes."
            raise UserError(f"{unknown} {AGAIN}")
        if value not in NEUTRAL[key]:
            asked = f"'{folder.path}': {CONFIG} asks for {key}={value!r}, which is not done here."
            raise UserError(f"{asked} {REMEDIES.get(str(value), OTHERWISE)}")


def _check_shapes(folder: Folder) -> None:
    d_in, d_sae = folder.d_in, folder.d_sae
    shapes: dict[str, tuple[int, ...]] = {"W_enc": (d_in, d_sae), "W_dec": (d_sae, d_in), "b_dec": (d_in,)}
    shapes |= dict.fromkeys(VECTORS[folder.architecture], (d_sae,))
    if folder.architecture in BATCH_CUT:
        shapes["topk_threshold"] = ()
    file = Path(os.path.realpath(folder.path / WEIGHTS))
    open_plain(file).close()  # raises for a pipe, before anything waits for it
    with safetensors.safe_open(file, "pt") as found:
        names = set(found.keys())
        for name, shape in shapes.items():
            if name not in names:
                raise KeyError(name)
            there = found.get_slice(name)
            if tuple(there.get_shape()) != shape or not there.get_dtype().startswith(("F", "BF")):
                raise ValueError(f"{name} is {there.get_dtype()} {tuple(there.get_shape())}, where {shape} belongs")
    if more := sorted(names - set(shapes) - {"scaling_factor"}):
        raise UserError(f"'{folder.path}': {WEIGHTS} has '{more[0]}', which {folder.architecture} has not. {AGAIN}")
    # SAELens wrote such factors for a while without using them.
    if "scaling_factor" in names and not torch.equal(units := folder.tensor("scaling_factor"), torch.ones_like(units)):
        remedy = "Multiply row j of W_dec by scaling_factor[j], and remove that tensor."
        raise UserError(f"'{folder.path}': {WEIGHTS} has a scaling_factor, which is not done here. {remedy}")
    if folder.architecture == "topk" and not 1 <= folder.k <= d_sae:
        raise ValueError(f"k={folder.k} of {d_sae} units")
