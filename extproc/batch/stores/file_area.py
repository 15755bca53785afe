"""Files on a local disk for the embedded store: written in order, sealed by a rename, read by position.

Synchronous; the store runs it in its own thread. It knows nothing of jobs.
"""

from __future__ import annotations

import os
from collections.abc import Set
from pathlib import Path
from typing import BinaryIO

from extproc.batch.job import FileId

_PART = ".part"


class FileArea:
    """One folder of sealed files; unsealed ones end in `.part`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._uploads: dict[FileId, BinaryIO] = {}

    def open(self) -> None:
        """Create the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def sweep(self, known: Set[str], written_before: float) -> None:
        """Remove files that `known` does not name and that were last written before then (epoch seconds)."""
        for path in self._folder.iterdir():
            if path.name not in known and path.stat().st_mtime < written_before:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close and remove open uploads: they can't be continued by anyone."""
        for file_id in list(self._uploads):
            self.delete(file_id)

    def append(self, file_id: FileId, data: bytes) -> None:
        """Add bytes to an unsealed file."""
        upload = self._uploads.get(file_id)
        if upload is None:
            upload = self._uploads[file_id] = self._path(file_id, _PART).open("wb")
        upload.write(data)

    def seal(self, file_id: FileId) -> None:
        """Make the file durable under its final name; sealing a sealed file changes nothing."""
        upload = self._uploads.pop(file_id, None)
        if upload is None:
            if not self._path(file_id).exists():
                self._path(file_id).touch()
            return
        with upload:
            upload.flush()
            os.fsync(upload.fileno())
        self._path(file_id, _PART).replace(self._path(file_id))

    def delete(self, file_id: FileId) -> None:
        """Remove the file in whatever state it is."""
        upload = self._uploads.pop(file_id, None)
        if upload is not None:
            try:
                upload.close()
            except OSError:
                pass  # a full disk: the bytes still buffered are not wanted anyway
        self._path(file_id, _PART).unlink(missing_ok=True)
        self._path(file_id).unlink(missing_ok=True)

    def read(self, file_id: FileId, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`; empty past the end or when there is no such file."""
        try:
            with self._path(file_id).open("rb") as file:
                file.seek(offset)
                return file.read(size)
        except FileNotFoundError:
            return b""

    def _path(self, file_id: FileId, suffix: str = "") -> Path:
        return self._folder / (file_id.replace("/", "_") + suffix)
