"""A tiny model with random weights and a byte tokenizer, as a folder that transformers loads; and a text for it."""

import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from assay.nn.random import initialised_from

    folder = tmp_path_factory.mktemp("tiny")
    words = ["Ġalpha", "Ġbeta", "Ġgamma", *(f"Ġword{chr(97 + i)}{chr(97 + j)}" for i in range(6) for j in range(6))]
    alphabet = ["<s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *words]
    # Words are in the vocabulary, but no merge leads to them: text is bytes.
    byte = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(alphabet)}, merges=[]))
    byte.pre_tokenizer, byte.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=byte, bos_token="<s>").save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(alphabet), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.2, bos_token_id=0,
    )  # fmt: skip
    with initialised_from(0, "tiny"):
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory, script: Callable[[str], ModuleType]) -> Path:
    """Twenty-four short articles in the form of WikiText."""
    draw, words = random.Random(0), script("benchmarks/stored.py").WORDS
    articles = [
        f" = Title {number} = \n \n " + " ".join(draw.choices(words, k=60)) + " \n \n = = Section = = \n \n done \n \n"
        for number in range(24)
    ]
    path = tmp_path_factory.mktemp("text") / "articles.txt"
    path.write_text("".join(articles))
    return path
