"""Write saelens.safetensors: what the real SAELens makes of folders that assay saved, and folders that SAELens saved.

    python3 -m venv .venv-peers
    .venv-peers/bin/pip install 'torch>=2.6,<2.14' sae-lens==6.54.12 scikit-learn gguf
    PYTHONPATH=src .venv-peers/bin/python tests/golden/make_saelens.py            (`make peers` does all three)

Every folder comes with SAELens's codes and reconstructions of the same raw rows. `ours` are folders of each coder,
whose centring and scale are folded in; `theirs` are what SAELens writes of each architecture after training
(save_inference_model), during it (save_model), with every normalisation, and what its own remedies come to.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sae_lens
import torch
from sae_lens.registry import get_sae_class, get_sae_training_class
from sae_lens.training.activation_scaler import ActivationScaler, ActivationWhitening
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent.parent / "studies" / "sae"))
from saelens_coders import D_CODE, D_IN, WORDS, coder, decoder, preparation, raw

from assay.nn.random import stream
from assay.studies.sae.saelens import CONFIG, WEIGHTS, save_saelens

SCALER = "activation_scaler.json"


def saved_by_us(word: str) -> Callable[[Path], Any]:
    def save(folder: Path) -> Any:
        given = {"decoder": decoder()} if word.partition(":")[0] in ("lse_infomax", "random_relu", "fast_ica") else {}
        save_saelens(coder(word), folder, preparation=preparation(), **given)
        return sae_lens.SAE.load_from_disk(folder)

    return save


@torch.no_grad()
def drawn(name: str, architecture: str, *, training: bool, **options: Any) -> Any:
    """A coder of SAELens with random weights; decoder rows have any norm, and thresholds are above 0."""
    made, config = (get_sae_training_class if training else get_sae_class)(architecture)
    sae = made(config(d_in=D_IN, d_sae=D_CODE, **options))
    rng = stream(0, "peer", name)
    for key, parameter in sae.named_parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=rng))
        if key == "threshold":
            parameter.abs_()
    if hasattr(sae, "topk_threshold"):
        sae.topk_threshold.fill_(2.0)
    return sae


def inference(name: str, architecture: str, **options: Any) -> Callable[[Path], Any]:
    """What SAELens writes when training ends."""

    def save(folder: Path) -> Any:
        drawn(name, architecture, training=True, **options).save_inference_model(folder)
        return sae_lens.SAE.load_from_disk(folder)

    return save


def checkpoint(name: str, architecture: str, **options: Any) -> Callable[[Path], Any]:
    """What SAELens writes during training; the reference is what it would write at the end."""

    def save(folder: Path) -> Any:
        sae = drawn(name, architecture, training=True, **options)
        sae.save_model(folder)
        if options.get("normalize_activations") == "expected_average_only_in":
            ActivationScaler(scaling_factor=0.4).save(str(folder / SCALER))
            sae.fold_activation_norm_scaling_factor(0.4)
        return at_the_end(sae)

    return save


def at_the_end(sae: Any) -> Any:
    with tempfile.TemporaryDirectory() as other:
        sae.save_inference_model(other)
        return sae_lens.SAE.load_from_disk(other)


def normalising(name: str, **options: Any) -> Callable[[Path], Any]:
    def save(folder: Path) -> Any:
        drawn(name, "standard", training=False, **options).save_model(folder)
        return sae_lens.SAE.load_from_disk(folder)

    return save


def whitened(folder: Path) -> Any:
    """The remedy that is named for a checkpoint of whitened rows, carried out."""
    rng = stream(0, "whitening")
    matrix = torch.eye(D_IN) + 0.2 * torch.randn(D_IN, D_IN, generator=rng)
    whitening = ActivationWhitening(torch.randn(D_IN, generator=rng), matrix, torch.linalg.inv(matrix))
    with tempfile.TemporaryDirectory() as before:
        options = {"normalize_activations": "covariance_whitening", "k": 3}
        drawn("whitened", "topk", training=True, **options).save_model(before)
        sae = sae_lens.TrainingSAE.load_from_disk(before)
    sae.fold_activation_whitening(whitening.mean, whitening.matrix, whitening.inverse_matrix)
    sae.save_inference_model(folder)
    return sae_lens.SAE.load_from_disk(folder)


def before_6(folder: Path) -> Any:
    """A folder as versions before 6 wrote it: TopK is an activation function."""
    sae = drawn("before 6", "topk", training=False, k=3)
    sae.save_model(folder)
    old = {"architecture": "standard", "d_in": D_IN, "d_sae": D_CODE, "dtype": "float32", "device": "cpu"}
    old |= {"activation_fn_str": "topk", "activation_fn_kwargs": {"k": 3}, "hook_name": "blocks.0.hook_resid_pre"}
    old |= {"normalize_activations": "none", "apply_b_dec_to_input": True, "finetuning_scaling_factor": False}
    (folder / CONFIG).write_text(json.dumps(old))
    return sae_lens.SAE.load_from_disk(folder)


def saved_again(folder: Path) -> Any:
    """The remedy that is named for an unknown key, carried out."""
    with tempfile.TemporaryDirectory() as before:
        drawn("saved again", "jumprelu", training=False).save_model(before)
        config = json.loads((Path(before) / CONFIG).read_text())
        (Path(before) / CONFIG).write_text(json.dumps({**config, "a_key_of_tomorrow": 1}))
        sae_lens.SAE.load_from_disk(before).save_model(folder)
    return sae_lens.SAE.load_from_disk(folder)


MATRYOSHKA = {"k": 3, "matryoshka_widths": [4, 8, D_CODE]}
SCALED = {"normalize_activations": "expected_average_only_in"}
THEIRS = {
    "standard": inference("standard", "standard"),
    "standard, b_dec not subtracted": inference("standard 2", "standard", apply_b_dec_to_input=False),
    "topk": inference("topk", "topk", k=3),
    "topk, b_dec not subtracted": inference("topk 2", "topk", k=3, apply_b_dec_to_input=False),
    "jumprelu": inference("jumprelu", "jumprelu"),
    "jumprelu, b_dec not subtracted": inference("jumprelu 2", "jumprelu", apply_b_dec_to_input=False),
    "gated": inference("gated", "gated"),
    "gated, b_dec not subtracted": inference("gated 2", "gated", apply_b_dec_to_input=False),
    "batchtopk": inference("batchtopk", "batchtopk", k=3),
    "matryoshka": inference("matryoshka", "matryoshka_batchtopk", **MATRYOSHKA),
    "standard, in training": checkpoint("standard 3", "standard"),
    "topk, in training": checkpoint("topk 3", "topk", k=3),
    "jumprelu, in training": checkpoint("jumprelu 3", "jumprelu"),
    "gated, in training": checkpoint("gated 3", "gated"),
    "batchtopk, in training": checkpoint("batchtopk 3", "batchtopk", k=3),
    "matryoshka, in training": checkpoint("matryoshka 3", "matryoshka_batchtopk", **MATRYOSHKA),
    "standard, scaled": checkpoint("standard 4", "standard", **SCALED),
    "topk, scaled": checkpoint("topk 4", "topk", k=3, **SCALED),
    "batchtopk, scaled": checkpoint("batchtopk 4", "batchtopk", k=3, **SCALED),
    "whitened": whitened,
    "before 6": before_6,
    "saved again": saved_again,
    "constant_norm_rescale": normalising("constant", normalize_activations="constant_norm_rescale"),
    "layer_norm": normalising("layer", normalize_activations="layer_norm"),
}


def main() -> None:
    tensors, configs = {"raw": raw()}, {}
    ours = {f"ours: {word}": saved_by_us(word) for word in WORDS}
    for number, (name, save) in enumerate({**ours, **THEIRS}.items()):
        with tempfile.TemporaryDirectory() as folder:
            peer = save(Path(folder))
            codes = peer.encode(raw())
            found = {**load_file(Path(folder) / WEIGHTS), "codes": codes, "recon": peer.decode(codes)}
            texts = {path.name: path.read_text() for path in Path(folder).glob("*.json")}
        configs[name] = {"number": number, **texts}
        tensors |= {f"{number}.{key}": value.detach().float().contiguous().clone() for key, value in found.items()}
    target = Path(__file__).with_name("saelens.safetensors")
    about = {"peer": f"sae-lens {sae_lens.__version__}", "torch": torch.__version__, "configs": json.dumps(configs)}
    save_file(tensors, target, about)
    print(f"{target.name}: {len(configs)} folders, {target.stat().st_size / 1e3:.0f} kB, {about['peer']}")


if __name__ == "__main__":
    main()
