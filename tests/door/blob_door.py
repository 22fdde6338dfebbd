"""Stores with large values, a door on them, and one client of it that speaks RESP."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import gpkvs
from gpkvs.config import MIB, CommitName
from gpkvs.engine.state.blob_pages import PageCounts
from gpkvs.server.door.library import Library
from tests.conftest import SMALL, assert_clean
from tests.door.resp_door import answers, command, connect, resp_door

COMMITS: tuple[CommitName, ...] = ("undo", "journal")
LARGER = SMALL | {"heap_bytes": 64 * MIB}


@contextmanager
def blob_store(path: Path, commit: CommitName) -> Iterator[gpkvs.Store]:
    """Yield a store of format 4, which is checked in the end."""
    with gpkvs.open(path, store_format="4", commit=commit, durability="process", **LARGER) as opened:
        yield opened
    assert_clean(path)


@contextmanager
def door(store: gpkvs.Store, **settings: float) -> Iterator[tuple[Library, socket.socket]]:
    """Yield a door on a store, and a connection to it."""
    opened = resp_door(store, lambda words: b"-ERR handed on %s\r\n" % words[0], **settings)
    with opened as (library, port), connect(port) as connection:
        yield library, connection


def counts_of(store: gpkvs.Store) -> PageCounts:
    """Return what the pages of its blobs are."""
    assert store._engine.heap.blobs
    return store._engine.heap.blobs._space.pages.counts


def wait_for(holds: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until something holds."""
    give_up = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.005)


def ask(connection: socket.socket, *words: bytes) -> bytes:
    """Send a command, and return its answer."""
    connection.sendall(command(*words))
    return answers(connection, 1)


def bulk(value: bytes | None) -> bytes:
    """Return an answer with a value, or with none."""
    return b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value)
