"""The Hugging Face hub is asked with a short timeout and its log messages off: its own libraries retry for a minute."""

import logging
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from assay.data.places import user_cache

PATIENCE = 5.0
"""Timeout in seconds."""


def endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def hub_cache() -> Path:
    """Return the folder in which the library `datasets` caches what it has prepared."""
    home = os.environ.get("HF_HOME") or user_cache() / "huggingface"
    return Path(os.environ.get("HF_DATASETS_CACHE") or Path(home) / "datasets")


@cache
def answers(url: str, patience: float = PATIENCE) -> bool:
    """Return whether the URL answers, even by an error. In a thread, since no timeout ends a DNS lookup."""
    found: queue.SimpleQueue[bool] = queue.SimpleQueue()
    threading.Thread(target=lambda: found.put(_answers(url, patience)), daemon=True).start()
    try:
        return found.get(timeout=patience)
    except queue.Empty:
        return False


def _answers(url: str, patience: float) -> bool:
    import http.client  # here: `assay data list` asks nobody, and would wait for these
    import ssl
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=patience):
            return True
    except (urllib.error.HTTPError, http.client.HTTPException):
        return True
    except OSError as error:  # the hub's libraries may know a certificate that is unknown here
        return isinstance(getattr(error, "reason", error), ssl.SSLError)


@contextmanager
def silent() -> Iterator[None]:
    """Silence the hub's warnings about each attempt inside the block."""
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(logging.ERROR)
    try:
        yield
    finally:
        hub.setLevel(level)


def reason(error: Exception) -> str:
    """Return the first line of the error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
