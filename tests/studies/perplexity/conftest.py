"""A tiny model with random weights and a byte tokenizer, as a folder that transformers loads; and a text for it."""

import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tiny_models import byte_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_model(tmp_path_factory.mktemp("tiny"), positions=512)


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
