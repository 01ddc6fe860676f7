"""The environment variables of this process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def environment_kept() -> Iterator[None]:
    """Undo, at the end of the block, what was set or changed or removed in it."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
