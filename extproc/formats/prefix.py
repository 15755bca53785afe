"""Hashes of a prompt's beginning, block by block, so that prompts with a common beginning can be recognised.

They are made from the bytes as the client sent them: a conversation's next turn repeats its earlier turns
byte for byte. Python's own hash is used, which is fast and salted per process: the hashes mean something
inside this process only. Must not know who compares them.
"""

from __future__ import annotations

from collections.abc import Iterable


def prefix_hashes(
    seed: str, parts: Iterable[bytes | memoryview], block_bytes: int, max_blocks: int
) -> tuple[int, ...]:
    """One hash for each whole block of the joined parts, each standing for everything up to its block's end.

    `seed` holds what keeps equal prompts apart (model, cache salt). At most `max_blocks` blocks are read.
    """
    limit = block_bytes * max_blocks
    text = b""
    for part in parts:
        text += part[: limit - len(text)]
        if len(text) >= limit:
            break
    chained = hash(seed)
    hashes = []
    for start in range(0, len(text) - block_bytes + 1, block_bytes):
        chained = hash((chained, text[start : start + block_bytes]))
        hashes.append(chained)
    return tuple(hashes)
