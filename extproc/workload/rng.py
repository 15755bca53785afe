"""One seed split into named random streams, so that adding a consumer never shifts the draws of another.

Two arms of one comparison hand in the same seed and get the same arrivals and lengths, whatever else each
of them draws.
"""

from __future__ import annotations

import hashlib
from random import Random


def random_stream(seed: int, name: str) -> Random:
    """A generator that depends on `seed` and `name` only; the same on every platform and Python version."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return Random(int.from_bytes(digest, "big"))
