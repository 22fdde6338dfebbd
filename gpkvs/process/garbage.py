"""Python's garbage collector, where much is made that stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage meanwhile: each collection looks at all that was made so far, and stops all threads."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def loading_modules() -> Iterator[None]:
    """Collect no garbage while modules are loaded, and let no later collection look at what they hold.

    It stays until the process ends. Without this, a quarter of the time of a short command went to collections: those
    while modules were loaded, and those at the end of the process. What else is there at the end is kept, too, so this
    is for a process of our own, and not for a program that uses gpkvs.
    """
    with without_collections():
        try:
            yield
        finally:
            gc.freeze()
