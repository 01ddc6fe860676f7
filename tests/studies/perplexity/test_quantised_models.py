"""Quantised models: run as their config says, or refused in one line that says what to install."""

import importlib.util
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from assay.core.errors import UserError
from assay.data.language_model import PACKAGES, fingerprint, load_model, quantisation_of
from assay.models.causal_lm import sparse

pytestmark = pytest.mark.usefixtures("undrawn")

Cli = Callable[..., tuple[int, str, str]]
IDS = torch.arange(40)[None] + 3
SMALL = ["--methods", "h2o", "--budgets", "8", "--no-sparsity-sweep", "--context-lengths", "32", "--max-samples", "4"]


@pytest.fixture
def quantised(tiny: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the tiny model whose config says that it is quantised."""

    def write(**told: Any) -> Path:
        folder = tmp_path / "quantised"
        shutil.copytree(tiny, folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "quantization_config": told}))
        return folder

    return write


@pytest.fixture
def rounding() -> Iterator[str]:
    """A method of quantisation for these tests: weights of linear layers become multiples of 1/8 once they are read."""
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin

    class Config(QuantizationConfigMixin):
        def __init__(self, **told: Any) -> None:
            self.quant_method: Any = "rounding"

    class Rounding(HfQuantizer):
        requires_calibration = False
        is_trainable = False

        def is_serializable(self, *_: Any, **__: Any) -> bool:
            return True

        def _process_model_before_weight_loading(self, model: Any, **_: Any) -> None: ...

        def _process_model_after_weight_loading(self, model: Any, **_: Any) -> None:
            rounded(model)

    AUTO_QUANTIZER_MAPPING["rounding"], AUTO_QUANTIZATION_CONFIG_MAPPING["rounding"] = Rounding, Config
    yield "rounding"
    del AUTO_QUANTIZER_MAPPING["rounding"], AUTO_QUANTIZATION_CONFIG_MAPPING["rounding"]


def rounded(model: torch.nn.Module) -> torch.nn.Module:
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.weight.data.mul_(8).round_().div_(8)
    return model


def test_a_quantised_folder_runs_as_it_is(
    quantised: Callable[..., Path], rounding: str, tiny: Path, text: Path, tmp_path: Path, cli: Cli
) -> None:
    folder = quantised(quant_method=rounding)
    with torch.no_grad():
        expected = rounded(load_model(str(tiny)))(IDS, use_cache=False).logits
        model = load_model(str(folder))
        with sparse(model, "dense"):
            found = model(IDS, use_cache=False).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert not torch.allclose(load_model(str(tiny))(IDS, use_cache=False).logits, expected, atol=1e-3)
    place = ["--executor", "serial", "--device", "cpu", "--quiet", "--out", str(tmp_path / "out")]
    code, out, err = cli("perplexity", "--model", str(folder), "--datasets", str(text), *SMALL, *place)
    assert code == 0 and "h2o" in out, err


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            "quantised with bitsandbytes: pip install bitsandbytes.",
        ),
        ({"load_in_8bit": True}, "quantised with bitsandbytes: pip install bitsandbytes."),
        ({"quant_method": "torchao", "quant_type": "int8_weight_only"}, "quantised with torchao: pip install torchao."),
        ({"quant_method": "gptq", "bits": 4}, "quantised with gptq: pip install gptqmodel optimum."),
        ({"quant_method": "nothing"}, "quantised with 'nothing', which this transformers does not know."),
    ],
    ids=lambda told: told["quant_method"] if isinstance(told, dict) and "quant_method" in told else "",
)
def test_what_is_missing_is_said_before_anything_runs(
    told: dict[str, Any],
    said: str,
    quantised: Callable[..., Path],
    text: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also on a machine that has the packages."""
    away, find = {name for names in PACKAGES.values() for name in names}, importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in away else find(name, *more))
    folder = quantised(**told)
    words = ("--datasets", str(text), "--methods", "h2o", "--context-lengths", "32", "--dry-run")
    code, out, err = cli("perplexity", "--model", str(folder), *words)
    assert code == 2 and not out and said in err and err.count("\n") == 1, err


def test_a_config_object_names_its_method_as_a_file_does() -> None:
    from transformers.utils.quantization_config import QuantizationConfigMixin, QuantizationMethod

    config = SimpleNamespace(quantization_config=QuantizationConfigMixin(quant_method=QuantizationMethod.GPTQ))
    assert quantisation_of(config) == "gptq"
    assert quantisation_of(SimpleNamespace(quantization_config={"quant_method": "gptq"})) == "gptq"


