"""Whether the Hugging Face hub answers: asked once, with little patience. Its own libraries try again for a minute."""

import http.client
import os
import queue
import ssl
import threading
import urllib.error
import urllib.request
from functools import cache

PATIENCE = 5.0
"""Seconds."""


def endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


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
