"""Fixtures of a language model small enough to run in a test; a folder's conftest.py imports those it uses."""

import json
from pathlib import Path

import pytest

from assay.data import named
from assay.data.places import FOLDER
from assay.nn.random import initialised_from
from assay.vectors.activations import Activations
from assay.vectors.stream import Stream

WORDS = "the cat sat on the mat, and 3 dogs ran to a tree. "


def byte_model(folder: Path, *, positions: int) -> Path:
    """A folder with a Llama of random weights and a tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["Ġalpha", "Ġbeta", "Ġgamma", *(f"Ġword{chr(97 + i)}{chr(97 + j)}" for i in range(6) for j in range(6))]
    alphabet = ["<s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *words]
    # Words are in the vocabulary, but no merge leads to them: text is bytes.
    byte = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(alphabet)}, merges=[]))
    byte.pre_tokenizer, byte.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=byte, bos_token="<s>").save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(alphabet), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=positions, initializer_range=0.2, bos_token_id=0,
    )  # fmt: skip
    with initialised_from(0, "tiny"):
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def tiny_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a Llama of random weights and a tokenizer of letters, in Hugging Face format, and a text."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path / "models" / "tiny"
    vocabulary = {
        letter: place for place, letter in enumerate(["<unk>", *" abcdefghijklmnopqrstuvwxyz.,0123456789ABC"])
    }
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    )  # fmt: skip
    with initialised_from(0, "llama"):
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
    (tmp_path / "text.txt").write_text("the cat sat on the mat, and 3 dogs ran. Bees! " * 40)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.delenv("ASSAY_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for cached in (named.loaded_model, named.loaded_tokenizer):
        cached.cache_clear()
    return tmp_path


@pytest.fixture
def tiny(tiny_model: Path) -> Activations:
    """The outputs of its first layer."""
    return Activations(model="tiny", hook="model.layers.0", text="text.txt", sequences=40, context=20)


@pytest.fixture
def stream(tiny_model: Path) -> Stream:
    """Thirty documents of 200 letters and more."""
    lines = (json.dumps({"text": f"{WORDS[k % 9 :]}{k} " * 5}) for k in range(100, 130))
    (tiny_model / "documents.jsonl").write_text("\n".join(lines))
    return Stream(
        model="tiny", hook="model.layers.0", text="documents.jsonl", tokens=6000, context=20, batch=7, buffer=150,
        held_out=400,
    )  # fmt: skip