def test_a_folder_of_a_gguf_file_says_to_give_the_file(tmp_path: Path, text: Path, cli: Cli) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tiny.gguf").write_bytes(b"")
    words = ("--datasets", str(text), "--methods", "h2o", "--context-lengths", "32", "--dry-run")
    code, out, err = cli("perplexity", "--model", str(folder), *words)
    assert code == 2 and not out and f"give the file itself, {folder / 'tiny.gguf'}." in err, err
    assert err.count("\n") == 1


def test_a_checkpoint_that_was_not_written_by_its_method_is_refused(quantised: Callable[..., Path]) -> None:
    """Its scales would be drawn at random, and the numbers those of another model."""
    with pytest.raises(UserError, match=r"lacks 14 of its weights, such as model\.layers\.0\.mlp"):
        load_model(str(quantised(quant_method="bitnet")))


def test_a_package_that_transformers_asks_for_is_one_line(
    quantised: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.data.language_model.PACKAGES", {})
    with pytest.raises(UserError, match=r"cannot load the model '.*': .*pip install optimum-quanto") as seen:
        load_model(str(quantised(quant_method="quanto", weights="int8")))
    assert "\n" not in str(seen.value)


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
def test_eight_bits_of_bitsandbytes_run(tiny: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    packed = AutoModelForCausalLM.from_pretrained(tiny, quantization_config=BitsAndBytesConfig(load_in_8bit=True))
    packed.save_pretrained(tmp_path / "packed")
    model = load_model(str(tmp_path / "packed"))
    assert model.model.layers[0].mlp.up_proj.weight.dtype == torch.int8  # type: ignore[union-attr, index]
    with torch.no_grad(), sparse(model, "h2o", slots=8):
        assert model(IDS, use_cache=False).logits.isfinite().all()


PARTS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


@pytest.fixture
def gguf_file(tiny: Path, tmp_path: Path) -> Path:
    """The tiny model in llama.cpp's format, with its names and its order of rotary channels."""
    import gguf

    from assay.data.language_model import load_tokenizer

    model, tokens = load_model(str(tiny)), load_tokenizer(str(tiny))
    config: Any = model.config
    out = gguf.GGUFWriter(str(tmp_path / "tiny.gguf"), "llama")
    out.add_context_length(config.max_position_embeddings)
    out.add_embedding_length(config.hidden_size)
    out.add_block_count(config.num_hidden_layers)
    out.add_feed_forward_length(config.intermediate_size)
    out.add_head_count(config.num_attention_heads)
    out.add_head_count_kv(config.num_key_value_heads)
    out.add_layer_norm_rms_eps(config.rms_norm_eps)
    out.add_rope_dimension_count(config.head_dim)
    out.add_rope_freq_base(10000.0)
    out.add_vocab_size(config.vocab_size)
    out.add_tokenizer_model("gpt2")
    out.add_token_list([*tokens.convert_ids_to_tokens(list(range(len(tokens) - 1))), "aa"])
    out.add_token_merges(["a a"])  # at least one, whose result is a token
    out.add_bos_token_id(0)
    for name, weight in model.state_dict().items():
        stem = name.removesuffix(".weight")
        if stem in WHOLE:
            out.add_tensor(f"{WHOLE[stem]}.weight", weight.numpy())
            continue
        _, _, layer, part = stem.split(".", 3)
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(PARTS[part])
        if heads:
            weight = weight.reshape(heads, 2, -1, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)
        out.add_tensor(f"blk.{layer}.{PARTS[part]}.weight", weight.contiguous().numpy())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return tmp_path / "tiny.gguf"


def test_a_gguf_file_is_the_model_that_was_written_into_it(
    gguf_file: Path, tiny: Path, text: Path, tmp_path: Path, cli: Cli
) -> None:
    with torch.no_grad():
        one, other = (load_model(str(path))(IDS, use_cache=False).logits for path in (gguf_file, tiny))
    torch.testing.assert_close(one, other, rtol=0, atol=0)
    before = fingerprint(str(gguf_file))
    place = ["--executor", "serial", "--device", "cpu", "--quiet", "--out", str(tmp_path / "out")]
    code, out, err = cli("perplexity", "--model", str(gguf_file), "--datasets", str(text), *SMALL, *place)
    assert code == 0 and "h2o" in out and "de-quantizing" not in err, err
    gguf_file.write_bytes(b"no model")
    assert fingerprint(str(gguf_file)) != before, "another file is another run"
    code, out, err = cli("perplexity", "--model", str(gguf_file), "--datasets", str(text), *SMALL, *place)
    assert code == 2 and "GGUF" in err and err.count("\n") == 1, err
