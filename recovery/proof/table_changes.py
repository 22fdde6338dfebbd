"""The transaction that comes before each change of the tables: it changes nothing, and takes a sequence number."""

from __future__ import annotations

from collections.abc import Callable

from gpkvs.store import Store


def on_taken_number(store: Store, act: Callable[[Callable[[], None]], None]) -> None:
    """Have a function called in place of each such transaction, with what runs it; the store's mutex is held."""
    committer = store._engine.committer
    run = committer.take_number
    setattr(committer, "take_number", lambda: act(run))  # noqa: B010 - this store's alone
