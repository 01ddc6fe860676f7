"""Folders that SAELens reads: what it made of ours is kept in tests/golden; and back again."""

import json
from pathlib import Path

import pytest
import torch
from saelens_coders import WORDS, coder, decoder, rows
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from assay.core.errors import UserError
from assay.sparse_coders import sparse_coders
from assay.studies.sae import load_saelens, save_saelens
from assay.studies.sae.saelens import CONFIG, WEIGHTS

GOLDEN = Path(__file__).parents[2] / "golden" / "saelens.safetensors"


@pytest.fixture(scope="module")
def golden() -> tuple[dict[str, torch.Tensor], dict[str, dict]]:
    with safe_open(GOLDEN, "pt") as file:
        return load_file(GOLDEN), json.loads(file.metadata()["configs"])


@pytest.mark.parametrize("word", WORDS)
def test_saelens_gives_our_codes_from_our_folder(word: str, golden, tmp_path: Path) -> None:
    tensors, configs = golden
    number = WORDS.index(word)
    ours = coder(word)
    torch.testing.assert_close(ours.encode(rows()[None])[0], tensors[f"{number}.codes"], rtol=1e-5, atol=1e-6)
    if ours.has_decoder:
        recon = ours.decode(ours.encode(rows()[None]))[0]
        torch.testing.assert_close(recon, tensors[f"{number}.recon"], rtol=1e-5, atol=1e-5)
    save_saelens(ours, tmp_path, decoder=decoder())
    assert json.loads((tmp_path / CONFIG).read_text()) == configs[word], "the folder SAELens read is the one we write"
    for name, value in load_file(tmp_path / WEIGHTS).items():
        torch.testing.assert_close(value, tensors[f"{number}.{name}"])


@pytest.mark.parametrize("word", WORDS)
def test_a_folder_comes_back_as_a_coder_with_the_same_codes(word: str, golden, tmp_path: Path) -> None:
    tensors, configs = golden
    number = WORDS.index(word)
    names = [name for name in tensors if name.startswith(f"{number}.")]
    weights = {n.partition(".")[2]: tensors[n] for n in names if n.partition(".")[2] not in ("codes", "recon")}
    save_file(weights, tmp_path / WEIGHTS)
    (tmp_path / CONFIG).write_text(json.dumps(configs[word]))
    back = load_saelens(tmp_path)
    codes = back.encode(rows()[None])
    torch.testing.assert_close(codes[0], tensors[f"{number}.codes"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(back.decode(codes)[0], tensors[f"{number}.recon"], rtol=1e-4, atol=1e-4)


def test_what_cannot_be_exported_says_why(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no decoder of its own"):
        save_saelens(coder("lse_infomax"), tmp_path)
    with pytest.raises(UserError, match="only relu"):
        save_saelens(coder("lse_infomax:activation=softplus"), tmp_path, decoder=decoder())
    with pytest.raises(UserError, match="pick it out"):
        save_saelens(sparse_coders.parse("topk").build(2, 10, 14), tmp_path)
    with pytest.raises(UserError, match="no SAELens folder"):
        load_saelens(tmp_path)


@pytest.mark.parametrize(
    "key, value",
    [
        ("rescale_acts_by_decoder_norm", True),
        ("reshape_activations", "hook_z"),
        ("normalize_activations", "layer_norm"),
        ("activation_fn", "tanh-relu"),
        ("activation_fn_kwargs", {"k": 3}),
        ("finetuning_scaling_factor", True),
        ("a_key_of_tomorrow", 1),
    ],
)
def test_what_would_change_the_codes_and_is_not_followed_is_refused(key: str, value: object, tmp_path: Path) -> None:
    save_saelens(coder("topk:k=3"), tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    load_saelens(tmp_path)
    (tmp_path / CONFIG).write_text(json.dumps({**config, key: value}))
    with pytest.raises(UserError, match=key):
        load_saelens(tmp_path)
