"""What a server is started with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpkvs.config import ServerConfig, StoreConfig


def _nothing() -> None:
    """Do nothing on SIGHUP."""


@dataclass(frozen=True)
class ServeOptions:
    """What the command is given: the store to serve, and how."""

    data: Path
    store: StoreConfig
    server: ServerConfig
    ready_file: Path | None = None
    reload: Callable[[], None] = _nothing  # on SIGHUP, in the event loop
