"""The Hugging Face hub, with little patience and without its talk: its own libraries try again for a minute."""

import http.client
import logging
import os
import queue
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from assay.data.places import user_cache

PATIENCE = 5.0
"""Seconds."""


def endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def hub_cache() -> Path:
    """Where the library `datasets` keeps what it has prepared."""
    home = os.environ.get("HF_HOME") or user_cache() / "huggingface"
    return Path(os.environ.get("HF_DATASETS_CACHE") or Path(home) / "datasets")


@cache
def answers(url: str, patience: float = PATIENCE) -> bool:
    """Whether there is any answer, be it a refusal. In a thread, since no time limit ends the search for a name."""
    found: queue.SimpleQueue[bool] = queue.SimpleQueue()
    threading.Thread(target=lambda: found.put(_answers(url, patience)), daemon=True).start()
    try:
        return found.get(timeout=patience)
    except queue.Empty:
        return False


def _answers(url: str, patience: float) -> bool:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=patience):
            return True
    except (urllib.error.HTTPError, http.client.HTTPException):
        return True
    except OSError as error:  # a certificate that is not known here may be known to the hub's libraries
        return isinstance(getattr(error, "reason", error), ssl.SSLError)


@contextmanager
def silent() -> Iterator[None]:
    """Inside, it does not tell of every attempt."""
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(logging.ERROR)
    try:
        yield
    finally:
        hub.setLevel(level)


def reason(error: Exception) -> str:
    """The first line of what it says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
