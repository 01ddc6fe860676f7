"""Folders of SAELens, both ways, on raw rows: tests/golden has what the real library made of ours, and wrote itself."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from saelens_coders import D_CODE, D_IN, WORDS, coder, decoder, preparation, prepared, raw
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from assay.core.errors import UserError
from assay.nn.preparation import Preparation
from assay.sparse_coders import sparse_coders
from assay.studies.sae import load_saelens, save_saelens
from assay.studies.sae.saelens import CONFIG, WEIGHTS
from assay.studies.sae.saelens_config import SCALER

GOLDEN = Path(__file__).parents[2] / "golden" / "saelens.safetensors"
ROWWISE = ("constant_norm_rescale", "layer_norm")


class Peer:
    """One folder that SAELens read or wrote, and its codes and reconstructions of the raw rows."""

    def __init__(self, name: str) -> None:
        with safe_open(GOLDEN, "pt") as file:
            self.texts: dict[str, Any] = json.loads(file.metadata()["configs"])[name]
        number = self.texts.pop("number")
        found = load_file(GOLDEN)
        self.weights = {key.partition(".")[2]: found[key] for key in found if key.startswith(f"{number}.")}
        self.codes, self.recon = self.weights.pop("codes"), self.weights.pop("recon")

    @property
    def config(self) -> dict[str, Any]:
        return json.loads(self.texts[CONFIG])

    def write(self, folder: Path, **changes: object) -> Path:
        save_file(self.weights, folder / WEIGHTS)
        for name, text in self.texts.items():
            (folder / name).write_text(text)
        (folder / CONFIG).write_text(json.dumps({**self.config, **changes}))
        return folder


def names() -> list[str]:
    with safe_open(GOLDEN, "pt") as file:
        return list(json.loads(file.metadata()["configs"]))


def given(word: str) -> dict[str, Any]:
    return {} if coder(word).has_decoder else {"decoder": decoder()}


def test_the_golden_folders_are_of_every_coder_and_every_architecture() -> None:
    architectures = {json.loads(Peer(name).texts[CONFIG])["architecture"] for name in names()}
    assert {"standard", "topk", "jumprelu", "gated", "batchtopk", "matryoshka_batchtopk"} == architectures
    assert {f"ours: {word}" for word in WORDS} <= set(names())


@pytest.mark.parametrize("word", WORDS)
def test_saelens_codes_raw_rows_as_we_code_prepared_ones(word: str, tmp_path: Path) -> None:
    peer, ours = Peer(f"ours: {word}"), coder(word)
    code = ours.encode(prepared()[None])
    torch.testing.assert_close(code[0], peer.codes, rtol=1e-5, atol=1e-5)
    guess = ours.decode(code)[0] if ours.has_decoder else decoder().decode(code[0])
    torch.testing.assert_close(preparation().restore(guess), peer.recon, rtol=1e-5, atol=1e-4)
    save_saelens(ours, tmp_path, preparation=preparation(), **given(word))
    assert json.loads((tmp_path / CONFIG).read_text()) == peer.config, "the folder SAELens read is the one we write"
    for name, value in load_file(tmp_path / WEIGHTS).items():
        torch.testing.assert_close(value, peer.weights[name])


@pytest.mark.parametrize("name", [name for name in names() if name not in ROWWISE])
def test_a_folder_of_saelens_is_a_coder_with_its_codes_of_raw_rows(name: str, tmp_path: Path) -> None:
    peer = Peer(name)
    module = load_saelens(peer.write(tmp_path))
    code = module.encode(raw()[None])
    torch.testing.assert_close(code[0], peer.codes, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(module.decode(code)[0], peer.recon, rtol=1e-4, atol=1e-4)
    assert peer.codes.count_nonzero() > 5, "rows that nothing codes would be alike anywhere"


@pytest.mark.parametrize("word", WORDS)
def test_without_a_preparation_weights_come_back_bit_by_bit(word: str, tmp_path: Path) -> None:
    ours = coder(word)
    back = load_saelens(save_saelens(ours, tmp_path, **given(word)))
    if not word.startswith("lse_infomax:scale=unit_norm"):
        assert torch.equal(back.W_enc, ours.W_enc)
    if ours.has_decoder:
        assert torch.equal(back.W_dec, ours.W_dec) and torch.equal(back.b_dec, ours.b_dec)
        assert torch.equal(back.b_enc, ours.b_enc)


def test_a_coder_brings_its_preparation_along_and_an_export_uses_it(tmp_path: Path) -> None:
    ours = coder("topk:k=3")
    ours.preparation = preparation()
    save_saelens(ours, tmp_path)
    peer = Peer("ours: topk:k=3")
    torch.testing.assert_close(load_file(tmp_path / WEIGHTS)["b_dec"], peer.weights["b_dec"])
    with pytest.raises(UserError, match="of 3 inputs, and the coder has 6"):
        save_saelens(ours, tmp_path, preparation=Preparation(torch.zeros(3), 1.0))


def test_what_cannot_be_exported_is_named_with_what_can(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no decoder of its own"):
        save_saelens(coder("lse_infomax"), tmp_path)
    with pytest.raises(UserError, match="only relu"):
        save_saelens(coder("lse_infomax:activation=softplus"), tmp_path, decoder=decoder())
    with pytest.raises(UserError, match="pick it out"):
        save_saelens(sparse_coders.parse("topk").build(2, 10, 14), tmp_path)
    x = torch.randn(64, D_IN)
    with pytest.raises(UserError, match="no signed codes, which pca and fast_ica give"):
        save_saelens(sparse_coders.parse("pca").fit(x, 4, 0), tmp_path, decoder=decoder())
    with pytest.raises(UserError, match=r"no architecture for kmeans.*such as topk"):
        save_saelens(sparse_coders.parse("kmeans").fit(x, 4, 0), tmp_path, decoder=decoder())
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="no SAELens folder"):
        load_saelens(tmp_path)


@pytest.mark.parametrize(
    "key, value, remedy",
    [
        ("normalize_activations", "layer_norm", "prepare the rows yourself"),
        ("normalize_activations", "constant_norm_rescale", "prepare the rows yourself"),
        ("normalize_activations", "expected_average_only_in", "scaling_factor="),
        ("normalize_activations", True, "scaling_factor="),
        ("normalize_activations", "covariance_whitening", "fold_activation_whitening"),
        ("activation_fn", "tanh-relu", "use SAELens for this one"),
        ("a_key_of_tomorrow", 1, "save_model"),
        ("architecture", "abstopk", "Known: standard, topk"),
        ("k", 11, "k=11 of 10 units"),
    ],
)
def test_what_would_change_the_codes_and_is_not_followed_is_refused_with_a_remedy(
    key: str, value: object, remedy: str, tmp_path: Path
) -> None:
    peer = Peer("topk")
    load_saelens(peer.write(tmp_path))
    with pytest.raises(UserError, match=remedy) as said:
        load_saelens(peer.write(tmp_path, **{key: value}))
    assert "\n" not in str(said.value) and key in str(said.value)


@pytest.mark.parametrize("name", ["standard, scaled", "topk, scaled", "batchtopk, scaled"])
def test_the_remedy_for_scaled_rows_works(name: str, tmp_path: Path) -> None:
    peer = Peer(name)
    assert json.loads(peer.texts.pop(SCALER))["scaling_factor"] == 0.4
    with pytest.raises(UserError, match="scaling_factor="):
        load_saelens(peer.write(tmp_path))
    code = load_saelens(tmp_path, scaling_factor=0.4).encode(raw()[None])[0]
    torch.testing.assert_close(code, peer.codes, rtol=1e-4, atol=1e-4)
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(UserError, match="above 0"):
            load_saelens(tmp_path, scaling_factor=bad)
    with pytest.raises(UserError, match="leave scaling_factor out"):
        load_saelens(Peer("topk").write(tmp_path), scaling_factor=0.4)


@pytest.mark.parametrize("name", ROWWISE)
def test_the_remedy_for_rows_normalised_one_by_one_works(name: str, tmp_path: Path) -> None:
    peer, x = Peer(name), raw()
    mean, scale = torch.zeros(len(x), 1), x.norm(dim=1, keepdim=True) / math.sqrt(D_IN)
    if name == "layer_norm":
        mean = x.mean(dim=1, keepdim=True)
        scale = (x - mean).std(dim=1, keepdim=True) + 1e-5
    module = load_saelens(peer.write(tmp_path, normalize_activations="none"))
    code = module.encode(((x - mean) / scale)[None])
    torch.testing.assert_close(code[0], peer.codes, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(module.decode(code)[0] * scale + mean, peer.recon, rtol=1e-4, atol=1e-3)


def test_factors_of_units_are_refused_unless_they_are_ones_and_the_remedy_works(tmp_path: Path) -> None:
    peer = Peer("standard")
    plain = load_saelens(peer.write(tmp_path))
    peer.weights["scaling_factor"] = torch.ones(D_CODE)
    assert torch.equal(load_saelens(peer.write(tmp_path, finetuning_scaling_factor=True)).W_dec, plain.W_dec)
    peer.weights["scaling_factor"] = torch.arange(1.0, D_CODE + 1)
    with pytest.raises(UserError, match=r"Multiply row j of W_dec by scaling_factor\[j\]"):
        load_saelens(peer.write(tmp_path))
    peer.weights["W_dec"] = peer.weights["W_dec"] * peer.weights.pop("scaling_factor")[:, None]
    assert not torch.equal(load_saelens(peer.write(tmp_path)).W_dec, plain.W_dec)


def test_a_tensor_that_an_architecture_has_not_is_refused(tmp_path: Path) -> None:
    peer = Peer("standard")
    peer.weights["W_skip"] = torch.zeros(D_IN, D_IN)
    with pytest.raises(UserError, match="W_skip"):
        load_saelens(peer.write(tmp_path))


@pytest.mark.parametrize("name", ["W_enc", "W_dec", "b_enc", "b_dec"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_3_8_weights_that_are_no_numbers_are_refused_by_name(name: str, value: float, tmp_path: Path) -> None:
    folder = save_saelens(coder("relu_l1"), tmp_path)
    weights = load_file(folder / WEIGHTS)
    weights[name].view(-1)[-1] = value
    save_file(weights, folder / WEIGHTS)
    with pytest.raises(UserError, match=rf"numbers in {name} that are not finite"):
        load_saelens(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("d_in", float(D_IN)),
        ("d_in", D_IN + 0.5),
        ("d_sae", str(D_CODE)),
        ("apply_b_dec_to_input", "false"),
        ("k", True),
    ],
)
def test_3_8_options_of_another_type_are_refused_by_name(key: str, value: object, tmp_path: Path) -> None:
    folder = save_saelens(coder("relu_l1"), tmp_path)
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, key: value}))
    with pytest.raises(UserError, match=rf"its {key} is "):
        load_saelens(folder)
