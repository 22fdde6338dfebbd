"""A directory with a file for each value, as programs without a store keep them."""

from __future__ import annotations

import os
from pathlib import Path

from gpkvs.bench.peers.contender import Promise

FILES = "files"


class PlainFiles:
    """Files that are replaced whole: each is written under another name first, and then renamed.

    Parameters
    ----------
    directory
        An empty directory.
    promise
        With ``msync`` the file is synced before it is renamed, and the directory after.
    """

    name = FILES
    version = ""

    def __init__(self, directory: Path, promise: Promise) -> None:
        self._directory, self._syncs = directory, promise == "msync"
        self._new = directory / "new"
        self._folder = os.open(directory, os.O_RDONLY)
        self.settings = "write, fsync, rename, fsync of the directory" if self._syncs else "write, rename"

    def set_one(self, key: bytes, value: bytes) -> None:
        """Replace one file."""
        with self._new.open("wb", buffering=0) as file:
            file.write(value)
            if self._syncs:
                os.fsync(file.fileno())
        self._new.rename(self._directory / key.decode())
        if self._syncs:
            os.fsync(self._folder)

    def get_one(self, key: bytes) -> bytes:
        """Read one file."""
        return (self._directory / key.decode()).read_bytes()

    def settle(self) -> None:
        """Return at once."""

    def close(self) -> None:
        """Close the directory."""
        os.close(self._folder)
