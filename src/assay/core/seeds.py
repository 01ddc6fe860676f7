"""Random streams are named: init, data, order and probes of a run never share a generator or depend on call order."""

import hashlib


def derive(seed: int, *names: str | int) -> int:
    """Return a 63-bit seed for the stream `names` of run seed `seed`; the same on every machine."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
