"""A watcher that may be killed at any time: ``python -m tests.watched.watcher TARGET FILE``.

It keeps what it is told in a file, with the position behind it. A new process goes on behind that. If it hears that
changes are no longer held, it begins anew: it follows, then reads all.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from gpkvs.client import Client, RetryPolicy
from gpkvs.client.errors import NotExecutedError
from gpkvs.errors import ChangesLostError
from tests.watched.told import Began, Entry, Keeper, Lost, Row, Told, WentOn

PATIENT = RetryPolicy(attempts_max=10_000, delay_ms_first=5, delay_ms_max=50)


def watch(client: Client, keeper: Keeper) -> None:
    """Follow until nothing more comes."""
    asked_s, since = time.monotonic(), keeper.position
    with client.follow(since) as following:
        if since is None:
            begin, answered_s = following.position, time.monotonic()
            keeper.keep(Began(begin, asked_s, answered_s, _all_of(client)))
        else:
            keeper.keep(WentOn(following.position))
        while True:
            entries = following.read(timeout=None)
            keeper.keep(Told(following.position, tuple(map(Entry.of, entries))))


def _all_of(client: Client) -> dict[bytes, Row]:
    rows: dict[bytes, Row] = {}
    for piece in client.scan_pieces():
        rows |= {
            key: (value, version)
            for key, value, version in zip(piece.key_list(), piece.value_list(), piece.versions.tolist(), strict=True)
        }
    return rows


def main() -> None:
    """Watch for ever."""
    target, path = sys.argv[1:]
    keeper = Keeper(Path(path))
    with Client(target, retry=PATIENT) as client:
        while True:
            try:
                watch(client, keeper)
            except ChangesLostError as error:
                keeper.keep(Lost(str(error)))
            except NotExecutedError:  # the server is gone
                time.sleep(0.01)


if __name__ == "__main__":
    main()
