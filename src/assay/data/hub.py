"""The Hugging Face hub, without its talk."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


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
