"""The Hugging Face hub, as far as its libraries leave it to us."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from assay.data.places import user_cache


def hub_cache() -> Path:
    """Where the library `datasets` keeps what it has prepared."""
    home = os.environ.get("HF_HOME") or user_cache() / "huggingface"
    return Path(os.environ.get("HF_DATASETS_CACHE") or Path(home) / "datasets")


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Its client tells of every attempt: here the last one's error is told, once."""
    client = logging.getLogger("huggingface_hub")
    level = client.level
    client.setLevel(logging.ERROR)
    try:
        yield
    finally:
        client.setLevel(level)
